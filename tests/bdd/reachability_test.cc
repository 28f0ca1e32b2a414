// Models: files, exact numbers of states and nodes for every strategy, goals, traces, checkpoints.
#include "bdd/reachability.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bdd/bdd.h"
#include "bdd/internal/node_table.h"
#include "bdd/model_file.h"
#include "tests/bdd/bdd_test_support.h"
#include "tests/dtutils/testing/text_of.h"

namespace cariama::bdd {
namespace {

using cariama::testing::text_of;
using testing::model_path;
using testing::with_manager;

struct Anchor {
  const char* model;
  uint64_t states;
  uint64_t nodes;
};
// Sylvan 1.8.1 prints these numbers for the same files.
constexpr std::array<Anchor, 4> kAnchors{{{"anderson.4", 29'641, 5'935},
                                          {"bakery.4", 157'003, 7'187},
                                          {"collision.4", 41'465'543, 16'958},
                                          {"schedule_world.2", 1'570'340, 10'093}}};

ManagerOptions medium() {
  ManagerOptions options;
  options.table_bytes = uint64_t{16} << 20;
  options.cache_bytes = uint64_t{32} << 20;
  return options;
}

void expect_anchor(Manager& manager, const Anchor& anchor, Strategy strategy) {
  const absl::StatusOr<ModelFile> file = read_model_file(model_path(anchor.model));
  ASSERT_TRUE(file.ok()) << file.status();
  const Model model = load_model(manager, *file);
  const absl::StatusOr<ReachResult> result = reach(model, {.strategy = strategy});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->states, anchor.states) << anchor.model;
  EXPECT_EQ(result->nodes, anchor.nodes) << anchor.model;
  EXPECT_TRUE(result->complete);
  if (strategy == Strategy::kBfs && std::string(anchor.model) == "anderson.4") {
    EXPECT_EQ(result->levels, 81u);
  }
}

TEST(Reachability, SaturationReachesTheKnownNumbers) {
  for (const Anchor& anchor : kAnchors) {
    with_manager(1, medium(),
                 [&](Manager& manager) { expect_anchor(manager, anchor, Strategy::kSaturation); });
  }
}

// collision.4 takes longer than 40 s with these strategies, schedule_world.2 several seconds: both
// are left out. cariama-bdd reach computes them.
TEST(Reachability, BfsReachesTheKnownNumbers) {
  for (const size_t i : {0, 1}) {
    with_manager(1, medium(),
                 [&](Manager& manager) { expect_anchor(manager, kAnchors[i], Strategy::kBfs); });
  }
}
TEST(Reachability, ChainingReachesTheKnownNumbers) {
  for (const size_t i : {0, 1}) {
    with_manager(1, medium(), [&](Manager& manager) {
      expect_anchor(manager, kAnchors[i], Strategy::kChaining);
    });
  }
}

TEST(Reachability, JobsReachTheKnownNumbers) {
  for (const int processes : {2, 4}) {
    if (testing::kShort && processes > 2) continue;
    with_manager(processes, medium(), [](Manager& manager) {
      for (const size_t i : {0, 1}) {
        for (const Strategy strategy :
             {Strategy::kBfs, Strategy::kChaining, Strategy::kSaturation}) {
          if (testing::kShort && (i != 0 || strategy != Strategy::kSaturation)) continue;
          expect_anchor(manager, kAnchors[i], strategy);
        }
      }
    });
  }
}

// Each process of such a job knows its own part of the table only, as on a host of its own.
TEST(Reachability, JobsOfEveryKindReachTheKnownNumbers) {
  for (const testing::JobKind& kind : testing::kJobKinds) {
    SCOPED_TRACE(kind);
    ManagerOptions options = medium();
    kind.set(options);
    testing::with_job(2, kind.model, options, [&](Manager& manager) {
      expect_anchor(manager, kAnchors[0], Strategy::kSaturation);
      const bool by_owners = kind.look_ups == OperationsBy::kOwner;
      if (!testing::kShort && kind.in_flight > 1 && !by_owners) {
        expect_anchor(manager, kAnchors[0], Strategy::kBfs);
      }
      const ManagerStatistics statistics = manager.statistics();
      EXPECT_GT(statistics.owned_nodes, 1000u);
      EXPECT_GT(statistics.remote_find_or_puts, 0u);
    });
  }
}

// The table grows during the search, in all processes. A batch that finds it full is abandoned.
TEST(Reachability, ATableThatGrows) {
  ManagerOptions options = medium();
  options.table_bytes = 256 << 10;
  const auto body = [](Manager& manager) {
    expect_anchor(manager, kAnchors[0], Strategy::kSaturation);
    EXPECT_GT(manager.statistics().collections, 0u);
  };
  for (const int processes : {1, 2}) with_manager(processes, options, body);
  options.remote = true;
  for (const TaskModel model : {TaskModel::kMigrating, TaskModel::kPool}) {
    testing::with_job(2, model, options, body);
  }
}

// With a budget of 128 KiB per process, into which the diagrams of the model and of its states do
// not fit, two processes have no room for the search, and four have.
TEST(Reachability, FourProcessesHaveRoomForWhatTwoHaveNot) {
  ManagerOptions options = medium();
  options.table_bytes = options.max_table_bytes = 128 << 10;
  const auto load = [](Manager& manager) {
    const absl::StatusOr<ModelFile> file = read_model_file(model_path("anderson.4"));
    EXPECT_TRUE(file.ok()) << file.status();
    return load_model(manager, *file);
  };
  with_manager(2, options, [&](Manager& manager) {
    const Model model = load(manager);
    EXPECT_THROW((void)reach(model, {.strategy = Strategy::kBfs}), TableFull);
  });
  for (const bool remote : {false, true}) {
    if (testing::kShort && remote) continue;
    options.remote = remote;
    with_manager(4, options, [&](Manager& manager) {
      const Model model = load(manager);
      const absl::StatusOr<ReachResult> result = reach(model, {.strategy = Strategy::kBfs});
      ASSERT_TRUE(result.ok()) << result.status();
      EXPECT_EQ(result->states, kAnchors[0].states);
      EXPECT_EQ(result->nodes, kAnchors[0].nodes);
      EXPECT_GT(manager.statistics().collections, 0u);
      EXPECT_EQ(manager.statistics().table_bytes, options.max_table_bytes);
      std::vector<Bdd> all{result->reached};
      for (const Transition& one : model.transitions) all.push_back(one.relation);
      // A table is full at a load of 0.83.
      EXPECT_GT(manager.nodes(all) * NodeTable::kBucketBytes, 0.9 * options.max_table_bytes);
    });
  }
}

// Each step of a trace is a transition of its group, and the last state meets the goal.
void expect_trace(const Model& model, const std::vector<TraceStep>& trace, const Bdd& goal) {
  ASSERT_FALSE(trace.empty());
  Bdd before = model.initial;
  for (size_t i = 0; i < trace.size(); ++i) {
    std::string text;
    for (size_t integer = 0; integer < trace[i].values.size(); ++integer) {
      text += (integer == 0 ? "" : ",") + std::to_string(integer) + "=" +
              std::to_string(trace[i].values[integer]);
    }
    const absl::StatusOr<Bdd> state = model.states_of(text);
    ASSERT_TRUE(state.ok()) << state.status();
    EXPECT_EQ(state->count(model.variables), 1u);
    EXPECT_EQ(trace[i].group.has_value(), i != 0);
    if (i != 0) {
      const Transition& one = model.transitions[*trace[i].group];
      before = before.relnext(one.relation, one.variables);
    }
    EXPECT_FALSE((before & *state).is_false()) << "step " << i;
    before = *state;
  }
  EXPECT_FALSE((before & goal).is_false());
}

TEST(Goals, TracesAreShortestAndValid) {
  with_manager(1, medium(), [](Manager& manager) {
    const Model model = load_model(manager, *read_model_file(model_path("anderson.4")));
    ReachOptions options{.strategy = Strategy::kBfs};
    options.max_levels = 12;
    const Bdd near = reach(model, options)->reached;
    options.max_levels = 13;
    // A state that level 13 has added.
    options.goal = reach(model, options)->reached.minus(near).pick(model.variables);
    options.max_levels = 0;
    for (const Strategy strategy : {Strategy::kBfs, Strategy::kChaining, Strategy::kSaturation}) {
      options.strategy = strategy;
      const absl::StatusOr<ReachResult> result = reach(model, options);
      ASSERT_TRUE(result.ok());
      EXPECT_TRUE(result->goal_reached);
      EXPECT_EQ(result->trace.size(), 14u) << strategy_name(strategy);
      if (strategy == Strategy::kBfs) {
        EXPECT_EQ(result->levels, 13u);
        EXPECT_FALSE(result->complete);
      }
      expect_trace(model, result->trace, *options.goal);
    }
    options.goal = manager.constant(false);
    EXPECT_FALSE(reach(model, options)->goal_reached);
  });
}

TEST(Goals, AssignmentsAreChecked) {
  with_manager(1, medium(), [](Manager& manager) {
    const Model model = load_model(manager, *read_model_file(model_path("anderson.4")));
    EXPECT_TRUE(model.states_of("0=1,12=0").ok());
    for (const char* text : {"", "0", "=", "0=", "13=0", "0=99", "0=-1", "a=1", "0=1,", "0=1=2"}) {
      EXPECT_FALSE(model.states_of(text).ok()) << text;
    }
  });
}

// A counter of two bits that stops at 3; a second integer that is written and not read.
ModelFile counter() {
  ModelFile model;
  model.bits = {2, 1};
  with_manager(1, medium(), [&](Manager& manager) {
    const auto v = [&](uint32_t i) { return manager.variable(i); };
    const std::array<Bdd, 1> initial{~v(0) & ~v(2) & ~v(4)};
    model.initial.states = manager.store(initial);
    const std::array<Bdd, 1> step{((~v(0) & ~v(2)) & (~v(1) & v(3))) |
                                  ((~v(0) & v(2)) & (v(1) & ~v(3))) |
                                  ((v(0) & ~v(2)) & (v(1) & v(3)))};
    model.groups.push_back({{0}, {0}, manager.store(step)});
    const std::array<Bdd, 1> write{(~v(0) & ~v(1) & (v(2) ^ ~v(3))) & v(5)};
    model.groups.push_back({{0}, {1}, manager.store(write)});
  });
  return model;
}

TEST(Deadlocks, AreFoundWithATrace) {
  with_manager(1, medium(), [](Manager& manager) {
    const Model model = load_model(manager, counter());
    for (const Strategy strategy : {Strategy::kBfs, Strategy::kChaining, Strategy::kSaturation}) {
      const absl::StatusOr<ReachResult> result =
          reach(model, {.strategy = strategy, .deadlocks = true});
      ASSERT_TRUE(result.ok());
      EXPECT_EQ(result->states, 8u);
      EXPECT_EQ(result->deadlocks->count(model.variables), 2u);  // the counter is 3
      EXPECT_EQ(*result->deadlocks, *model.states_of("0=3"));
      EXPECT_EQ(result->trace.size(), 4u);
      expect_trace(model, result->trace, *result->deadlocks);
    }
  });
}

TEST(Checkpoints, ContinueAfterALevel) {
  const std::string folder = ::testing::TempDir() + "checkpoint" + std::to_string(getpid());
  // The processes before and after the checkpoint.
  for (const auto& [before, after] : {std::pair{1, 1}, {1, 2}, {2, 1}, {2, 2}}) {
    for (const Strategy strategy : {Strategy::kBfs, Strategy::kChaining, Strategy::kSaturation}) {
      if (testing::kShort && strategy != Strategy::kSaturation) continue;
      if (before == after && strategy == Strategy::kChaining) continue;
      std::filesystem::remove_all(folder);
      with_manager(before, medium(), [&](Manager& manager) {
        const Model model = load_model(manager, *read_model_file(model_path("anderson.4")));
        ReachOptions options{.strategy = strategy, .checkpoint = folder, .checkpoint_seconds = 0};
        options.max_levels = 3;
        const absl::StatusOr<ReachResult> part = reach(model, options);
        ASSERT_TRUE(part.ok()) << part.status();
        EXPECT_FALSE(part->complete);
      });
      with_manager(after, medium(), [&](Manager& manager) {
        const Model model = load_model(manager, *read_model_file(model_path("anderson.4")));
        const absl::StatusOr<ReachResult> result =
            reach(model, {.strategy = strategy, .checkpoint = folder});
        ASSERT_TRUE(result.ok()) << result.status();
        EXPECT_EQ(result->first_level, 3u);
        EXPECT_EQ(result->states, kAnchors[0].states);
        EXPECT_EQ(result->nodes, kAnchors[0].nodes);
      });
    }
  }
  with_manager(1, medium(), [&](Manager& manager) {
    const Model model = load_model(manager, *read_model_file(model_path("anderson.4")));
    ReachOptions options{.strategy = Strategy::kBfs, .checkpoint = folder};
    EXPECT_FALSE(reach(model, options).ok()) << "the checkpoint of another strategy";
    const std::string path = folder + "/reach.checkpoint";
    const std::string bytes = text_of(path);
    std::ofstream(path, std::ios::binary) << bytes.substr(0, bytes.size() - 1);
    options.strategy = Strategy::kSaturation;
    EXPECT_FALSE(reach(model, options).ok()) << "a truncated checkpoint";
    // Magic (8), fingerprint (8), length and text of the strategy, level: a higher level would be
    // the end of the search.
    std::string changed = bytes;
    changed[8 + 8 + 4 + std::string("saturation").size()] = 100;
    std::ofstream(path, std::ios::binary) << changed;
    EXPECT_FALSE(reach(model, options).ok()) << "a changed level";
    std::filesystem::remove(path);
    std::filesystem::create_directories(path);
    EXPECT_FALSE(reach(model, options).ok()) << "a checkpoint that cannot be read";
    options.checkpoint = "/proc/no";
    EXPECT_FALSE(reach(model, options).ok()) << "a folder that cannot be written";
  });
  std::filesystem::remove_all(folder);
}

// Each process measures whether a checkpoint is due. In this test, only rank 1 measures that it is
// due, after the first level.
TEST(Checkpoints, AreWrittenByAllProcessesOrNone) {
  const std::string folder = ::testing::TempDir() + "checkpoint" + std::to_string(getpid());
  std::filesystem::remove_all(folder);
  with_manager(2, medium(), [&](Manager& manager) {
    const Model model = load_model(manager, counter());
    ReachOptions options{
        .strategy = Strategy::kBfs, .checkpoint = folder, .checkpoint_seconds = 0.5};
    options.progress = [&](const ReachProgress& one) {
      if (manager.rank() == 1 && one.level == 1) {
        std::this_thread::sleep_for(std::chrono::seconds(1));
      }
    };
    const absl::StatusOr<ReachResult> result = reach(model, options);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_TRUE(result->complete);
    EXPECT_EQ(result->states, 8u);
  });
  std::filesystem::remove_all(folder);
}

TEST(Progress, IsReportedAndDrawn) {
  with_manager(1, medium(), [](Manager& manager) {
    const Model model = load_model(manager, counter());
    std::vector<uint64_t> levels;
    ReachOptions options{.strategy = Strategy::kBfs};
    options.progress = [&](const ReachProgress& one) { levels.push_back(one.level); };
    const absl::StatusOr<ReachResult> result = reach(model, options);
    ASSERT_TRUE(result.ok());
    EXPECT_EQ(levels.size(), result->levels);
    EXPECT_EQ(result->history.back().states, 8u);
    const std::string svg = progress_svg("a < b & c", result->history);
    EXPECT_NE(svg.find("a &lt; b &amp; c"), std::string::npos);
    EXPECT_NE(svg.find("<polyline"), std::string::npos);
    // 8 states, in less than 4 decades: the axis has a mark for each.
    for (const char* const mark : {">1e0<", ">1e1<", ">1e2<", ">1e3<", ">1e4<"}) {
      EXPECT_NE(svg.find(mark), std::string::npos) << mark;
    }
    EXPECT_EQ(progress_svg("empty", {}).substr(0, 4), "<svg");
    // More states than a double can count.
    std::vector<ReachProgress> history = result->history;
    history.back().states = ExactCount(1) << 4000;
    const std::string large = progress_svg("large", history);
    EXPECT_EQ(large.find("inf"), std::string::npos) << large;
    EXPECT_EQ(large.find("nan"), std::string::npos) << large;
  });
}

TEST(Queens, KnownNumbers) {
  for (const int processes : {1, 2}) {
    with_manager(processes, medium(), [](Manager& manager) {
      constexpr std::array<uint64_t, 8> kPlacements{1, 0, 0, 2, 10, 4, 40, 92};
      for (uint32_t n = 1; n <= (manager.size() == 1 ? 8u : 5u); ++n) {
        std::vector<uint32_t> squares;
        for (uint32_t i = 0; i < n * n; ++i) squares.push_back(i);
        EXPECT_EQ(queens(manager, n).count(manager.cube(squares)), kPlacements[n - 1]);
      }
    });
  }
}

TEST(Queens, RefuseBoardsOfTooManyRows) {
  with_manager(1, medium(), [](Manager& manager) {
    for (const uint32_t n : {0u, 97u, 65'536u, 4'294'967'295u}) {
      EXPECT_THROW((void)queens(manager, n), std::invalid_argument) << n;
    }
  });
}

TEST(Models, WithoutVariablesAreRefused) {
  Model model;
  model.bits = {1};
  EXPECT_EQ(model.states_of("0=1").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THROW((void)find_trace(model, {}, {}), std::invalid_argument);
  EXPECT_THROW((void)find_deadlocks(model, {}), std::invalid_argument);
  EXPECT_EQ(reach(model, {}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Models, WithIntegersOfMoreThan64BitsAreRefused) {
  with_manager(1, medium(), [](Manager& manager) {
    Model model = load_model(manager, counter());
    model.bits[0] = 65;
    model.state_bits = 100;
    EXPECT_EQ(model.states_of("0=1").status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(reach(model, {}).status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THROW((void)model.values(model.initial), std::invalid_argument);
    model.bits[0] = 1;
    model.first_bit.clear();
    EXPECT_EQ(model.states_of("0=1").status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(reach(model, {}).status().code(), absl::StatusCode::kInvalidArgument);
  });
}

TEST(ModelFiles, AreReadAndWrittenExactly) {
  for (const Anchor& anchor : kAnchors) {
    const std::string bytes = text_of(model_path(anchor.model));
    const absl::StatusOr<ModelFile> model = parse_model(bytes);
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_EQ(format_model(*model), bytes) << anchor.model;
  }
}

TEST(ModelFiles, EveryTruncationIsAnError) {
  const std::string bytes = format_model(counter());
  ASSERT_TRUE(parse_model(bytes).ok());
  for (size_t size = 0; size < bytes.size(); ++size) {
    const absl::Status status = parse_model(bytes.substr(0, size)).status();
    ASSERT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << size;
    EXPECT_EQ(status.message().substr(0, 5), "byte ") << status;
  }
  EXPECT_FALSE(parse_model(bytes + '\0').ok());
}

TEST(ModelFiles, ErrorsNameTheByte) {
  const std::string bytes = format_model(counter());
  const auto message = [&](size_t at, char value) {
    std::string wrong = bytes;
    wrong[at] = value;
    return std::string(parse_model(wrong).status().message());
  };
  EXPECT_EQ(message(0, 0), "byte 0: the number of integers is 0; expected 1 to 65536");
  EXPECT_EQ(message(4, 65), "byte 4: the number of bits of integer 0 is 65; expected 1 to 64");
  // Bytes 12 to 15 are the bits of the label, 16 to 19 the projection, 20 to 27 the number of
  // nodes; node 1 begins at byte 28.
  EXPECT_EQ(message(20, 127), "byte 20: 127 nodes do not fit into the file");
  EXPECT_NE(message(28, 5).find("byte 28: node 1 comes before its son"), std::string::npos);
  EXPECT_NE(message(35, 0x40).find("byte 28: node 1 is a leaf"), std::string::npos);
  EXPECT_NE(message(33, 1).find("byte 28: node 1 has unknown bits"), std::string::npos);
}

// Changed bytes lead to an error or to a model that can be loaded.
TEST(ModelFiles, RandomChangesDoNotCrash) {
  const std::string bytes = format_model(counter());
  std::mt19937_64 random(5);
  int accepted = 0;
  for (int i = 0; i < 10000; ++i) {
    std::string changed = bytes;
    changed[random() % changed.size()] = static_cast<char>(random());
    const absl::StatusOr<ModelFile> model = parse_model(changed);
    if (!model.ok()) continue;
    ++accepted;
    const absl::StatusOr<ModelFile> again = parse_model(format_model(*model));
    ASSERT_TRUE(again.ok());
  }
  EXPECT_GT(accepted, 0);
}

}  // namespace
}  // namespace cariama::bdd
