// The bootstraps that need no launcher: single, and environment. Those for cariama-run and mpirun
// are tested in launcher_test.cc.
#include "dsfabric/bootstrap.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "dsfabric/bootstrap/handshake.h"
#include "dsfabric/bootstrap/peer_user.h"
#include "dsfabric/bootstrap/pmix_values.h"
#include "dsfabric/bootstrap/sockets.h"
#include "dsfabric/bootstrap/tcp_store.h"
#include "dsfabric/fabric.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/dsfabric/testing/job_environment.h"
#include "tests/dsfabric/testing/local_job.h"
#include "tests/dtutils/testing/process_test.h"
#include "tests/dtutils/testing/status_text.h"

namespace cariama {
namespace {

using testing::FreePort;
using testing::job_of;
using testing::message_of;
using testing::set_environment;
using testing::soon;

using namespace std::chrono_literals;  // NOLINT(google-build-using-namespace)
using internal::SocketAddress;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::run_test_processes;

// The timeout of waits that should succeed. It only prevents that a defect hangs the test.
BootstrapOptions patient() { return {.kind = {}, .timeout = 60s}; }

class BootstrapTest : public ::testing::Test {
 protected:
  BootstrapTest() { set_environment({}); }
  ~BootstrapTest() override { set_environment({}); }

  // Runs `body` in processes that have joined one job by the environment.
  static void run_job(int size, const std::function<void(Bootstrap&)>& body,
                      const std::map<std::string, std::string>& more = {},
                      const RunOptions& options = {}) {
    const FreePort port;
    run_test_processes(
        size,
        [&](Exchange& exchange) {
          auto variables = job_of(exchange.rank(), size, port);
          for (const auto& [name, value] : more) variables[name] = value;
          set_environment(variables);
          auto joined = make_bootstrap(patient());
          ASSERT_TRUE(joined.ok()) << joined.status();
          EXPECT_EQ((*joined)->kind(), BootstrapKind::kEnvironment);
          EXPECT_EQ((*joined)->rank(), exchange.rank());
          EXPECT_EQ((*joined)->size(), size);
          body(**joined);
        },
        options);
  }

