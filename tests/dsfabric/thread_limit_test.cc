// A process that may start no further thread gets a Status, wherever the library needs one. The
// jobs run this program again, with --role=NAME as its first argument; the environment variable
// FAILING_THREAD is the number of the thread that cannot be started in rank 0.
#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <system_error>

#include "dsfabric/fabric.h"
#include "dsfabric/run_job.h"
#include "dsfabric/send_call.h"
#include "dtutils/internal/exception_error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "riutils/call.h"
#include "tests/dsfabric/testing/role.h"
#include "tests/dsfabric/testing/running_command.h"

// Sanitizers replace pthread_create() themselves.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CARIAMA_OTHER_THREADS
#endif

namespace {

std::atomic<int> threads_until_limit{-1};  // -1: no limit

}  // namespace

#if !defined(CARIAMA_OTHER_THREADS)
// The C++ library calls this function instead of that of the C library.
extern "C" __attribute__((visibility("default"))) int pthread_create(
    pthread_t* thread, const pthread_attr_t* attributes, void* (*body)(void*), void* argument) {
  if (threads_until_limit.load() >= 0 && threads_until_limit.fetch_sub(1) == 0) return EAGAIN;
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto create = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  return create(thread, attributes, body, argument);
}
#endif

namespace cariama {
namespace {

using ::testing::HasSubstr;
using testing::Running;

constexpr int kReported = 3;

Deadline end_of_test() { return deadline_after(std::chrono::seconds(60)); }

// Prints by one write, because the processes share their output.
int report_error(const absl::Status& status) {
  const std::string text = std::string(status.message()) + "\n";
  static_cast<void>(!write(STDOUT_FILENO, text.data(), text.size()));
  return kReported;
}

// Uses everything that needs a thread: the device, its connections, the broker, the service and
// helper threads, a process consumer, deferred calls, finalize().
int use_all_threads() {
  auto made = Fabric::create({.threads = 1, .helper_threads = 2});
  if (!made.ok()) return report_error(made.status());
  Fabric& fabric = **made;
  auto self = fabric.init_thread(0, CallConsumer::kProcess);
  if (!self.ok()) return report_error(self.status());
  const Rank other = 1 - fabric.rank();
  if (auto connected = fabric.connection(other); !connected.ok()) {
    return report_error(connected.status());
  }
  RDMAMessenger messenger(**self, fabric.thread_of(other));
  if (auto sent = messenger.call<Retry>([] {}); !sent.ok()) return report_error(sent.status());
  if (absl::Status ended = messenger.shutdown(end_of_test()); !ended.ok()) {
    return report_error(ended);
  }
  self->reset();
  const absl::Status ended = fabric.finalize(end_of_test());
  return ended.ok() ? 0 : report_error(ended);
}

int run_two_threads(int argc, char** argv) {
  return run_job({.fabric = {.threads = 2}}, argc, argv, [](ThreadContext&) {});
}

#if !defined(CARIAMA_OTHER_THREADS)
// Runs the role with the first thread failing, with the second one, and so on, until the job needs
// no further thread.
void expect_every_failure_reported(const std::string& role, int reported) {
  for (int failing = 0; failing < 50; ++failing) {
    // Without the statistics service: its thread is not needed, so its failure is no error.
    Running job("env CARIAMA_STATISTICS=off FAILING_THREAD=" + std::to_string(failing) + " " +
                CARIAMA_PROGRAM_DIR + "/cariama-run -n 2 " + testing::in_role(role));
    const int code = job.wait();
    const std::string text = job.out() + job.err();
    if (code == 0) {
      EXPECT_GT(failing, 3);
      return;
    }
    EXPECT_EQ(code, reported) << "thread " << failing << ": " << text;
    EXPECT_THAT(text, HasSubstr("cannot start a thread: ")) << "thread " << failing;
    EXPECT_THAT(text, HasSubstr("raise ulimit -u, -v or -d")) << "thread " << failing;
  }
  ADD_FAILURE() << "the job needs ever more threads";
}

TEST(ThreadLimit, EveryThreadThatCannotBeStartedIsAnError) {
  expect_every_failure_reported("all", kReported);
}

TEST(ThreadLimit, RunJobReportsIt) { expect_every_failure_reported("run_job", 1); }
#endif

TEST(ExceptionError, IsThatOfThisProcessIfItIsOne) {
  const absl::Status malformed = absl::InvalidArgumentError("malformed");
  const auto error_of = [&](const std::exception& error) {
    return internal::exception_error(error, "connecting", malformed);
  };
  EXPECT_TRUE(absl::IsResourceExhausted(error_of(std::bad_alloc())));
  EXPECT_THAT(std::string(error_of(std::bad_alloc()).message()), HasSubstr("raise ulimit -v"));
  const std::system_error no_thread(EAGAIN, std::generic_category());
  EXPECT_THAT(std::string(error_of(no_thread).message()),
              HasSubstr("connecting: Resource temporarily unavailable"));
  EXPECT_EQ(error_of(std::runtime_error("it is cut short")), malformed);
}

}  // namespace

int play(std::string_view role, int argc, char** argv) {
  const char* const failing = getenv("FAILING_THREAD");
  const char* const rank = getenv("CARIAMA_RANK");
  if (failing != nullptr && rank != nullptr && rank == std::string_view("0")) {
    threads_until_limit.store(std::atoi(failing));
  }
  return role == "run_job" ? run_two_threads(argc, argv) : use_all_threads();
}

}  // namespace cariama

int main(int argc, char** argv) {
  return cariama::testing::play_or_test(
      argc, argv, [&](std::string_view role) { return cariama::play(role, argc, argv); });
}
