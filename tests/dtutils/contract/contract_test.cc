// The contract suite: tests that every transport provides what device.h, queue_pair.h, memory.h and
// completion.h promise. The tests are in the files contract_test_*.cc in this folder.
#include <cstdio>
#include <map>
#include <string>

#include "gtest/gtest.h"
#include "tests/dtutils/contract/harness.h"

namespace cariama::testing {
namespace {

struct Counts {
  int registered = 0;
  int passed = 0;
  int skipped = 0;
  int failed = 0;
};

// Returns the counts of the whole suite by transport.
std::map<std::string, Counts> count_tests() {
  std::map<std::string, Counts> counts;
  const ::testing::UnitTest& program = *::testing::UnitTest::GetInstance();
  for (int i = 0; i < program.total_test_suite_count(); ++i) {
    const ::testing::TestSuite& suite = *program.GetTestSuite(i);
    for (int j = 0; j < suite.total_test_count(); ++j) {
      const ::testing::TestInfo& test = *suite.GetTestInfo(j);
      const std::string name = test.name();
      const size_t slash = name.rfind('/');
      if (slash == std::string::npos) continue;
      Counts& count = counts[name.substr(slash + 1)];
      ++count.registered;
      if (!test.should_run()) continue;
      count.passed += test.result()->Passed() ? 1 : 0;
      count.skipped += test.result()->Skipped() ? 1 : 0;
      count.failed += test.result()->Failed() ? 1 : 0;
    }
  }
  return counts;
}

class CountsAtTheEnd : public ::testing::Environment {
 public:
  void TearDown() override {
    for (const auto& [transport, count] : count_tests()) {
      // The filter excludes this transport.
      if (count.passed + count.skipped + count.failed == 0) continue;
      std::printf("[ contract ] %-11s %d passed, %d failed, %d skipped, of %d\n", transport.c_str(),
                  count.passed, count.failed, count.skipped, count.registered);
    }
  }
};

[[maybe_unused]] const ::testing::Environment* const counts_at_the_end =
    ::testing::AddGlobalTestEnvironment(new CountsAtTheEnd);

TEST(ContractSuite, EveryTransportHasTheSameTests) {
  const std::map<std::string, Counts> counts = count_tests();
  ASSERT_EQ(counts.size(), every_transport().size());
  const int expected = counts.begin()->second.registered;
  EXPECT_GT(expected, 0);
  for (const TransportCase& transport : every_transport()) {
    ASSERT_TRUE(counts.contains(transport.name)) << transport.name;
    EXPECT_EQ(counts.at(transport.name).registered, expected) << transport.name;
  }
}

}  // namespace
}  // namespace cariama::testing
