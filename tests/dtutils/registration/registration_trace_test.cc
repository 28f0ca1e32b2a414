#include "dtutils/internal/registration_trace.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "dtutils/registration/registration_cache.h"
#include "tests/dtutils/registration/pinning_domain.h"

namespace cariama {
namespace {

using ::cariama::testing::CountingPinner;
using ::cariama::testing::kTestPage;
using ::cariama::testing::MappedPages;
using internal::RegistrationTrace;

class TraceFile {
 public:
  TraceFile() {
    char name[] = "/tmp/cariama-registration-trace-XXXXXX";
    directory_ = mkdtemp(name);
  }
  ~TraceFile() {
    unlink(path().c_str());
    rmdir(directory_.c_str());
  }
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;
  [[nodiscard]] std::string path() const { return directory_ + "/uses.csv"; }
  [[nodiscard]] std::vector<std::string> lines() const {
    std::ifstream file(path());
    std::vector<std::string> result;
    for (std::string line; std::getline(file, line);) result.push_back(line);
    return result;
  }

 private:
  std::string directory_;
};

struct Line {
  int rank = 0;
  long long begin = 0;
  long long end = 0;
  unsigned call_site = 0;
  unsigned long long address = 0;
  unsigned long long bytes = 0;
  long long processor_time = 0;
};

Line parsed(const std::string& text) {
  Line line;
  EXPECT_EQ(
      std::sscanf(text.c_str(), "%d,%lld,%lld,use,%8x,%llu,%llu,-1,%lld", &line.rank, &line.begin,
                  &line.end, &line.call_site, &line.address, &line.bytes, &line.processor_time),
      7)
      << text;
  return line;
}

TEST(RegistrationTrace, WritesUsesInTheOrderOfTheirBegin) {
  const TraceFile file;
  auto trace = RegistrationTrace::create(file.path());
  ASSERT_TRUE(trace.ok()) << trace.status();
  const CallStack stack{1, 2};
  const auto* const memory = reinterpret_cast<const void*>(uintptr_t{40960});
  const uint64_t first = (*trace)->begin(memory, 20000, stack);
  const uint64_t second = (*trace)->begin(memory, 30000, {1, 3});
  (*trace)->end(second);
  EXPECT_EQ(file.lines().size(), 1u);  // the first one has not ended
  (*trace)->end(first);
  const uint64_t third = (*trace)->begin(memory, 20000, stack);
  trace->reset();  // ends it
  EXPECT_NE(third, 0u);
  const std::vector<std::string> lines = file.lines();
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[0], "# rank,t_ns,t_end_ns,kind,callsite_hash,addr,bytes,peer,c_ns");
  const Line one = parsed(lines[1]);
  const Line two = parsed(lines[2]);
  const Line three = parsed(lines[3]);
  EXPECT_EQ(one.rank, gettid());
  EXPECT_EQ(one.address, 40960u);
  EXPECT_EQ(one.bytes, 20000u);
  EXPECT_EQ(two.bytes, 30000u);
  EXPECT_EQ(one.call_site, three.call_site);
  EXPECT_NE(one.call_site, two.call_site);
  EXPECT_LE(one.begin, two.begin);
  EXPECT_LE(two.begin, two.end);
  EXPECT_LE(two.end, one.end);
  EXPECT_LE(three.begin, three.end);
  EXPECT_LE(one.processor_time, three.processor_time);
}

TEST(RegistrationTrace, NeverWritesToAFileThatExistsNorThroughALink) {
  const TraceFile file;
  ASSERT_EQ(symlink("/tmp/cariama-no-such-file", file.path().c_str()), 0);
  EXPECT_EQ(RegistrationTrace::create(file.path()).status().code(),
            absl::StatusCode::kAlreadyExists);
  unlink(file.path().c_str());
  std::ofstream(file.path()) << "precious\n";
  EXPECT_EQ(RegistrationTrace::create(file.path()).status().code(),
            absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(file.lines(), std::vector<std::string>{"precious"});
  unlink(file.path().c_str());
  ASSERT_TRUE(RegistrationTrace::create(file.path()).ok());
  struct stat info {};
  ASSERT_EQ(stat(file.path().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

// The variable is read once in a process, so a new process of this program runs the case below.
TEST(RegistrationTrace, RecordsWhatAProgramDoes) {
  const TraceFile file;
  const pid_t child = fork();
  if (child == 0) {
    setenv("CARIAMA_TRACE_REGISTRATION", file.path().c_str(), 1);
    unsetenv("GTEST_TOTAL_SHARDS");
    unsetenv("GTEST_SHARD_INDEX");
    // The case forks beside the cache's thread. The child's leak check would wait for ever for an
    // allocator lock that this thread had taken.
    setenv("ASAN_OPTIONS", "detect_leaks=0", 1);
    execl("/proc/self/exe", "child", "--gtest_filter=RegistrationTraceChild.*",
          "--gtest_also_run_disabled_tests", nullptr);
    _exit(1);
  }
  int status = 1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  const std::vector<std::string> lines = file.lines();
  ASSERT_EQ(lines.size(), 1u + 6u);
  const Line first = parsed(lines[1]);
  for (size_t i = 0; i < 6; ++i) {
    const Line line = parsed(lines[i + 1]);
    EXPECT_EQ(line.rank, child);
    EXPECT_EQ(line.address, first.address + i % 2 * 8 * kTestPage);
    EXPECT_EQ(line.bytes, 5 * kTestPage + 1);
  }
}

TEST(RegistrationTraceChild, DISABLED_UsesMemory) {
  auto cache = RegistrationCache::create(std::make_shared<CountingPinner>()).value();
  const MappedPages pages(16);
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_TRUE(cache->acquire(pages.page(i % 2 * 8), 5 * kTestPage + 1).ok());
  }
  const auto in_use = cache->acquire(pages.page(8), 5 * kTestPage + 1);
  EXPECT_TRUE(in_use.ok());
  const pid_t child = fork();
  if (child == 0) exit(0);  // writes nothing
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
}

}  // namespace
}  // namespace cariama