  // Expects that joining with these variables fails with this code and text.
  static void expect_refusal(const std::map<std::string, std::string>& variables,
                             absl::StatusCode code, const ::testing::Matcher<std::string>& text,
                             std::chrono::milliseconds timeout = 60s) {
    set_environment(variables);
    auto joined = make_bootstrap({.kind = {}, .timeout = timeout});
    EXPECT_EQ(joined.status().code(), code) << joined.status();
    EXPECT_THAT(message_of(joined.status()), text);
  }
};

TEST_F(BootstrapTest, WithoutALauncherTheJobHasOneProcess) {
  auto joined = make_bootstrap();
  ASSERT_TRUE(joined.ok()) << joined.status();
  Bootstrap& job = **joined;
  EXPECT_EQ(job.kind(), BootstrapKind::kSingle);
  EXPECT_EQ(job.rank(), 0);
  EXPECT_EQ(job.size(), 1);
  EXPECT_EQ(job.threads(), std::nullopt);
  ASSERT_TRUE(job.put("key", "first").ok());
  ASSERT_TRUE(job.put("key", "second").ok());
  ASSERT_TRUE(job.fence(soon()).ok());
  EXPECT_EQ(job.get(0, "key", soon()).value_or("none"), "second");
  EXPECT_EQ(job.get(0, "other", soon()).status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(job.get(1, "key", soon()).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(job.put(std::string(Exchange::kMaxKey + 1, 'k'), "").code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_NE(job.secret(), (*make_bootstrap())->secret());
  ASSERT_TRUE(job.finalize(soon()).ok());
  EXPECT_EQ(job.fence(soon()).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(job.put("key", "third").code(), absl::StatusCode::kFailedPrecondition);
}

// If they were accepted, each task would be a job of its own, and the whole step would succeed.
TEST_F(BootstrapTest, SeveralTasksOfSrunWithoutPmixAreRefused) {
  set_environment({{"SLURM_STEP_NUM_TASKS", "2"}});
  const auto refused = make_bootstrap();
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(message_of(refused.status()),
              AllOf(HasSubstr("one of 2 tasks"), HasSubstr("srun --mpi=pmix")));
  set_environment({{"SLURM_STEP_NUM_TASKS", "2"}, {"CARIAMA_BOOTSTRAP", "single"}});
  EXPECT_TRUE(make_bootstrap().ok());
  // A step of one task, and the script of sbatch, may run a job of one process.
  set_environment({{"SLURM_STEP_NUM_TASKS", "1"}});
  EXPECT_TRUE(make_bootstrap().ok());
}

TEST_F(BootstrapTest, EnvironmentJobExchangesValuesBetweenAllRanks) {
  run_job(
      4,
      [](Bootstrap& job) {
        for (const size_t bytes : {0, 1, 70'000, 1'000'000}) {
          const std::string key = "k" + std::to_string(bytes);
          ASSERT_TRUE(job.put(key, std::string(bytes, static_cast<char>('a' + job.rank()))).ok());
          for (int rank = 0; rank < job.size(); ++rank) {
            auto got = job.get(rank, key, soon());
            ASSERT_TRUE(got.ok()) << got.status();
            EXPECT_TRUE(*got == std::string(bytes, static_cast<char>('a' + rank)));
          }
        }
        for (int phase = 0; phase < 20; ++phase) {
          ASSERT_TRUE(job.put("phase", std::to_string(phase)).ok());
          ASSERT_TRUE(job.fence(soon()).ok());
          const int next = (job.rank() + 1) % job.size();
          EXPECT_EQ(job.get(next, "phase", soon()).value_or("none"), std::to_string(phase));
          ASSERT_TRUE(job.fence(soon()).ok());
        }
        EXPECT_EQ(job.threads(), std::optional<uint32_t>(3));
        EXPECT_TRUE(job.finalize(soon()).ok());
        EXPECT_EQ(job.get(0, "phase", soon()).status().code(),
                  absl::StatusCode::kFailedPrecondition);
      },
      {{"CARIAMA_THREADS", "3"}});
}

TEST_F(BootstrapTest, AllHaveTheSameSecretAndEveryJobItsOwn) {
  std::string last;
  for (const std::map<std::string, std::string>& more :
       {std::map<std::string, std::string>{},
        {{"CARIAMA_JOB_SECRET", "the secret of both jobs"}},
        {{"CARIAMA_JOB_SECRET", "the secret of both jobs"}}}) {
    int pipe_ends[2];
    ASSERT_EQ(pipe(pipe_ends), 0);
    run_job(
        3,
        [&](Bootstrap& job) {
          const std::string_view secret = internal::bytes_of(job.secret());
          ASSERT_TRUE(job.put("secret", secret).ok());
          for (int rank = 0; rank < 3; ++rank) {
            EXPECT_EQ(job.get(rank, "secret", soon()).value_or("none"), secret);
          }
          if (job.rank() == 0) {
            EXPECT_EQ(write(pipe_ends[1], secret.data(), secret.size()), 32);
          }
          EXPECT_TRUE(job.finalize(soon()).ok());
        },
        more);
    std::string now(32, '\0');
    ASSERT_EQ(read(pipe_ends[0], now.data(), now.size()), 32);
    close(pipe_ends[0]);
    close(pipe_ends[1]);
    EXPECT_NE(now, last);
    last = now;
  }
}

TEST_F(BootstrapTest, TheStoreStaysUntilAllHaveLeft) {
  run_job(3, [](Bootstrap& job) {
    ASSERT_TRUE(job.put("key", "of " + std::to_string(job.rank())).ok());
    if (job.rank() == 0) {
      EXPECT_TRUE(job.finalize(soon()).ok());  // blocks: the other ranks still use the store
      return;
    }
    if (job.rank() == 2) {
      // Rank 1 reads this value after rank 0 has begun to leave and rank 2 has left.
      EXPECT_TRUE(job.finalize(soon()).ok());
      return;
    }
    EXPECT_THAT(message_of(job.fence(soon())), HasSubstr("has ended or left the job"));
    EXPECT_EQ(job.get(0, "key", soon()).value_or("none"), "of 0");
    EXPECT_EQ(job.get(2, "key", soon()).value_or("none"), "of 2");
    EXPECT_TRUE(job.finalize(soon()).ok());
  });
}

TEST_F(BootstrapTest, FinalizeOfTheStoreNamesRemainingRanksAtItsDeadline) {
  run_job(3, [](Bootstrap& job) {
    ASSERT_TRUE(job.fence(soon()).ok());  // all ranks have joined before the store ends
    if (job.rank() == 0) {
      const absl::Status left = job.finalize(deadline_after(100ms));
      EXPECT_EQ(left.code(), absl::StatusCode::kDeadlineExceeded);
      EXPECT_THAT(message_of(left), HasSubstr("rank 1, 2 did not leave"));
      return;
    }
    // The store has ended with rank 0: the waiting ranks get an error.
    const auto never = job.get(3 - job.rank(), "never", soon());
    EXPECT_EQ(never.status().code(), absl::StatusCode::kUnavailable) << never.status();
  });
}

TEST_F(BootstrapTest, ARankKilledInAFenceEndsTheFenceOfTheOthers) {
  run_job(4,
          [](Bootstrap& job) {
            if (job.rank() == 2) {
              static_cast<void>(job.fence(deadline_after(50ms)));  // counts as arrived in the fence
              raise(SIGKILL);
            }
            if (job.rank() != 3) {  // the fence still waits for rank 3
              const absl::Status fence = job.fence(soon());
              EXPECT_EQ(fence.code(), absl::StatusCode::kUnavailable) << fence;
              EXPECT_THAT(message_of(fence), HasSubstr("rank 2 has ended"));
            }
            EXPECT_EQ(job.get(2, "never", soon()).status().code(), absl::StatusCode::kUnavailable);
            EXPECT_TRUE(job.finalize(soon()).ok());
          },
          {}, {.may_die = {2}});
}

TEST_F(BootstrapTest, WithoutRankZeroJoiningEndsAtItsDeadline) {
  const FreePort port;
  expect_refusal(job_of(1, 2, port), absl::StatusCode::kDeadlineExceeded,
                 AllOf(HasSubstr("joining the job (environment): the store of rank 0 does not "
                                 "answer at 127.0.0.1:"),
                       HasSubstr("start its process if it does not run")),
                 200ms);
}

TEST_F(BootstrapTest, AFabricNamesTheRanksThatHaveNotJoined) {
  const FreePort port;
  set_environment(job_of(0, 3, port));
  FabricOptions options;
  options.timeout = 1s;
  const absl::Status missing = Fabric::create(options).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kDeadlineExceeded) << missing;
  EXPECT_THAT(message_of(missing), HasSubstr("ranks 1, 2 have not joined within 1 s: start "
                                             "each rank, or check WORLD_SIZE"));
}

TEST_F(BootstrapTest, AnotherSecretIsRefusedByTheStore) {
  const FreePort port;
  run_test_processes(2, [&](Exchange& exchange) {
    auto variables = job_of(exchange.rank(), 2, port);
    variables["CARIAMA_JOB_SECRET"] =
        exchange.rank() == 0 ? "the right secret" : "the wrong secret";
    if (exchange.rank() == 1) {
      expect_refusal(
          variables, absl::StatusCode::kPermissionDenied,
          AllOf(HasSubstr("the store of rank 0 refuses this process: it has another secret"),
                HasSubstr("CARIAMA_JOB_SECRET")));
      // An empty secret is refused, too.
      variables.erase("CARIAMA_JOB_SECRET");
      expect_refusal(variables, absl::StatusCode::kPermissionDenied, HasSubstr("another secret"));
      ASSERT_TRUE(exchange.put("refused", "").ok());
      variables["CARIAMA_JOB_SECRET"] = "the right secret";
    }
    set_environment(variables);
    auto joined = make_bootstrap(patient());
    ASSERT_TRUE(joined.ok()) << joined.status();  // a refused process may try again
    EXPECT_TRUE((*joined)->fence(soon()).ok());
    EXPECT_TRUE((*joined)->finalize(soon()).ok());
  });
}

TEST_F(BootstrapTest, AShortSecretIsRefused) {
  const FreePort port;
  auto variables = job_of(0, 2, port);
  variables["CARIAMA_JOB_SECRET"] = "15 characters..";
  expect_refusal(variables, absl::StatusCode::kInvalidArgument,
                 AllOf(HasSubstr("CARIAMA_JOB_SECRET has 15 characters, at least 16"),
                       HasSubstr("openssl rand")));
}

// Otherwise a child process, or a crash report with the environment, would contain the secret.
TEST_F(BootstrapTest, AProcessThatHasJoinedRemovesTheSecretFromItsEnvironment) {
  run_job(2,
          [](Bootstrap& job) {
            EXPECT_EQ(std::getenv("CARIAMA_JOB_SECRET"), nullptr);
            EXPECT_TRUE(job.finalize(soon()).ok());
          },
          {{"CARIAMA_JOB_SECRET", "nobody else knows it"}});
}

TEST_F(BootstrapTest, ASecondProcessOfARankIsRefused) {
  const FreePort port;
  run_test_processes(3, [&](Exchange& exchange) {
    const int rank = std::min(exchange.rank(), 1);
    if (exchange.rank() == 2) {
      ASSERT_TRUE(exchange.get(1, "joined", soon()).ok());
      expect_refusal(job_of(rank, 2, port), absl::StatusCode::kAlreadyExists,
                     HasSubstr("another process has joined as rank 1 already"));
      ASSERT_TRUE(exchange.put("refused", "").ok());
      return;
    }
    set_environment(job_of(rank, 2, port));
    auto joined = make_bootstrap(patient());
    ASSERT_TRUE(joined.ok()) << joined.status();
    ASSERT_TRUE(exchange.put("joined", "").ok());
    ASSERT_TRUE(exchange.get(2, "refused", soon()).ok());
    EXPECT_TRUE((*joined)->fence(soon()).ok());  // the first process of the rank is not affected
    EXPECT_TRUE((*joined)->finalize(soon()).ok());
  });
}

TEST_F(BootstrapTest, AJobOfAnotherSizeIsRefused) {
  const FreePort port;
  run_test_processes(2, [&](Exchange& exchange) {
    if (exchange.rank() == 1) {
      expect_refusal(
          job_of(1, 3, port), absl::StatusCode::kFailedPrecondition,
          HasSubstr("the store of rank 0 belongs to a job of 2 processes, this job has 3"));
      set_environment(job_of(1, 2, port));
    } else {
      set_environment(job_of(0, 2, port));
    }
    auto joined = make_bootstrap(patient());
    ASSERT_TRUE(joined.ok()) << joined.status();
    EXPECT_TRUE((*joined)->finalize(soon()).ok());
  });
}

TEST_F(BootstrapTest, MissingOrMalformedVariablesAreNamedWithRemedy) {
  using Variables = std::map<std::string, std::string>;
  const auto but = [](const Variables& changes) {
    Variables variables = job_of(1, 2, 4711);
    for (const auto& [name, value] : changes) variables[name] = value;
    return variables;
  };
  const auto bad = absl::StatusCode::kInvalidArgument;
  const auto lacks = absl::StatusCode::kFailedPrecondition;
  expect_refusal(but({{"RANK", "2"}}), bad,
                 HasSubstr("RANK is '2': expected a number from 0 to 1"));
  expect_refusal(but({{"RANK", "-1"}}), bad, HasSubstr("RANK"));
  expect_refusal(but({{"RANK", "one"}}), bad, HasSubstr("RANK is 'one'"));
  expect_refusal(but({{"WORLD_SIZE", "0"}}), bad, HasSubstr("WORLD_SIZE is '0'"));
  expect_refusal(but({{"MASTER_PORT", "65536"}}), bad, HasSubstr("MASTER_PORT is '65536'"));
  expect_refusal(but({{"MASTER_PORT", ""}}), lacks, HasSubstr("MASTER_PORT is not set"));
  expect_refusal(but({{"MASTER_ADDR", ""}}), lacks, HasSubstr("MASTER_ADDR is not set"));
  expect_refusal(but({{"LOCAL_RANK", "x"}}), bad, HasSubstr("LOCAL_RANK"));
  expect_refusal(but({{"MASTER_ADDR", "no such host."}}), absl::StatusCode::kNotFound,
                 HasSubstr("the host 'no such host.' has no address here"));
  expect_refusal(
      but({{"MASTER_ADDR", "198.51.100.1"}}), lacks,
      AllOf(HasSubstr("can be reached from other hosts"), HasSubstr("set CARIAMA_JOB_SECRET")));
  expect_refusal({{"CARIAMA_BOOTSTRAP", "magic"}}, bad,
                 HasSubstr("set it to local, pmix, environment or single"));
  expect_refusal({{"CARIAMA_BOOTSTRAP", "environment"}}, lacks, HasSubstr("WORLD_SIZE is not set"));
  expect_refusal({{"CARIAMA_BOOTSTRAP", "local"}}, lacks,
                 HasSubstr("start the program with cariama-run"));
  expect_refusal({{"CARIAMA_BOOTSTRAP", "pmix"}}, lacks,
                 HasSubstr("start the program with mpirun"));
  expect_refusal({{"CARIAMA_THREADS", "many"}}, bad, HasSubstr("CARIAMA_THREADS is 'many'"));
  expect_refusal({{"CARIAMA_LAUNCH_SOCKET", "x"}, {"CARIAMA_RANK", "0"}, {"CARIAMA_SIZE", "1"}},
                 bad, HasSubstr("CARIAMA_LAUNCH_SOCKET is malformed"));
}

TEST_F(BootstrapTest, AReusedDescriptorNumberIsDetected) {
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
  uint64_t cookie = 0;
  socklen_t length = sizeof cookie;
  ASSERT_EQ(getsockopt(pair[0], SOL_SOCKET, SO_COOKIE, &cookie, &length), 0);
  expect_refusal(
      {{"CARIAMA_LAUNCH_SOCKET", std::to_string(pair[0]) + ":" + std::to_string(cookie + 1)},
       {"CARIAMA_RANK", "0"},
       {"CARIAMA_SIZE", "2"}},
      absl::StatusCode::kFailedPrecondition,
      HasSubstr("the socket that cariama-run gave to this process is not open here"));
  close(pair[0]);
  close(pair[1]);
}

TEST_F(BootstrapTest, APortInUseIsNamed) {
  auto listener = internal::listen_on(*SocketAddress::parse("127.0.0.1:0"));
  ASSERT_TRUE(listener.ok());
  const std::string text = internal::bound_address(listener->get()).text();
  expect_refusal(job_of(0, 2, std::stoi(text.substr(text.rfind(':') + 1))),
                 absl::StatusCode::kAlreadyExists,
                 AllOf(HasSubstr("listening on " + text), HasSubstr("MASTER_PORT")));
}

// Raw bytes sent to a store by connections that may not belong to the job.
class StoreTest : public ::testing::Test {
 protected:
  StoreTest() : store_(internal::TcpStore::start(*SocketAddress::parse("127.0.0.1:0"), 2, key_)) {}

  FileDescriptor dial() {
    auto socket = internal::connect_to((*store_)->address(), "the store", soon());
    EXPECT_TRUE(socket.ok()) << socket.status();
    return socket.ok() ? *std::move(socket) : FileDescriptor();
  }
  // Returns everything that the store sends until it closes the connection.
  static std::string rest_of(const FileDescriptor& socket) {
    std::string all;
    char byte = 0;
    while (internal::receive_exactly(socket.get(), &byte, 1, "the store", soon()).ok()) all += byte;
    return all;
  }
  void expect_service() {
    auto socket = internal::connect_to_store({(*store_)->address()}, 1, 2, key_, soon());
    EXPECT_TRUE(socket.ok()) << socket.status();
  }

  const JobSecret key_ = internal::random_secret();
  absl::StatusOr<std::unique_ptr<internal::TcpStore>> store_;
};

TEST_F(StoreTest, OutsidersAreDroppedAndPeersAreServed) {
  ASSERT_TRUE(store_.ok()) << store_.status();
  const FileDescriptor silent = dial();
  const FileDescriptor slow = dial();
  ASSERT_TRUE(internal::send_exactly(slow.get(), "CRH1", "the store", soon()).ok());
  for (const std::string& nonsense :
       {std::string("GET / HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n"),
        std::string(internal::Hello::kBytes, '\0'), std::string(internal::Hello::kBytes, '\xff'),
        std::string(4096, 'x')}) {
    const FileDescriptor socket = dial();
    ASSERT_TRUE(internal::send_exactly(socket.get(), nonsense, "the store", soon()).ok());
    EXPECT_EQ(rest_of(socket), "");
  }
  expect_service();
}

// More silent connections than the store keeps. It drops the oldest ones.
TEST_F(StoreTest, ASilentFloodDoesNotKeepPeersOut) {
  ASSERT_TRUE(store_.ok()) << store_.status();
  std::vector<FileDescriptor> silent;
  for (int i = 0; i < 200; ++i) silent.push_back(dial());
  expect_service();
  EXPECT_EQ(rest_of(silent.front()), "");
  char byte = 0;
  EXPECT_LT(recv(silent.back().get(), &byte, 1, MSG_DONTWAIT), 0) << "dropped a new one";
}

TEST_F(StoreTest, AReplayedProofIsRefused) {
  ASSERT_TRUE(store_.ok()) << store_.status();
  // Records the proof of a valid client, and replays it.
  std::string recorded;
  for (int attempt = 0; attempt < 2; ++attempt) {
    const FileDescriptor socket = dial();
    const internal::Hello client{.service = internal::HandshakeService::kStore,
                                 .rank = 1,
                                 .size = 2,
                                 .nonce = JobSecret{}};  // the same nonce each time
    ASSERT_TRUE(internal::send_exactly(socket.get(), encode(client), "store", soon()).ok());
    std::string server(internal::Hello::kBytes, '\0');
    ASSERT_TRUE(
        internal::receive_exactly(socket.get(), server.data(), server.size(), "store", soon())
            .ok());
    if (attempt == 0) {
      const JobSecret proof =
          internal::keyed_hash(internal::bytes_of(key_), "client" + encode(client) + server);
      recorded = std::string(internal::bytes_of(proof));
    }
    ASSERT_TRUE(internal::send_exactly(socket.get(), recorded, "store", soon()).ok());
    char verdict = 0;
    ASSERT_TRUE(internal::receive_exactly(socket.get(), &verdict, 1, "store", soon()).ok());
    EXPECT_EQ(verdict, attempt == 0 ? 1 : 2);
  }
}

// Without a secret, only the user id distinguishes a job's processes from other processes of this
// host.
TEST(StoreOfOneUser, AnotherUserNeitherJoinsNorIsJoined) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to change the user id";
  constexpr uid_t kNobody = 65534;
  const JobSecret key = internal::keyed_hash("", "known to everybody");
  for (const char* loopback : {"127.0.0.1:0", "[::1]:0"}) {
    run_test_processes(2, [&](Exchange& exchange) {
      using internal::Admission;
      if (exchange.rank() == 0) {
        auto store =
            internal::TcpStore::start(*SocketAddress::parse(loopback), 3, key, Admission::kOwnUser);
        ASSERT_TRUE(store.ok()) << store.status();
        ASSERT_TRUE(exchange.put("address", (*store)->address().text()).ok());
        auto own = internal::connect_to_store({(*store)->address()}, 1, 3, key, soon(),
                                              Admission::kOwnUser);
        EXPECT_TRUE(own.ok()) << own.status();
        EXPECT_EQ(internal::user_at_other_end(own->get()), 0u);
        auto other = exchange.get(1, "other", soon());
        ASSERT_TRUE(other.ok()) << other.status();
        auto careful = internal::connect_to_store({*SocketAddress::parse(*other)}, 2, 3, key,
                                                  soon(), Admission::kOwnUser);
        EXPECT_EQ(careful.status().code(), absl::StatusCode::kPermissionDenied) << careful.status();
        EXPECT_THAT(message_of(careful.status()), HasSubstr("belongs to another user"));
        ASSERT_TRUE(exchange.fence(soon()).ok());
        return;
      }
      auto text = exchange.get(0, "address", soon());
      ASSERT_TRUE(text.ok()) << text.status();
      const SocketAddress address = *SocketAddress::parse(*text);
      ASSERT_EQ(setresuid(kNobody, kNobody, kNobody), 0);
      auto careless = internal::connect_to_store({address}, 2, 3, key, deadline_after(300ms));
      EXPECT_EQ(careless.status().code(), absl::StatusCode::kDeadlineExceeded) << careless.status();
      // For the root process, this store belongs to another user.
      auto other = internal::TcpStore::start(*SocketAddress::parse(loopback), 3, key);
      ASSERT_TRUE(other.ok()) << other.status();
      ASSERT_TRUE(exchange.put("other", (*other)->address().text()).ok());
      ASSERT_TRUE(exchange.fence(soon()).ok());
    });
  }
}

TEST(StoreClient, AServerThatDoesNotKnowTheKeyIsRefused) {
  const JobSecret key = internal::random_secret();
  // The server reflects what it receives, as rank 0: the client gets its own proof back.
  auto listener = internal::listen_on(*SocketAddress::parse("127.0.0.1:0"));
  ASSERT_TRUE(listener.ok());
  const SocketAddress address = internal::bound_address(listener->get());
  run_test_processes(2, [&](Exchange& exchange) {
    if (exchange.rank() == 1) {
      auto socket = internal::connect_to_store({address}, 1, 2, key, soon());
      EXPECT_EQ(socket.status().code(), absl::StatusCode::kPermissionDenied) << socket.status();
      EXPECT_THAT(message_of(socket.status()), HasSubstr("does not know the secret of this job"));
      return;
    }
    FileDescriptor socket;
    while (!socket.valid()) socket = internal::accept_from(listener->get());
    std::string hello(internal::Hello::kBytes, '\0');
    ASSERT_TRUE(
        internal::receive_exactly(socket.get(), hello.data(), hello.size(), "peer", soon()).ok());
    auto said = internal::decode_hello(hello);
    ASSERT_TRUE(said.ok());
    said->rank = 0;
    ASSERT_TRUE(internal::send_exactly(socket.get(), encode(*said), "peer", soon()).ok());
    std::string proof(32, '\0');
    ASSERT_TRUE(
        internal::receive_exactly(socket.get(), proof.data(), proof.size(), "peer", soon()).ok());
    ASSERT_TRUE(internal::send_exactly(socket.get(), "\1" + proof, "peer", soon()).ok());
    char byte = 0;
    EXPECT_EQ(internal::receive_exactly(socket.get(), &byte, 1, "peer", soon()).code(),
              absl::StatusCode::kUnavailable);
  });
}

TEST_F(StoreTest, AMemberThatBreaksTheProtocolIsDisconnected) {
  ASSERT_TRUE(store_.ok()) << store_.status();
  auto member = internal::connect_to_store({(*store_)->address()}, 1, 2, key_, soon());
  ASSERT_TRUE(member.ok()) << member.status();
  internal::StoreBootstrap zero(BootstrapKind::kEnvironment, (*store_)->take_own_socket(), 0, 2);
  ASSERT_TRUE(internal::send_exactly(member->get(), std::string(100, 'x'), "store", soon()).ok());
  EXPECT_EQ(rest_of(*member), "");
  const absl::Status fence = zero.fence(soon());
  EXPECT_EQ(fence.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(message_of(fence), HasSubstr("rank 1 broke the exchange"));
  EXPECT_TRUE((*store_)->wait_until_left(soon()).ok());
}

TEST(PlaceInAJob, OfPmixIsChecked) {
  using internal::check_place_in_job;
  EXPECT_EQ(check_place_in_job(0, 1), absl::OkStatus());
  EXPECT_EQ(check_place_in_job(7, 8), absl::OkStatus());
  EXPECT_EQ(check_place_in_job(INT32_MAX - 1, INT32_MAX), absl::OkStatus());
  const std::pair<uint32_t, uint32_t> impossible[] = {
      {0, 0},
      {8, 8},
      {9, 8},
      {UINT32_MAX, 8},               // PMIX_RANK_UNDEF
      {UINT32_MAX - 1, UINT32_MAX},  // PMIX_RANK_WILDCARD, and a size beyond an int
      {0, uint32_t{1} << 31}};
  for (const auto& [rank, size] : impossible) {
    const absl::Status status = check_place_in_job(rank, size);
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << rank << " of " << size;
    EXPECT_THAT(message_of(status), HasSubstr("rank " + std::to_string(rank)));
  }
}

TEST(PublishedStore, ParsesItsOwnTextFormOnly) {
  using internal::decode_published_store;
  internal::PublishedStore store{*SocketAddress::parse("10.77.0.2:4711"),
                                 internal::random_secret()};
  const std::string text = encode_published_store(store);
  const auto decoded = decode_published_store(text);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->address.text(), "10.77.0.2:4711");
  EXPECT_EQ(decoded->key, store.key);
  EXPECT_THAT(
      message_of(decode_published_store(internal::encode_no_store("no interface")).status()),
      HasSubstr("could not serve the job: no interface"));
  std::string no_digit = text;
  no_digit.back() = 'g';
  for (const std::string& malformed :
       {std::string(), std::string("10.77.0.2:4711"), text + "0", text.substr(0, text.size() - 1),
        no_digit, "nowhere" + text.substr(text.find(' '))}) {
    EXPECT_TRUE(absl::IsFailedPrecondition(decode_published_store(malformed).status()))
        << malformed;
  }
}

TEST(SocketAddress, ParsesItsOwnTextFormOnly) {
  for (const std::string text :
       {"127.0.0.1:0", "10.77.0.1:65535", "[::1]:4711", "[fe80::1]:1", "@cariama-0123456789"}) {
    auto address = SocketAddress::parse(text);
    ASSERT_TRUE(address.ok()) << address.status();
    EXPECT_EQ(address->text(), text);
  }
  for (const std::string text :
       {"", ":", "@", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:-1", "::1:80",
        "localhost:80", "[127.0.0.1]:80", "1.2.3.4.5:1", "10.0.0.1:0x10"}) {
    EXPECT_EQ(SocketAddress::parse(text).status().code(), absl::StatusCode::kInvalidArgument)
        << text;
  }
  EXPECT_FALSE(SocketAddress::parse("@" + std::string(101, 'n')).ok());
  EXPECT_TRUE(SocketAddress::parse("127.3.2.1:1")->stays_on_host());
  EXPECT_TRUE(SocketAddress::parse("[::1]:1")->stays_on_host());
  EXPECT_TRUE(SocketAddress::parse("@x")->stays_on_host());
  EXPECT_FALSE(SocketAddress::parse("10.0.0.1:1")->stays_on_host());
}

TEST(OwnAddress, IsNamedByAddressInterfaceOrNetwork) {
  for (const char* name : {"127.0.0.1", "lo", "127.0.0.0/8", "127.99.0.0/9"}) {
    auto address = internal::own_address(name);
    ASSERT_TRUE(address.ok()) << name << ": " << address.status();
    EXPECT_EQ(address->text(), "127.0.0.1:0") << name;
  }
  EXPECT_EQ(internal::own_address("198.51.100.0/24").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(internal::own_address("127.128.0.0/9").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(internal::own_address("nowhere0").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(internal::own_address("127.0.0.0/33").status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(internal::own_address("lo/8").status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace cariama
