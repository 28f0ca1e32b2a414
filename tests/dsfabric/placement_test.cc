// The placement of processes, on synthetic machines.
#include "dsfabric/launcher/placement.h"

#include <string>
#include <vector>

#include "dsfabric/launcher.h"
#include "dsfabric/launcher/line_tagger.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/dtutils/testing/status_text.h"

namespace cariama::internal {
namespace {

using testing::message_of;

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Two nodes of two cores with two hardware threads each: node 0 has CPUs 0 to 3, node 1 has 4 to 7.
std::vector<Core> two_nodes() {
  auto cores = synthetic_cores("numa:2 core:2 pu:2");
  EXPECT_TRUE(cores.ok()) << cores.status();
  return cores.value_or(std::vector<Core>());
}

// The CPUs of each process.
std::vector<std::vector<int>> cpus_of(const absl::StatusOr<JobPlan>& plan) {
  EXPECT_TRUE(plan.ok()) << plan.status();
  std::vector<std::vector<int>> all;
  if (plan.ok()) {
    for (const ProcessPlan& process : plan->processes) all.push_back(process.cpus);
  }
  return all;
}

TEST(CpuTopology, FindsCoresWithTheirHardwareThreadsAndNodes) {
  const std::vector<Core> cores = two_nodes();
  ASSERT_EQ(cores.size(), 4u);
  EXPECT_THAT(cores[1].cpus, ElementsAre(2, 3));
  EXPECT_EQ(cores[1].numa_node, 0);
  EXPECT_THAT(cores[2].cpus, ElementsAre(4, 5));
  EXPECT_EQ(cores[2].numa_node, 1);
}

TEST(CpuTopology, ThisMachineHasTheCoreThatWeRunOn) {
  const auto cores = usable_cores();
  ASSERT_TRUE(cores.ok()) << cores.status();
  ASSERT_FALSE(cores->empty());
  cpu_set_t allowed;
  ASSERT_EQ(sched_getaffinity(0, sizeof allowed, &allowed), 0);
  int usable = 0;
  for (const Core& core : *cores) {
    for (const int cpu : core.cpus) {
      EXPECT_TRUE(CPU_ISSET(cpu, &allowed)) << cpu;
      ++usable;
    }
  }
  EXPECT_EQ(usable, CPU_COUNT(&allowed));
}

TEST(Plan, BindNoneBindsNothing) {
  EXPECT_THAT(cpus_of(plan_job(2, 1, Binding::kNone, {}, two_nodes(), {})),
              ElementsAre(IsEmpty(), IsEmpty()));
}

TEST(Plan, BindCoreGivesEachThreadACore) {
  EXPECT_THAT(
      cpus_of(plan_job(4, 1, Binding::kCore, {}, two_nodes(), {})),
      ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3), ElementsAre(4, 5), ElementsAre(6, 7)));
  const auto plan = plan_job(2, 2, Binding::kCore, {}, two_nodes(), {});
  EXPECT_THAT(cpus_of(plan), ElementsAre(ElementsAre(0, 1, 2, 3), ElementsAre(4, 5, 6, 7)));
  EXPECT_EQ(plan->warning, "");
}

TEST(Plan, MoreThreadsThanCoresShareCoresWithAWarning) {
  const auto plan = plan_job(5, 1, Binding::kCore, {}, two_nodes(), {});
  EXPECT_THAT(cpus_of(plan).back(), ElementsAre(0, 1));
  EXPECT_THAT(plan->warning, HasSubstr("there are 4 cores, fewer than the threads to bind"));
  const auto wide = plan_job(1, 9, Binding::kCore, {}, two_nodes(), {});
  EXPECT_THAT(cpus_of(wide), ElementsAre(ElementsAre(0, 1, 2, 3, 4, 5, 6, 7)));
  EXPECT_NE(wide->warning, "");
}

TEST(Plan, BindNumaSpreadsProcessesInBlocks) {
  const auto plan = plan_job(3, 1, Binding::kNuma, {}, two_nodes(), {});
  EXPECT_THAT(cpus_of(plan), ElementsAre(ElementsAre(0, 1, 2, 3), ElementsAre(0, 1, 2, 3),
                                         ElementsAre(4, 5, 6, 7)));
  EXPECT_EQ(plan->processes[2].place.numa_node, 1);
}

TEST(Plan, ZoneEndpointGoesThroughAllPairsNodeByNode) {
  const std::vector<Endpoint> endpoints{{"rxe0", 1}, {"rxe1", 2}};
  const std::vector<Place> places = zone_endpoint_places(two_nodes(), endpoints);
  EXPECT_THAT(places, ElementsAre(Place{0, "rxe0", 1}, Place{0, "rxe1", 2}, Place{1, "rxe0", 1},
                                  Place{1, "rxe1", 2}));
  EXPECT_THAT(cpus_of(plan_job(4, 1, Binding::kNone, places, two_nodes(), endpoints)),
              ElementsAre(ElementsAre(0, 1, 2, 3), ElementsAre(0, 1, 2, 3), ElementsAre(4, 5, 6, 7),
                          ElementsAre(4, 5, 6, 7)));
  // With --bind core, each gets its own cores within the node.
  EXPECT_THAT(
      cpus_of(plan_job(4, 1, Binding::kCore, places, two_nodes(), endpoints)),
      ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3), ElementsAre(4, 5), ElementsAre(6, 7)));
  EXPECT_THAT(zone_endpoint_places(two_nodes(), {}), ElementsAre(Place{0, "", 0}, Place{1, "", 0}));
}

