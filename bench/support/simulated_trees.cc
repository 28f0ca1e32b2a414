#include "bench/support/simulated_trees.h"

#include <bit>
#include <cstring>

#include "bench/support/task_programs.h"

namespace cariama::bench {
namespace {

using Kind = SimulatedStep::Kind;

class Btc : public SimulatedProgram {
 public:
  Btc(int depth, int iter, int grain, SimTime cost)
      : depth_(static_cast<uint64_t>(depth)),
        iter_(static_cast<uint64_t>(iter)),
        grain_(static_cast<uint64_t>(grain)),
        cost_(cost) {}
  SimulatedFrame root() const override { return {{depth_, 0}}; }
  void step(SimulatedFrame& task, SimulatedStep& step) const override {
    const uint64_t depth = task.words[0];
    uint64_t& stage = task.words[1];
    if (depth <= grain_) {
      step.count.nodes = btc_value(static_cast<int>(depth), static_cast<int>(iter_));
      step.cost = cost_ * static_cast<int64_t>(step.count.nodes);
      step.polls = true;
      return;
    }
    if (stage == 0) {
      step.count.nodes = 1;
      step.cost = cost_;
    }
    if (stage == 3 * iter_) return;
    step.kind = stage++ % 3 == 2 ? Kind::kJoin : Kind::kFork;
    step.child = {{depth - 1, 0}};
  }

 private:
  uint64_t depth_;
  uint64_t iter_;
  uint64_t grain_;
  SimTime cost_;
};

class Uts : public SimulatedProgram {
 public:
  Uts(const UtsOptions& options, SimTime cost) : options_(options), cost_(cost) {}
  SimulatedFrame root() const override { return Range{uts_root(options_), 0, 0}.packed(); }
  void step(SimulatedFrame& task, SimulatedStep& step) const override {
    Range range = Range::unpacked(task);
    for (;;) {
      if (range.end == 0) {  // a node
        const int children = uts_children(options_, range.node);
        const auto depth = static_cast<uint64_t>(range.node.depth);
        step.count.add({1, children == 0 ? uint64_t{1} : 0, depth});
        step.cost += cost_;
        if (children == 0) return;
        range.end = children;
      } else if (range.end - range.begin == 1) {
        range = {uts_child(range.node, range.begin), 0, 0};
      } else {
        const int middle = range.begin + (range.end - range.begin) / 2;
        step.kind = Kind::kFork;
        step.child = Range{range.node, range.begin, middle}.packed();
        range.begin = middle;
        task = range.packed();
        return;
      }
    }
  }

 private:
  // The children [begin, end) of a node; if end is 0, the node itself.
  struct Range {
    UtsNode node;
    int begin;
    int end;

    [[nodiscard]] SimulatedFrame packed() const {
      SimulatedFrame frame;
      static_assert(sizeof(Range) <= sizeof frame.words);
      std::memcpy(frame.words.data(), this, sizeof *this);
      return frame;
    }
    static Range unpacked(const SimulatedFrame& frame) {
      Range range;
      std::memcpy(static_cast<void*>(&range), frame.words.data(), sizeof range);
      return range;
    }
  };

  UtsOptions options_;
  SimTime cost_;
};

class Queens : public SimulatedProgram {
 public:
  Queens(int n, int grain, SimTime cost)
      : all_((uint64_t{1} << n) - 1), n_(n), grain_(grain), cost_(cost) {}
  SimulatedFrame root() const override { return Row{0, 0, 0, 0, all_}.packed(); }
  void step(SimulatedFrame& task, SimulatedStep& step) const override {
    Row row = Row::unpacked(task);
    if (n_ - static_cast<int>(row.number) <= grain_) {
      search(row, step.count);
      step.cost = cost_ * static_cast<int64_t>(step.count.nodes);
      step.polls = true;
      return;
    }
    while (row.open != 0) {
      const int count = std::popcount(row.open);
      if (count > 1) {
        uint64_t high = row.open;
        for (int i = 0; i < count / 2; ++i) high &= high - 1;
        Row low = row;
        low.open &= ~high;
        row.open = high;
        step.kind = Kind::kFork;
        step.child = low.packed();
        task = row.packed();
        return;
      }
      ++step.count.nodes;
      step.cost += cost_;
      row = next(row, row.open);
      step.count.leaves += static_cast<int>(row.number) == n_ ? 1 : 0;
    }
  }

 private:
  // Columns and diagonals that the queens of the previous rows attack, and the columns in which
  // this task places the next queen.
  struct Row {
    uint64_t columns;
    uint64_t left;
    uint64_t right;
    uint64_t number;
    uint64_t open;

    [[nodiscard]] SimulatedFrame packed() const { return {{columns, left, right, number, open}}; }
    static Row unpacked(const SimulatedFrame& f) {
      return {f.words[0], f.words[1], f.words[2], f.words[3], f.words[4]};
    }
  };
  [[nodiscard]] Row next(const Row& row, uint64_t queen) const {
    Row below{row.columns | queen, (row.left | queen) << 1, (row.right | queen) >> 1,
              row.number + 1, 0};
    below.open = static_cast<int>(below.number) == n_
                     ? 0
                     : all_ & ~(below.columns | below.left | below.right);
    return below;
  }
  void search(const Row& row, SimulatedCount& count) const {
    for (uint64_t open = row.open; open != 0; open &= open - 1) {
      ++count.nodes;
      const Row below = next(row, open & -open);
      if (static_cast<int>(below.number) == n_) {
        ++count.leaves;
      } else {
        search(below, count);
      }
    }
  }

  uint64_t all_;
  int n_;
  int grain_;
  SimTime cost_;
};

}  // namespace

std::unique_ptr<SimulatedProgram> simulated_btc(int depth, int iter, int grain, SimTime cost) {
  return std::make_unique<Btc>(depth, iter, grain, cost);
}
std::unique_ptr<SimulatedProgram> simulated_uts(const UtsOptions& options, SimTime cost) {
  return std::make_unique<Uts>(options, cost);
}
std::unique_ptr<SimulatedProgram> simulated_queens(int n, int grain, SimTime cost) {
  return std::make_unique<Queens>(n, grain, cost);
}

}  // namespace cariama::bench
