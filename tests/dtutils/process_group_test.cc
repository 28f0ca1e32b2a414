#include "dtutils/process_group.h"

#include <dirent.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/dtutils/testing/fail_allocation.h"
#include "tests/dtutils/testing/process_test.h"
#include "tests/dtutils/testing/shared.h"
#include "tests/dtutils/testing/status_text.h"

namespace cariama {
namespace {

using testing::message_of;

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::run_test_processes;
using testing::Shared;
using testing::try_test_processes;

Exchange::Deadline in(std::chrono::milliseconds time) {
  return std::chrono::steady_clock::now() + time;
}
// Deadline for waits that should succeed. It only prevents that a defect hangs the test.
Exchange::Deadline soon() { return in(seconds(30)); }

void wait_forever() {
  while (true) pause();
}

TEST(ProcessGroup, EachProcessGetsTheValuesOfAll) {
  run_test_processes(5, [](Exchange& exchange) {
    EXPECT_EQ(exchange.size(), 5);
    const auto value = [](int rank, size_t bytes) {
      std::string text(bytes, '\0');  // binary: all byte values, including zero
      for (size_t i = 0; i < bytes; ++i) text[i] = static_cast<char>(i * 7 + rank);
      return text;
    };
    for (const size_t bytes : {0, 1, 31, 65536, 3'000'000}) {
      const std::string key = "k" + std::to_string(bytes);
      ASSERT_TRUE(exchange.put(key, value(exchange.rank(), bytes)).ok());
      for (int rank = 0; rank < exchange.size(); ++rank) {
        const absl::StatusOr<std::string> got = exchange.get(rank, key, soon());
        ASSERT_TRUE(got.ok()) << got.status();
        EXPECT_TRUE(*got == value(rank, bytes)) << bytes << " bytes of " << rank;
      }
      const auto all = exchange.get_all(key, soon());
      ASSERT_TRUE(all.ok()) << all.status();
      ASSERT_EQ(all->size(), 5u);
      for (int rank = 0; rank < exchange.size(); ++rank) {
        EXPECT_TRUE((*all)[static_cast<size_t>(rank)] == value(rank, bytes));
      }
    }
  });
}

TEST(ProcessGroup, FenceSeparatesPhases) {
  Shared<std::atomic<int>> arrived;
  run_test_processes(4, [&](Exchange& exchange) {
    for (int phase = 1; phase <= 50; ++phase) {
      ASSERT_TRUE(exchange.put("phase", std::to_string(phase)).ok());
      arrived->fetch_add(1);
      ASSERT_TRUE(exchange.fence(soon()).ok());
      EXPECT_EQ(arrived->load(), phase * exchange.size());
      for (int rank = 0; rank < exchange.size(); ++rank) {
        EXPECT_EQ(exchange.get(rank, "phase", in(seconds(30))).value_or("none"),
                  std::to_string(phase));
      }
      ASSERT_TRUE(exchange.fence(soon()).ok());
    }
  });
}

TEST(ProcessGroup, GetEndsAtItsDeadlineAndALateAnswerIsIgnored) {
  run_test_processes(2, [](Exchange& exchange) {
    if (exchange.rank() == 0) {
      const absl::StatusOr<std::string> early = exchange.get(1, "late", in(milliseconds(20)));
      EXPECT_EQ(early.status().code(), absl::StatusCode::kDeadlineExceeded);
      EXPECT_THAT(message_of(early.status()), HasSubstr("get of 'late' from rank 1"));
      ASSERT_TRUE(exchange.put("go", "").ok());
      EXPECT_EQ(exchange.get(1, "other", soon()).value_or("none"), "2");
      EXPECT_EQ(exchange.get(1, "late", soon()).value_or("none"), "1");
    } else {
      ASSERT_TRUE(exchange.get(0, "go", soon()).ok());
      ASSERT_TRUE(exchange.put("late", "1").ok());
      ASSERT_TRUE(exchange.put("other", "2").ok());
    }
  });
}

TEST(ProcessGroup, GetAllNamesARankThatIsMissingAtItsDeadline) {
  run_test_processes(3, [](Exchange& exchange) {
    if (exchange.rank() == 1) {
      ASSERT_TRUE(exchange.get(0, "go", soon()).ok());
    }
    ASSERT_TRUE(exchange.put("key", std::to_string(exchange.rank())).ok());
    if (exchange.rank() == 0) {
      ASSERT_TRUE(exchange.get(2, "key", soon()).ok());
      const auto early = exchange.get_all("key", in(milliseconds(20)));
      EXPECT_EQ(early.status().code(), absl::StatusCode::kDeadlineExceeded);
      EXPECT_THAT(message_of(early.status()), HasSubstr("get of 'key' from rank 1:"));
      ASSERT_TRUE(exchange.put("go", "").ok());
    }
    // The answers to the first request of rank 0 are ignored.
    const auto all = exchange.get_all("key", soon());
    ASSERT_TRUE(all.ok()) << all.status();
    EXPECT_EQ(*all, (std::vector<std::string>{"0", "1", "2"}));
  });
}

TEST(ProcessGroup, GetAllEndsIfARankEndsWithoutAValue) {
  run_test_processes(3, [](Exchange& exchange) {
    if (exchange.rank() == 2) return;
    ASSERT_TRUE(exchange.put("key", "").ok());
    const auto all = exchange.get_all("key", soon());
    EXPECT_TRUE(absl::IsUnavailable(all.status())) << all.status();
    EXPECT_THAT(message_of(all.status()), HasSubstr("rank 2 has ended"));
  });
}

TEST(ProcessGroup, FenceContinuesAfterItsDeadline) {
  run_test_processes(2, [](Exchange& exchange) {
    if (exchange.rank() == 0) {
      EXPECT_EQ(exchange.fence(in(milliseconds(20))).code(), absl::StatusCode::kDeadlineExceeded);
      ASSERT_TRUE(exchange.put("go", "").ok());
      // The answer to the fence may arrive during this get(). The client must keep it for the next
      // fence().
      ASSERT_TRUE(exchange.get(1, "gone through", soon()).ok());
      EXPECT_TRUE(exchange.fence(soon()).ok());
      EXPECT_TRUE(exchange.fence(soon()).ok());
    } else {
      ASSERT_TRUE(exchange.get(0, "go", soon()).ok());
      EXPECT_TRUE(exchange.fence(soon()).ok());
      ASSERT_TRUE(exchange.put("gone through", "").ok());
      EXPECT_TRUE(exchange.fence(soon()).ok());
    }
  });
}

TEST(ProcessGroup, ADeathEndsGetsAndFencesOfTheOthersAndIsNamed) {
  run_test_processes(
      3,
      [](Exchange& exchange) {
        if (exchange.rank() == 2) {
          ASSERT_TRUE(exchange.put("will", "all yours").ok());
          kill(getpid(), SIGKILL);
        }
        const absl::Status status = exchange.rank() == 0
                                        ? exchange.get(2, "never put", soon()).status()
                                        : exchange.fence(soon());
        EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
        EXPECT_THAT(message_of(status), HasSubstr("the victim was killed by signal 9"));
        EXPECT_THAT(message_of(exchange.fence(soon())), HasSubstr("the victim was killed"));
        EXPECT_EQ(exchange.get(2, "will", soon()).value_or("none"), "all yours");
        EXPECT_EQ(exchange.label(2), "the victim");
      },
      {.labels = {"", "", "the victim"}, .may_die = {2}});
}

TEST(ProcessGroup, AnEarlyEndIsNoFailureButEndsWaitsForThatProcess) {
  run_test_processes(2, [](Exchange& exchange) {
    if (exchange.rank() == 1) return;
    const absl::Status status = exchange.get(1, "never put", soon()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(message_of(status), HasSubstr("rank 1 has ended"));
  });
}

TEST(ProcessGroup, ReportsExitCodesSignalsAndExceptionsByLabel) {
  const absl::Status status =
      run_processes(4,
                    [](Exchange& exchange) {
                      switch (exchange.rank()) {
                        case 0:
                          return 3;
                        case 1:
                          std::raise(SIGTERM);
                          return 0;
                        case 2:
                          throw std::runtime_error("intended: this exception ends its process");
                        default:
                          return 0;
                      }
                    },
                    {.labels = {"alice", "bob", "carol", "dave"}});
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(message_of(status), HasSubstr("alice exited with code 3"));
  EXPECT_THAT(message_of(status), HasSubstr("bob was killed by signal 15 (Terminated)"));
  EXPECT_THAT(message_of(status), HasSubstr("carol was killed by signal 6 (Aborted)"));
  EXPECT_THAT(message_of(status), Not(HasSubstr("dave")));
}

// A process whose parent ignores SIGCHLD inherits that. The kernel then discards exit statuses.
TEST(ProcessGroup, ReportsExitCodesIfSigchldIsIgnored) {
  struct sigaction ignore {};
  ignore.sa_handler = SIG_IGN;
  struct sigaction before {};
  ASSERT_EQ(sigaction(SIGCHLD, &ignore, &before), 0);
  const absl::Status status =
      run_processes(2, [](Exchange& exchange) { return exchange.rank() == 1 ? 3 : 0; });
  struct sigaction after {};
  ASSERT_EQ(sigaction(SIGCHLD, &before, &after), 0);
  EXPECT_EQ(message_of(status), "rank 1 exited with code 3");
  EXPECT_EQ(after.sa_handler, SIG_IGN);
}

TEST(ProcessGroup, ReportsAnExitStatusThatAHandlerTook) {
  static std::atomic<int> taken;
  struct sigaction takes {};
  takes.sa_handler = [](int) {
    const int error = errno;
    while (waitpid(-1, nullptr, WNOHANG) > 0) {
      taken.fetch_add(1);
    }
    errno = error;
  };
  takes.sa_flags = SA_RESTART;
  struct sigaction before {};
  ASSERT_EQ(sigaction(SIGCHLD, &takes, &before), 0);
  // The kernel wakes the waiter of the pidfd before it sends SIGCHLD, so either of the two may take
  // the status. Jobs are run until the handler takes one.
  absl::Status status;
  for (int job = 0; job < 200; ++job) {
    taken = 0;
    status = run_processes(1, [](Exchange& exchange) {
      // The store answers when the parent has opened the pidfd of this process.
      EXPECT_TRUE(exchange.put("started", "").ok());
      EXPECT_TRUE(exchange.get(0, "started", soon()).ok());
      return 3;
    });
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
    if (taken != 0) {
      break;
    }
    EXPECT_EQ(message_of(status), "rank 0 exited with code 3");
  }
  ASSERT_EQ(sigaction(SIGCHLD, &before, nullptr), 0);
  ASSERT_EQ(taken, 1) << "the handler took the status of no job";
  EXPECT_THAT(message_of(status), HasSubstr("took its exit status"));
}

TEST(ProcessGroup, AFailureKillsTheRestAfterTheGrace) {
  Shared<std::atomic<pid_t>> survivor;
  const absl::Status status = run_processes(2,
                                            [&](Exchange& exchange) {
                                              if (exchange.rank() == 1) {
                                                survivor->store(getpid());
                                                EXPECT_TRUE(exchange.put("ready", "").ok());
                                                wait_forever();
                                              }
                                              EXPECT_TRUE(exchange.get(1, "ready", soon()).ok());
                                              return 7;
                                            },
                                            {.grace = milliseconds(50)});
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  // Rank 1, which the group has killed, does not count as failed.
  EXPECT_EQ(message_of(status), "rank 0 exited with code 7");
  ASSERT_GT(survivor->load(), 0);
  EXPECT_EQ(kill(survivor->load(), 0), -1);
  EXPECT_EQ(errno, ESRCH);
}

TEST(ProcessGroup, TheTimeoutKillsAndNamesRunningProcesses) {
  const absl::Status status =
      run_processes(3,
                    [](Exchange& exchange) {
                      if (exchange.rank() == 1)
                        kill(getpid(), SIGSTOP);  // a stopped process cannot handle signals
                      if (exchange.rank() == 2) wait_forever();
                      return 0;
                    },
                    {.timeout = seconds(5)});
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(message_of(status), HasSubstr("rank 1 did not end within 5000 ms and was killed"));
  EXPECT_THAT(message_of(status), HasSubstr("rank 2 did not end"));
  EXPECT_THAT(message_of(status), Not(HasSubstr("rank 0")));
}

TEST(ProcessGroup, AProcessThatBreaksTheExchangeIsKilledAndReported) {
  const absl::Status status = run_processes(2, [](Exchange& exchange) {
    if (exchange.rank() == 0) {
      const absl::Status fence = exchange.fence(soon());
      EXPECT_EQ(fence.code(), absl::StatusCode::kUnavailable);
      return fence.code() == absl::StatusCode::kUnavailable ? 0 : 1;
    }
    DIR* directory = opendir("/proc/self/fd");
    const std::string nonsense(100, '?');
    while (const dirent* entry = readdir(directory)) {
      const int descriptor = std::atoi(entry->d_name);
      ucred peer{};
      socklen_t length = sizeof peer;
      if (getsockopt(descriptor, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 &&
          peer.pid == getppid()) {
        send(descriptor, nonsense.data(), nonsense.size(), MSG_NOSIGNAL);
      }
    }
    wait_forever();
    return 0;
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(message_of(status), HasSubstr("rank 1 broke the exchange (malformed"));
  EXPECT_THAT(message_of(status), Not(HasSubstr("rank 0")));
}

// The caller cannot receive a large value.
TEST(ProcessGroup, WithoutMemoryTheProcessesAreKilledAndTheErrorSaysSo) {
  CARIAMA_SKIP_WITHOUT_FAILING_ALLOCATIONS();
  constexpr size_t kLarge = size_t{1} << 20;
  Shared<std::array<std::atomic<pid_t>, 2>> processes;
  absl::Status status;
  {
    const testing::FailAllocation fail(kLarge);
    status = run_processes(2, [&](Exchange& exchange) {
      testing::failing_bytes = 0;  // inherited
      (*processes)[static_cast<size_t>(exchange.rank())].store(getpid());
      EXPECT_TRUE(exchange.fence(soon()).ok());
      static_cast<void>(exchange.put("large", std::string(4 * kLarge, 'x')));
      wait_forever();
      return 0;
    });
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(message_of(status), HasSubstr("the processes were killed"));
  EXPECT_THAT(message_of(status), HasSubstr("raise ulimit -v"));
  for (const std::atomic<pid_t>& process : *processes) {
    ASSERT_GT(process.load(), 0);
    EXPECT_EQ(kill(process.load(), 0), -1);
    EXPECT_EQ(errno, ESRCH) << "it was not reaped";
  }
}

TEST(ProcessGroup, AllProcessesDieWithTheCaller) {
  // Orphans become children of this process, so that it can wait for their end.
  ASSERT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  Shared<std::array<std::atomic<pid_t>, 2>> orphans;
  const absl::Status status = run_processes(1,
                                            [&](Exchange& outer) {
                                              (void)outer;
                                              const absl::Status inner =
                                                  run_processes(2, [&](Exchange& exchange) {
                                                    (*orphans)[exchange.rank()].store(getpid());
                                                    EXPECT_TRUE(exchange.fence(soon()).ok());
                                                    if (exchange.rank() == 0)
                                                      kill(getppid(), SIGKILL);
                                                    wait_forever();
                                                    return 0;
                                                  });
                                              return inner.ok() ? 0 : 1;
                                            },
                                            {.may_die = {0}});
  EXPECT_TRUE(status.ok()) << status;
  for (const std::atomic<pid_t>& orphan : *orphans) {
    int how = 0;
    ASSERT_GT(orphan.load(), 0);
    ASSERT_EQ(waitpid(orphan.load(), &how, 0), orphan.load());
    EXPECT_TRUE(WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL);
  }
  prctl(PR_SET_CHILD_SUBREAPER, 0);
}

TEST(ProcessGroup, RefusesToForkWithOtherThreads) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP()
      << "ThreadSanitizer runs a thread of its own, so the check for other threads is disabled";
#endif
  std::atomic<bool> stop{false};
  std::thread other([&] {
    while (!stop) std::this_thread::sleep_for(milliseconds(1));
  });
  const absl::Status status = run_processes(1, [](Exchange&) { return 0; });
  stop = true;
  other.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(message_of(status), HasSubstr("2 threads"));
  EXPECT_TRUE(
      run_processes(1, [](Exchange&) { return 0; }).ok());  // a joined thread does not count
}

TEST(ProcessGroup, RefusesBadArguments) {
  EXPECT_EQ(run_processes(0, [](Exchange&) { return 0; }).code(),
            absl::StatusCode::kInvalidArgument);
  run_test_processes(1, [](Exchange& exchange) {
    const std::string long_key(Exchange::kMaxKey + 1, 'k');
    EXPECT_EQ(exchange.put(long_key, "").code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(exchange.get(0, long_key, soon()).status().code(),
              absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(exchange.get(1, "k", soon()).status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(exchange.get(-1, "k", soon()).status().code(), absl::StatusCode::kInvalidArgument);
    const std::string key(Exchange::kMaxKey, 'k');
    ASSERT_TRUE(exchange.put(key, "fits").ok());
    EXPECT_EQ(exchange.get(0, key, soon()).value_or("none"), "fits");
  });
}

TEST(ProcessGroup, AFailedExpectationInAProcessFailsTheTest) {
  // The child prints the intended failure. The test checks the status that the parent returns.
  const absl::Status status = try_test_processes(
      2, [](Exchange& exchange) { EXPECT_EQ(exchange.rank(), 0) << "intended"; });
  EXPECT_EQ(message_of(status), "rank 1 exited with code 1");
  EXPECT_TRUE(try_test_processes(2, [](Exchange&) {}).ok());
}

}  // namespace
}  // namespace cariama