TEST(Plan, MissingNodesAndDevicesAreNamed) {
  const std::vector<Endpoint> endpoints{{"rxe0", 1}};
  const auto refusal = [&](const Place& place) {
    const auto plan = plan_job(1, 1, Binding::kNone, {place}, two_nodes(), endpoints);
    EXPECT_EQ(plan.status().code(), absl::StatusCode::kNotFound);
    return message_of(plan.status());
  };
  EXPECT_THAT(refusal({2, "", 0}), HasSubstr("rank 0 is placed on NUMA node 2"));
  EXPECT_THAT(refusal({2, "", 0}), HasSubstr("node 0, 1 only"));
  EXPECT_THAT(refusal({0, "mlx5_0", 0}), HasSubstr("device mlx5_0, which has no active port"));
  EXPECT_THAT(refusal({0, "rxe0", 2}), HasSubstr("device rxe0:2"));
  EXPECT_TRUE(plan_job(1, 1, Binding::kNone, {{0, "rxe0", 0}}, two_nodes(), endpoints).ok());
}

TEST(PlaceFile, IsParsed) {
  const auto places = parse_place_file(
      "# rank node device\n"
      "1 1 rxe1:2   # the second\n"
      "\n"
      "\t0   0\trxe0\r\n"
      "2 1",
      3);
  ASSERT_TRUE(places.ok()) << places.status();
  EXPECT_THAT(*places, ElementsAre(Place{0, "rxe0", 0}, Place{1, "rxe1", 2}, Place{1, "", 0}));
}

TEST(PlaceFile, HasToEnd) {
  const absl::Status refusal =
      launch({.processes = 2, .place = "/dev/zero", .command = {"true"}}).status();
  EXPECT_EQ(refusal.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(message_of(refusal), HasSubstr("/dev/zero is longer than 1 MiB"));
}

TEST(PlaceFile, NamesTheLineThatIsWrong) {
  const auto refusal = [](std::string_view text) {
    const auto places = parse_place_file(text, 2);
    EXPECT_EQ(places.status().code(), absl::StatusCode::kInvalidArgument) << text;
    return message_of(places.status());
  };
  EXPECT_THAT(refusal("0 0\n0 1\n"), HasSubstr("line 2: rank 0 was placed before"));
  EXPECT_THAT(refusal("0 0\n2 0\n"), HasSubstr("line 2: there is no rank 2 in a job of 2"));
  EXPECT_THAT(refusal("0 0\n"), HasSubstr("no line for rank 1"));
  EXPECT_THAT(refusal("0\n"), HasSubstr("line 1: '0' is not understood"));
  EXPECT_THAT(refusal("0 -1\n"), HasSubstr("line 1"));
  EXPECT_THAT(refusal("0 0 rxe0 more\n"), HasSubstr("line 1"));
  EXPECT_THAT(refusal("0 0 rxe0:0\n"), HasSubstr("'rxe0:0' is not a device"));
  EXPECT_THAT(refusal("0 0 :1\n"), HasSubstr("':1' is not a device"));
  EXPECT_THAT(refusal("zero 0\n"), HasSubstr("write RANK NODE [DEVICE[:PORT]]"));
}

TEST(LineTagger, TagsWholeLinesForAnySplitOfTheInput) {
  const std::string text = "one\n\ntwo\nrest";
  for (size_t piece = 1; piece <= text.size(); ++piece) {
    LineTagger tagger("[7] ");
    std::string out;
    for (size_t at = 0; at < text.size(); at += piece) tagger.append(text.substr(at, piece), out);
    EXPECT_EQ(out, "[7] one\n[7] \n[7] two\n");
    tagger.finish(out);
    EXPECT_EQ(out, "[7] one\n[7] \n[7] two\n[7] rest\n");
  }
}

TEST(LineTagger, CutsALineThatNeverEnds) {
  LineTagger tagger("> ");
  std::string out;
  tagger.append(std::string(LineTagger::kLongestLine + 1, 'x'), out);
  EXPECT_EQ(out.size(), 2 + LineTagger::kLongestLine + 1);
  tagger.append("\n", out);
  EXPECT_EQ(out.substr(out.size() - 4), "> x\n");
  // A line of exactly the maximum length is not split.
  LineTagger exact("");
  std::string whole;
  exact.append(std::string(LineTagger::kLongestLine, 'y') + "\nz\n", whole);
  EXPECT_EQ(whole, std::string(LineTagger::kLongestLine, 'y') + "\nz\n");
}

}  // namespace
}  // namespace cariama::internal
