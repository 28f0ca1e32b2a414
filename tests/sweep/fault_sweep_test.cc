// The sweep of faults: at each step of each protocol, one process of a job of three is killed,
// stopped for longer than the lease, forks, or loses an operation. The steps are events of the
// trace (dtutils/trace.h), so the product needs no hooks but the observer of these events.
//
// Asserted of each job: it ends within 90 s; each UNAVAILABLE names the victim, and each
// DEADLINE_EXCEEDED some rank, and both a remedy (dtutils/internal/peer_remedy.h); the survivors
// exchange all their calls afterwards, and finish
// finalize(); they have as many descriptors as before; a stopped process that continues ends its
// program; no process remains (run_processes()).
//
// Less is asserted where the survivors may lose each other, too: after a lost operation an error
// names a process of the job, and one process at least finishes finalize(). If the victim is killed
// or stops while the fabrics are created, the survivors end, some of them without a fabric.
//
// Each job prints a row. With CARIAMA_SWEEP_TABLE=FILE the rows are appended to a file, from which
// tests/sweep/matrix writes the matrix in docs/reliability-tests.md.
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "dsfabric/future.h"
#include "dsfabric/send_call.h"
#include "dtutils/fault/fault_device.h"
#include "dtutils/internal/peer_remedy.h"
#include "dtutils/internal/trace_observer.h"
#include "dtutils/trace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "riutils/messenger.h"
#include "tests/dsfabric/testing/local_job.h"
#include "tests/dsfabric/testing/process_job.h"
#include "tests/dtutils/contract/harness.h"
#include "tests/dtutils/testing/process_test.h"
#include "tests/dtutils/testing/text_of.h"
#include "tests/sweep/testing/phases.h"
#include "tests/tasks/task_test_support.h"

