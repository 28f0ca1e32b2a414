// Functions have ids that are equal in every process of a build, and only registered functions run.
// Some tests need other processes: they run this program again, with --role=NAME.
#include "dsfabric/function_table.h"

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "dsfabric/call_encoding.h"
#include "dsfabric/fabric.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/dtutils/testing/status_text.h"

namespace cariama {
namespace {

using testing::message_of;

using ::testing::AllOf;
using ::testing::Each;
using ::testing::Eq;
using ::testing::HasSubstr;

#if defined(__SANITIZE_THREAD__)
constexpr bool kThreadSanitizer = true;
#else
constexpr bool kThreadSanitizer = false;
#endif

// Hundreds of stubs: one for each number.
template <int kNumber>
void numbered(IncomingCall& call) {
  call.source_thread = kNumber;
}

template <int... kNumbers>
std::vector<FunctionId> ids_of(std::integer_sequence<int, kNumbers...>) {
  return {FunctionTable::id_of<&numbered<kNumbers>>()...};
}
std::vector<FunctionId> all_ids() { return ids_of(std::make_integer_sequence<int, 300>()); }

class FunctionTableTest : public ::testing::Test {
 protected:
  FunctionTableTest() { EXPECT_TRUE(FunctionTable::build().ok()); }
};

TEST_F(FunctionTableTest, EveryStubHasAnIdOfItsOwnThatFindsIt) {
  std::set<uint32_t> seen;
  const std::vector<FunctionId> ids = all_ids();
  for (size_t i = 0; i < ids.size(); ++i) {
    EXPECT_NE(ids[i].value, 0u);
    EXPECT_TRUE(seen.insert(ids[i].value).second);
    const FunctionStub stub = FunctionTable::resolve(ids[i]);
    ASSERT_NE(stub, nullptr);
    IncomingCall call;
    stub(call);
    EXPECT_EQ(call.source_thread, i);
  }
  EXPECT_GE(FunctionTable::fingerprint().functions, 300u);
}

TEST_F(FunctionTableTest, BuildingAgainChangesNothing) {
  const std::vector<FunctionId> before = all_ids();
  const ProgramFingerprint fingerprint = FunctionTable::fingerprint();
  EXPECT_TRUE(FunctionTable::build().ok());
  EXPECT_EQ(all_ids(), before);
  EXPECT_EQ(FunctionTable::fingerprint(), fingerprint);
}

TEST_F(FunctionTableTest, UnknownIdsAreRejectedAndCounted) {
  const uint64_t before = FunctionTable::rejected();
  const uint32_t functions = FunctionTable::fingerprint().functions;
  const std::array<uint32_t, 5> unknown{0, functions + 1, 0x7fffffff, 0x80000001, 0xffffffff};
  for (const uint32_t id : unknown) EXPECT_EQ(FunctionTable::resolve({id}), nullptr) << id;
  EXPECT_EQ(FunctionTable::rejected() - before, unknown.size());
}

TEST_F(FunctionTableTest, ErrorsSayWhatDiffersBetweenBuilds) {
  const ProgramFingerprint ours = FunctionTable::fingerprint();
  EXPECT_NE(ours.build_id, (std::array<uint8_t, 20>{}));
  EXPECT_TRUE(FunctionTable::check(ours, "rank 1").ok());

  ProgramFingerprint other = ours;
  other.build_id[0] = static_cast<uint8_t>(other.build_id[0] ^ 1);
  absl::Status refused = FunctionTable::check(other, "rank 1");
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(message_of(refused), AllOf(HasSubstr("rank 1 runs another program (build-id "),
                                         HasSubstr("start the same executable")));

  ProgramFingerprint library = ours;
  library.table_hash ^= 1;
  --library.functions;
  refused = FunctionTable::check(library, "rank 2");
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(message_of(refused),
              HasSubstr("rank 2 runs this program with other libraries (" +
                        std::to_string(library.functions) + " functions, this process has " +
                        std::to_string(ours.functions) + ")"));
}

// ---- Several processes --------------------------------------------------------------------------

std::string self() {
  std::array<char, 4096> path{};
  const ssize_t length = readlink("/proc/self/exe", path.data(), path.size());
  return {path.data(), static_cast<size_t>(length > 0 ? length : 0)};
}

struct Output {
  std::string text;
  int code = -1;
};
Output run(const std::string& command) {
  Output output;
  FILE* const pipe = popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return output;
  std::array<char, 4096> chunk{};
  while (const size_t count = fread(chunk.data(), 1, chunk.size(), pipe)) {
    output.text.append(chunk.data(), count);
  }
  const int status = pclose(pipe);
  output.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return output;
}

// Prints all ids and the fingerprint in one line, then the address of the code.
int role_ids() {
  if (!FunctionTable::build().ok()) return 1;
  for (const FunctionId id : all_ids()) std::printf("%u ", id.value);
  const ProgramFingerprint fingerprint = FunctionTable::fingerprint();
  const auto* const bytes = reinterpret_cast<const uint8_t*>(&fingerprint);
  for (size_t i = 0; i < sizeof fingerprint; ++i) std::printf("%02x", bytes[i]);
  std::printf("\n%p\n", reinterpret_cast<void*>(&numbered<0>));
  return 0;
}

int role_fabric() {
  const auto fabric = Fabric::create();
  if (!fabric.ok()) {
    const std::string line = "refused: " + message_of(fabric.status()) + "\n";
    static_cast<void>(!write(STDOUT_FILENO, line.data(), line.size()));
  }
  return fabric.ok() ? 0 : 3;
}

TEST(Processes, OfOneBuildHaveTheSameIdsAtDifferentAddresses) {
  constexpr int kExecutions = 20;
  std::vector<std::string> ids;
  std::set<std::string> addresses;
  for (int i = 0; i < kExecutions; ++i) {
    const Output output = run(self() + " --role=ids");
    ASSERT_EQ(output.code, 0);
    const size_t line = output.text.find('\n');
    ASSERT_NE(line, std::string::npos);
    ids.push_back(output.text.substr(0, line));
    addresses.insert(output.text.substr(line + 1));
  }
  EXPECT_THAT(ids, Each(Eq(ids.front())));
  int randomized = 0;
  std::ifstream("/proc/sys/kernel/randomize_va_space") >> randomized;
  // ThreadSanitizer switches address-space randomization off for its process.
  if (randomized != 0 && !kThreadSanitizer) {
    EXPECT_GT(addresses.size(), 1u);
  }
}

TEST(Processes, OfTwoBuildsRefuseEachOther) {
  const std::string folder = CARIAMA_PROGRAM_DIR;
  const std::string other = folder + "/launcher_test";
  ASSERT_EQ(access(other.c_str(), X_OK), 0) << "build launcher_test as well";
  const Output output =
      run(folder + "/cariama-run -n 2 --keep-going sh -c 'test $CARIAMA_RANK = 0 && exec " +
          self() + " --role=fabric; exec " + other + " --role=fabric'");
  EXPECT_EQ(output.code, 3) << output.text;
  EXPECT_THAT(output.text, AllOf(HasSubstr("refused: rank 0 "), HasSubstr("refused: rank 1 "),
                                 HasSubstr("runs another program (build-id "),
                                 HasSubstr("start the same executable")));
}

}  // namespace
}  // namespace cariama

int main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "--role=ids") return cariama::role_ids();
  if (argc > 1 && std::string_view(argv[1]) == "--role=fabric") return cariama::role_fabric();
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
