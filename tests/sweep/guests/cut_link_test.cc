// The sweep of faults (../fault_sweep_test.cc) over a link that is cut: a job of two processes in
// two guests of the virtual machine (tests/rdma_vm), one in each. At a step of a protocol rank 1
// sets a network interface down:
//
//   transfers   that of the RDMA device of the job; the store of the job can still be reached
//   all         that interface, and the one over which the processes reach the store
//
// Asserted in both processes: the operation ends with UNAVAILABLE, or with INVALID_ARGUMENT if the
// device reports that the interface of this host is down, and so does peer_status(); the text names
// the other process (not asserted in the phase "finalize"); finalize() ends before its deadline. If
// the store can be reached, rank 0 finishes. An error of rank 1 says that the job ends without it
// because it has lost rank 0, or that the store has ended.
//
// Run this in two guests with two devices each; in other places the tests are skipped:
//   tests/rdma_vm/rdma-vm -n 2 -d 2 -- build/test/bin/sweep_guests_test
#include <sys/wait.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "dtutils/device.h"
#include "dtutils/internal/trace_observer.h"
#include "dtutils/trace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/dsfabric/testing/local_job.h"
#include "tests/dtutils/contract/harness.h"
#include "tests/sweep/testing/phases.h"

namespace cariama::testing {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

struct Step {
  std::string_view phase;
  std::string_view event;
};
constexpr Step kSteps[] = {
    {"calls", "dsfabric: call"},           {"one_sided", "riutils: publish: one call"},
    {"one_sided", "dsfabric: begin pull"}, {"collectives", "dsfabric: all_reduce"},
    {"table", "dht: claim key"},           {"finalize", "dsfabric: finalize"},
};

enum class Cut : uint8_t { kTransfers, kAll };

// ---- In rank 1 ----------------------------------------------------------------------------------

std::string_view armed;  // the event
Cut armed_cut = Cut::kTransfers;
std::atomic<bool> reached{false};

void set_links(std::string_view state) {
  std::string commands = "ip link set eth1 " + std::string(state);
  if (armed_cut == Cut::kAll) commands += "; ip link set eth0 " + std::string(state);
  EXPECT_EQ(std::system(commands.c_str()), 0) << commands;
}

void observe(const char* category, const char* name) {
  if (armed != std::string(category) + ": " + name) return;
  if (!reached.exchange(true)) set_links("down");
}

// ---- The job ------------------------------------------------------------------------------------

// The environment of a job whose store is in rank 0 (dsfabric/bootstrap.h). Both processes run the
// same tests in the same order, and each test has a port of its own.
void set_job(int rank) {
  static int port = 29500;
  const std::string addresses = getenv("RDMA_VM_ADDRS");
  setenv("RANK", std::to_string(rank).c_str(), 1);
  setenv("WORLD_SIZE", "2", 1);
  setenv("MASTER_ADDR", addresses.substr(0, addresses.find(',')).c_str(), 1);
  setenv("MASTER_PORT", std::to_string(port++).c_str(), 1);
  setenv("CARIAMA_JOB_SECRET", "two guests with one link", 1);
}

const SweepPhase& phase_named(std::string_view name) {
  for (const SweepPhase& phase : sweep_phases()) {
    if (phase.name == name) return phase;
  }
  throw std::runtime_error("there is no phase " + std::string(name));
}

void expect_names(const absl::Status& status, uint32_t rank) {
  const std::string text(status.message());
  EXPECT_THAT(text, HasSubstr("rank " + std::to_string(rank) + " (on node"));
  // soft-RoCE completes a transfer with a local protection error if the interface is down.
  const bool is_down = absl::IsInvalidArgument(status) &&
                       absl::StrContains(text, "that the network interface of this host is up");
  EXPECT_TRUE(absl::IsUnavailable(status) || is_down) << status;
}

using Parameters = std::tuple<Cut, Step>;
class CutLink : public ::testing::TestWithParam<Parameters> {};

TEST_P(CutLink, EndsInBothProcesses) {
  const char* const nodes = getenv("RDMA_VM_NODES");
  if (nodes == nullptr || std::string_view(nodes) != "2") {
    GTEST_SKIP() << "needs two guests with two devices each: tests/rdma_vm/rdma-vm -n 2 -d 2";
  }
  const auto& [cut, step] = GetParam();
  const int rank = std::atoi(getenv("RDMA_VM_NODE"));
  const auto other = static_cast<uint32_t>(1 - rank);
  const SweepPhase& phase = phase_named(step.phase);
  set_job(rank);
  FabricOptions options;
  options.threads = 1;
  options.device = must(open_device({.transport = Transport::kVerbs, .name = "rxe1"}));
  // A busy host may stop the guests of the virtual machine for some time.
  options.ack_timeout = milliseconds(500);
  // While the interface is down, soft-RoCE may complete none of the transfers of this process.
  options.lease = milliseconds(5000);
  const auto fabric = must(Fabric::create(options));
  SweepBoard board;
  SweepMember member{*fabric, must(fabric->init_thread(0)), board};

  if (rank == 1) {
    armed = step.event;
    armed_cut = cut;
    reached = false;
    must(start_trace("/tmp/trace-%p.json"));
    internal::set_trace_observer(observe);
  }
  const auto begin = std::chrono::steady_clock::now();
  const absl::Status status = phase.run(member);
  SCOPED_TRACE("the phase has ended with " + status.ToString());
  if (phase.name != "finalize") {
    expect_names(status, other);
    EXPECT_TRUE(fabric->wait([&] { return !fabric->peer_status(other).ok(); }, soon()));
    expect_names(fabric->peer_status(other), other);
  }
  member.self.reset();
  const absl::Status ended = fabric->finalize(soon());
  if (rank == 0 && cut == Cut::kTransfers) {
    EXPECT_EQ(ended, absl::OkStatus());
  } else if (!ended.ok()) {
    // Rank 0 has left rank 1 out, and its store may have ended.
    if (absl::StrContains(ended.message(), "which serves the exchange, has ended")) {
      EXPECT_TRUE(absl::IsUnavailable(ended)) << ended;
    } else {
      expect_names(ended, other);
    }
  }
  if (rank == 1) {
    internal::set_trace_observer(nullptr);
    static_cast<void>(stop_trace());
    EXPECT_TRUE(reached) << "the phase has no such step";
    set_links("up");
  }
  print_sweep_row(
      phase.name, step.event, cut == Cut::kAll ? "cut_all" : "cut_transfers", "two guests",
      HasFailure(),
      std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - begin));
}

std::string name_of_case(const ::testing::TestParamInfo<Parameters>& info) {
  const auto& [cut, step] = info.param;
  std::string name = std::string(step.phase) + "_" + std::string(step.event) + "_cut_" +
                     (cut == Cut::kAll ? "all" : "transfers");
  for (char& letter : name) {
    if (letter == ' ' || letter == ':') letter = '_';
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(Of, CutLink,
                         ::testing::Combine(::testing::Values(Cut::kTransfers, Cut::kAll),
                                            ::testing::ValuesIn(kSteps)),
                         name_of_case);

}  // namespace
}  // namespace cariama::testing