namespace cariama::testing {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

enum class Fault : uint8_t { kKill, kStop, kFork, kLostOperation };
constexpr std::string_view name_of(Fault fault) {
  switch (fault) {
    case Fault::kKill:
      return "kill";
    case Fault::kStop:
      return "stop";
    case Fault::kFork:
      return "fork";
    case Fault::kLostOperation:
      return "lost_operation";
  }
  return "";
}

// Processes of an emulated machine get little processor time.
milliseconds lease_on(const TransportCase& transport) {
  return milliseconds(transport.base == Transport::kVerbs ? 5000 : 2000);
}
constexpr milliseconds kCreation{5000};  // the time limit for the creation of a fabric

// ---- In the victim ------------------------------------------------------------------------------

struct Cell {
  Fault fault;
  std::string step;  // "category: name"
  TransportCase transport;
  std::shared_ptr<FaultControl> control{};  // of this process's device
  bool in_task = false;
};
const Cell* armed = nullptr;
SweepBoard* armed_board = nullptr;

// A task must not fork (docs/tasks.md): the child would run on the same stack.
pid_t spawn_program() {
  pid_t child = -1;
  char name[] = "true";
  char* const arguments[] = {name, nullptr};
  const int error = posix_spawn(&child, "/bin/true", nullptr, nullptr, arguments, environ);
  return error == 0 ? child : -1;
}

void strike() {
  switch (armed->fault) {
    case Fault::kKill:
      kill(getpid(), SIGKILL);
      pause();
      break;
    case Fault::kStop:
      // Rank 0 continues the process after this word is set, and may have ended already.
      if (!armed_board->survivors_ended) kill(getpid(), SIGSTOP);
      break;
    case Fault::kFork: {
      const pid_t child = armed->in_task ? spawn_program() : fork();
      if (child == 0) {
        execl("/bin/true", "true", nullptr);
        _exit(127);
      }
      int status = -1;
      EXPECT_TRUE(child > 0 && waitpid(child, &status, 0) == child && status == 0) << status;
      break;
    }
    case Fault::kLostOperation:
      armed->control->fail_next(CompletionStatus::kRetryExceeded);
      break;
  }
}

void observe(const char* category, const char* name) {
  const size_t length = std::char_traits<char>::length(category);
  const std::string_view step = armed->step;
  if (step.substr(0, length) != category || step.substr(length + 2) != name) return;
  if (!armed_board->reached.exchange(true)) strike();
}

// Continues the victim until it has ended its program: it may be about to stop.
void continue_victim(SweepBoard& board) {
  board.survivors_ended = true;
  static_cast<void>(wait_until(
      [&] {
        kill(board.victim, SIGCONT);
        return board.victim_ended.load();
      },
      deadline_after(milliseconds(30'000))));
}

void arm(const Cell& cell, SweepBoard& board, const std::string& folder) {
  board.victim = getpid();
  armed = &cell;
  armed_board = &board;
  must(start_trace(folder + "/trace-%p.json"));
  internal::set_trace_observer(observe);
}

// ---- A process of a job -------------------------------------------------------------------------

// Returns the files to which the descriptors of this process refer. Leaves out four kinds of
// descriptors that a process keeps until it ends:
// the executable (read by absl::Symbolize() for the report of a crash), the monitor of mappings
// (userfaultfd and its epoll), and the datagram socket of diagnostics that are printed once for
// each host.
std::vector<std::string> descriptors() {
  const auto executable = std::filesystem::read_symlink("/proc/self/exe");
  std::vector<std::string> files;
  bool is_monitored = false;
  for (const auto& file : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;  // the descriptor of the iterator
    const auto target = std::filesystem::read_symlink(file.path(), gone);
    int type = 0;
    socklen_t length = sizeof type;
    const int descriptor = std::stoi(file.path().filename().string());
    if (getsockopt(descriptor, SOL_SOCKET, SO_TYPE, &type, &length) != 0) type = 0;
    const bool is_monitor = target == "anon_inode:[userfaultfd]";
    is_monitored |= is_monitor;
    if (gone || target == executable || type == SOCK_DGRAM || is_monitor) continue;
    files.push_back(target.string());
  }
  if (is_monitored) {
    const auto epoll = std::find(files.begin(), files.end(), "anon_inode:[eventpoll]");
    if (epoll != files.end()) files.erase(epoll);
  }
  return files;
}

// Returns the number of mappings of shared memory.
size_t shared_mappings() {
  std::ifstream maps("/proc/self/maps");
  size_t count = 0;
  for (std::string line; std::getline(maps, line);) {
    count += line.find("/memfd:") != std::string::npos ? 1 : 0;
  }
  return count;
}

// Each error about a process tells the user what to do.
void expect_remedy(const absl::Status& status) {
  const std::string text(status.message());
  for (int known = 0; known <= static_cast<int>(internal::PeerRemedy::kLast); ++known) {
    const auto remedy = internal::peer_remedy(static_cast<internal::PeerRemedy>(known));
    if (text.find(remedy) != std::string::npos) return;
  }
  ADD_FAILURE() << "no remedy of peer_remedy.h: " << status;
}

// An error that a survivor, or a process whose operation was lost, may get.
void expect_named(const absl::Status& status, Fault fault) {
  if (status.ok()) return;
  // A process that has lost its connection to one process may live on in the eyes of another one.
  const bool late =
      (fault == Fault::kStop || fault == Fault::kLostOperation) && absl::IsDeadlineExceeded(status);
  EXPECT_TRUE(absl::IsUnavailable(status) || late) << status;
  // Two survivors may wait for each other, and only one of them for the victim: whose deadline is
  // the first depends on the load.
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(late || fault == Fault::kLostOperation ? "rank " : "rank 1"));
  EXPECT_NE(fault, Fault::kFork) << status;
  expect_remedy(status);
}

// The two survivors call each other: every call runs once, in order.
void expect_intact(Fabric& fabric, ThreadContext& self) {
  constexpr int kCalls = 1000;
  const uint32_t other = 2 - fabric.rank();
  static int next = 0;
  static int wrong = 0;
  RDMAMessenger messenger(self, fabric.thread_of(other), {});
  for (int i = 0; i < kCalls; ++i) {
    must(messenger.call([i] { wrong += next++ == i ? 0 : 1; }));
  }
  must(messenger.shutdown(soon()));
  EXPECT_TRUE(fabric.wait([] { return next == kCalls; }, soon())) << next;
  EXPECT_EQ(wrong, 0);
}

FabricOptions options_of(const SweepPhase& phase, Cell& cell, int rank) {
  FabricOptions options;
  if (cell.fault == Fault::kStop) {
    options.lease = lease_on(cell.transport);
    if (phase.name == "create") options.timeout = kCreation;
  }
  if (cell.transport.fault || cell.transport.base != Transport::kShm) {
    options.device = must(open_device({.transport = cell.transport.base}));
  }
  if (cell.transport.fault) {
    cell.control = std::make_shared<FaultControl>();
    options.device =
        make_fault_device(std::move(options.device),
                          FaultOptions::benign(static_cast<uint64_t>(rank) + 1), cell.control);
  }
  return options;
}

void run_member(Exchange& exchange, const SweepPhase& phase, Cell& cell, SweepBoard& board) {
  const bool is_victim = exchange.rank() == static_cast<int>(kSweepVictim);
  const bool ends_victim = cell.fault == Fault::kKill || cell.fault == Fault::kStop;
  const std::vector<std::string> files = descriptors();
  const size_t mappings = shared_mappings();
  {
    const FabricOptions options = options_of(phase, cell, exchange.rank());
    auto created =
        fabric_of_group(exchange, options, [&](Bootstrap& job, internal::Broker::Handler handler) {
          return internal::make_socket_broker(job, std::move(handler),
                                              deadline_after(options.timeout));
        });
    if (!created.ok()) {
      if (!is_victim) expect_named(created.status(), cell.fault);
      return;
    }
    std::unique_ptr<Fabric> fabric = *std::move(created);
    if (cell.transport.base == Transport::kShm) {
      EXPECT_GT(shared_mappings(), mappings);
    }
    SweepMember member{*fabric, must(fabric->init_thread(0)), board};
    const absl::Status status = phase.run(member);
    ++board.phase_ended;
    if (is_victim && board.reached && ends_victim) return;  // was stopped, and is cut off
    if (phase.name == "create" && cell.fault == Fault::kStop) {
      // Another survivor may wait for the victim's part of the creation, and end without a fabric.
      // No process is connected to the victim, so none observes its lease.
      const absl::Status ended = fabric->finalize(deadline_after(kCreation));
      EXPECT_TRUE(ended.ok() || absl::IsUnavailable(ended) || absl::IsDeadlineExceeded(ended))
          << ended;
      return;
    }
    if (phase.name != "finalize" || cell.fault == Fault::kLostOperation) {
      // Each process stays until all have arrived, because the others consider a process that
      // leaves failed.
      const auto is_lost = [&] { return !fabric->peer_status(kSweepVictim).ok(); };
      EXPECT_TRUE(fabric->wait_polling(
          [&] { return board.phase_ended == kSweepProcesses || is_lost(); }, soon()));
      // The victim may reach the step only now: another process may need it to end its phase.
      if (is_victim && board.reached && ends_victim) return;
      expect_named(status, cell.fault);
      if (ends_victim && board.reached) {
        EXPECT_TRUE(fabric->wait(is_lost, soon()));
        expect_named(fabric->peer_status(kSweepVictim), cell.fault);
      }
      if (!is_victim && cell.fault != Fault::kLostOperation) expect_intact(*fabric, *member.self);
    }
    member.self.reset();
    const absl::Status ended = fabric->finalize(soon());
    if (ended.ok()) ++board.finalized;
    if (cell.fault == Fault::kLostOperation) {
      expect_named(ended, cell.fault);
      if (is_victim && board.reached) {
        EXPECT_GE(cell.control->injected(cariama::Fault::kFailedOperation), 1u);
      }
    } else if (!is_victim || !board.reached) {
      must(ended);
    }
  }
  if (is_victim) return;
  EXPECT_THAT(descriptors(), ::testing::SizeIs(files.size()));
  EXPECT_EQ(shared_mappings(), mappings);
}

// ---- The test -----------------------------------------------------------------------------------

milliseconds time_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - begin);
}

using Parameters = std::tuple<size_t, Fault, std::string>;  // phase, fault, transport

class FaultSweepBase : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = "/tmp/cariama-sweep-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // Runs `member` in three processes, the victim with the fault armed.
  absl::Status run(const Cell& cell, SweepBoard& board,
                   const std::function<void(Exchange&)>& member) {
    RunOptions options;
    options.timeout = milliseconds(90'000);
    options.grace = milliseconds(30'000);
    if (cell.fault == Fault::kKill) options.may_die = {static_cast<int>(kSweepVictim)};
    return try_test_processes(
        static_cast<int>(kSweepProcesses),
        [&](Exchange& exchange) {
          const bool is_victim = exchange.rank() == static_cast<int>(kSweepVictim);
          if (is_victim) arm(cell, board, folder_);
          member(exchange);
          if (is_victim) {
            internal::set_trace_observer(nullptr);
            static_cast<void>(stop_trace());
            board.victim_ended = true;
          }
          if (exchange.rank() == 0 && cell.fault == Fault::kStop) continue_victim(board);
        },
        options);
  }

  // Which tasks are stolen depends on the scheduling of the processes: a job may not reach a step
  // of theirs, and then ends without a fault.
  static void repeat_until_reached(const std::function<void(SweepBoard&)>& run_job) {
    bool reached = false;
    for (int i = 0; i < 20 && !reached; ++i) {
      Shared<SweepBoard> board;
      run_job(*board);
      reached = board->reached;
    }
    EXPECT_TRUE(reached) << "the phase has no such step";
  }

  // Runs a job in which the fault occurs at the step.
  void run_cell(const SweepPhase& phase, Cell cell) {
    SCOPED_TRACE(cell.step);
    const int failed_before = failed_parts();
    const auto begin = std::chrono::steady_clock::now();
    repeat_until_reached([&](SweepBoard& board) {
      const absl::Status status =
          run(cell, board, [&](Exchange& exchange) { run_member(exchange, phase, cell, board); });
      EXPECT_TRUE(status.ok()) << status;
      EXPECT_TRUE(board.victim_ended || (cell.fault == Fault::kKill && board.reached));
      // A process that the others have excluded does not finish, nor does one without a fabric.
      const bool all = !board.reached || cell.fault == Fault::kFork;
      const bool none = phase.name == "create" && cell.fault != Fault::kLostOperation;
      // The third process may hear from both ends of a lost connection that the other one is dead.
      const uint32_t least = cell.fault == Fault::kLostOperation ? 1 : 2;
      EXPECT_GE(board.finalized, all ? 3u : none ? 0u : least);
    });
    print_sweep_row(phase.name, cell.step, name_of(cell.fault), cell.transport.name,
                    failed_parts() != failed_before, time_since(begin));
  }

  // Runs the cells of the phase at the steps that `steps` returns.
  void run_phase(const Parameters& parameters,
                 std::vector<std::string_view> (*steps)(const SweepPhase& phase)) {
    const auto& [index, fault, name] = parameters;
    const TransportCase transport = transport_case(name);
    if (const std::string why = reason_to_skip(transport); !why.empty()) GTEST_SKIP() << why;
    const SweepPhase& phase = sweep_phases()[index];
    for (const std::string_view step : steps(phase)) {
      run_cell(phase, {fault, std::string(step), transport});
    }
  }

  std::string folder_;
};

class FaultSweep : public FaultSweepBase, public ::testing::WithParamInterface<Parameters> {};

TEST_P(FaultSweep, EndsAtEachStep) {
  run_phase(GetParam(), [](const SweepPhase& phase) { return phase.steps; });
}

// One step of each phase.
class FaultSelection : public FaultSweepBase, public ::testing::WithParamInterface<Parameters> {};

TEST_P(FaultSelection, EndsAtOneStep) {
  run_phase(GetParam(), [](const SweepPhase& phase) { return std::vector{phase.selected}; });
}

std::string name_of_case(const ::testing::TestParamInfo<Parameters>& info) {
  const auto& [index, fault, transport] = info.param;
  return std::string(sweep_phases()[index].name) + "_" + std::string(name_of(fault)) + "_" +
         transport;
}

INSTANTIATE_TEST_SUITE_P(Of, FaultSweep,
                         ::testing::Combine(::testing::Range(size_t{0}, sweep_phases().size()),
                                            ::testing::Values(Fault::kKill, Fault::kStop,
                                                              Fault::kFork),
                                            ::testing::Values("shm", "fault_shm", "verbs")),
                         name_of_case);

std::vector<size_t> phases_named(const std::vector<std::string_view>& names) {
  std::vector<size_t> phases;
  for (size_t i = 0; i < sweep_phases().size(); ++i) {
    if (std::ranges::count(names, sweep_phases()[i].name) != 0) phases.push_back(i);
  }
  return phases;
}
// The phases below always run over soft-RoCE. They take half a minute in the virtual machine; the
// whole sweep takes many minutes.
INSTANTIATE_TEST_SUITE_P(
    OfDeaths, FaultSelection,
    ::testing::Combine(::testing::ValuesIn(phases_named(
                           {"create", "calls", "one_sided", "broadcast", "collectives", "lock",
                            "pool", "table", "search", "search_random", "finalize"})),
                       ::testing::Values(Fault::kKill), ::testing::Values("verbs")),
    name_of_case);
INSTANTIATE_TEST_SUITE_P(OfForks, FaultSelection,
                         ::testing::Combine(::testing::ValuesIn(phases_named({"calls"})),
                                            ::testing::Values(Fault::kFork),
                                            ::testing::Values("verbs")),
                         name_of_case);
INSTANTIATE_TEST_SUITE_P(OfStops, FaultSelection,
                         ::testing::Combine(::testing::ValuesIn(phases_named({"one_sided"})),
                                            ::testing::Values(Fault::kStop),
                                            ::testing::Values("verbs")),
                         name_of_case);
INSTANTIATE_TEST_SUITE_P(
    OfOperations, FaultSelection,
    ::testing::Combine(::testing::ValuesIn(phases_named({"calls", "collectives"})),
                       ::testing::Values(Fault::kLostOperation), ::testing::Values("fault_verbs")),
    name_of_case);

// After a lost operation two live processes have no connection, and both are connected to the third
// one. One-sided calls, locks, pools and searches then wait for a process that others consider
// alive, until their deadlines or for ever. So these phases are left out, and so are "create" and
// "finalize": no operation follows their steps, so that none would be lost.
INSTANTIATE_TEST_SUITE_P(
    OfOperations, FaultSweep,
    ::testing::Combine(::testing::ValuesIn(phases_named({"calls", "broadcast", "collectives",
                                                         "table", "table_by_owner"})),
                       ::testing::Values(Fault::kLostOperation),
                       ::testing::Values("fault_shm", "fault_verbs")),
    name_of_case);

// Tasks need no fabric. After a death run() returns UNAVAILABLE in the other processes, which then
// continue (tasks/runtime.h). A stopped worker blocks the other workers until it continues, so that
// fault is left out.
class TaskSweep : public FaultSweepBase, public ::testing::WithParamInterface<Fault> {};

TEST_P(TaskSweep, EndsAtEachStep) {
  for (const std::string_view step : sweep_task_steps()) {
    SCOPED_TRACE(std::string(step));
    const int failed_before = failed_parts();
    Cell cell{GetParam(), std::string(step), transport_case("shm"), nullptr, true};
    const std::string errors = folder_ + "/errors";
    const auto begin = std::chrono::steady_clock::now();
    repeat_until_reached([&](SweepBoard& board) {
      std::filesystem::remove(errors);
      const absl::Status status = run(cell, board, [&](Exchange& exchange) {
        const int file = open(errors.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
        dup2(file, STDERR_FILENO);
        close(file);
        const absl::Status ended = run_sweep_tasks(exchange, board);
        if (cell.fault != Fault::kKill || !board.reached) return must(ended);
        EXPECT_TRUE(absl::IsUnavailable(ended)) << ended;
        EXPECT_THAT(ended.ToString(), HasSubstr("rank 1"));
        expect_remedy(ended);
      });
      EXPECT_TRUE(status.ok()) << status << text_of(errors);
    });
    print_sweep_row("tasks", cell.step, name_of(cell.fault), cell.transport.name,
                    failed_parts() != failed_before, time_since(begin));
  }
}

INSTANTIATE_TEST_SUITE_P(Of, TaskSweep, ::testing::Values(Fault::kKill, Fault::kFork),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace cariama::testing
