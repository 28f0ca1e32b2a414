#include "bdd/reachability.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>

#include "bdd/internal/checkpoint.h"

namespace cariama::bdd {
namespace {

// Measures the search without reports and checkpoints.
class Stopwatch {
 public:
  void start() { started_ = Clock::now(); }
  void stop() { elapsed_ += Clock::now() - started_; }
  [[nodiscard]] double seconds() const { return std::chrono::duration<double>(elapsed_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point started_{};
  Clock::duration elapsed_{};
};

// Returns true if `states` depends on state bits of the model only.
bool is_set_of_states(const Model& model, const Bdd& states) {
  if (states.manager() != model.variables.manager()) return false;
  const Bdd rest = states.exists(model.variables);
  return rest.is_false() || rest.is_true();
}

// The manager of a model. Throws std::invalid_argument if it has no variables.
Manager& manager_of(const Model& model) {
  if (Manager* const manager = model.variables.manager(); manager != nullptr) return *manager;
  throw std::invalid_argument("bdd: the model has no variables: set Model::variables");
}

// Returns the variables on which the function depends.
std::set<uint32_t> variables_of(const StoredDiagrams& diagram) {
  std::set<uint32_t> variables;
  for (const StoredNode& node : diagram.nodes) {
    variables.insert(static_cast<uint32_t>(node.b >> 40));
  }
  return variables;
}

// Returns INVALID_ARGUMENT unless the parts of the model fit together.
absl::Status check_model(const Model& model) {
  Manager* const manager = model.variables.manager();
  if (manager == nullptr || model.initial.manager() != manager) {
    return absl::InvalidArgumentError(
        "the model has no initial states, or no variables: read it from a file, or set both");
  }
  const auto store = [&](const Bdd& function) { return manager->store({&function, 1}); };
  const std::set<uint32_t> bits = variables_of(store(model.variables));
  if (!model.variables.is_cube() ||
      std::any_of(bits.begin(), bits.end(), [](auto bit) { return bit % 2 != 0; })) {
    return absl::InvalidArgumentError(
        "the variables of the model are no cube of even variables (Manager::cube())");
  }
  if (!is_set_of_states(model, model.initial)) {
    return absl::InvalidArgumentError(
        "the initial states of the model depend on a variable that is not in Model::variables");
  }
  if (absl::Status fits = model.check_bits(); !fits.ok()) return fits;
  for (size_t i = 0; i < model.transitions.size(); ++i) {
    const Transition& one = model.transitions[i];
    const std::string name = "transition " + std::to_string(i) + " of the model ";
    if (one.relation.manager() != manager || one.variables.manager() != manager) {
      return absl::InvalidArgumentError(
          name + "has no relation or no variables, or they belong to another manager");
    }
    const std::set<uint32_t> own = variables_of(store(one.variables));
    if (!one.variables.is_cube() ||
        !std::includes(bits.begin(), bits.end(), own.begin(), own.end())) {
      return absl::InvalidArgumentError(
          name + "has variables that are no cube of variables of Model::variables");
    }
    for (const uint32_t variable : variables_of(store(one.relation))) {
      if (variable >= kFirstLabelVariable || own.contains(variable & ~uint32_t{1})) continue;
      return absl::InvalidArgumentError(
          name + "has a relation over variable " + std::to_string(variable) + ", but variable " +
          std::to_string(variable & ~uint32_t{1}) + " is not in Transition::variables");
    }
  }
  return absl::OkStatus();
}

// A search between two levels.
class Search {
 public:
  Search(const Model& model, const ReachOptions& options)
      : model_(model),
        options_(options),
        manager_(*model.variables.manager()),
        reached_(model.initial),
        frontier_(model.initial) {
    for (const Transition& one : model.transitions) {
      // A transition of no variables changes no state.
      if (!one.relation.is_false() && !one.variables.is_true()) transitions_.push_back(one);
    }
    for (const Transition& one : transitions_) {
      first_variables_.push_back(one.variables.variable());
    }
    std::sort(first_variables_.begin(), first_variables_.end(), std::greater<>());
    first_variables_.erase(std::unique(first_variables_.begin(), first_variables_.end()),
                           first_variables_.end());
  }

  absl::StatusOr<ReachResult> run() {
    if (options_.goal && options_.goal->manager() != &manager_) {
      return absl::InvalidArgumentError(
          "the goal belongs to another manager than the model, or is a Bdd without a value");
    }
    if (options_.goal && !is_set_of_states(model_, *options_.goal)) {
      return absl::InvalidArgumentError(
          "the goal is not a set of states: it depends on a variable that is no state bit of the "
          "model");
    }
    std::optional<internal::CheckpointFile> file;
    if (!options_.checkpoint.empty()) {
      const bool saturation = options_.strategy == Strategy::kSaturation;
      file.emplace(options_.checkpoint, manager_, internal::model_fingerprint(model_),
                   strategy_name(options_.strategy),
                   saturation ? first_variables_.size() : std::numeric_limits<uint64_t>::max());
      if (absl::Status locked = file->lock(); !locked.ok()) return locked;
      absl::StatusOr<std::optional<internal::Checkpoint>> found = file->read();
      if (!found.ok()) return found.status();
      if (*found) {
        result_.levels = result_.first_level = (*found)->level;
        reached_ = (*found)->reached;
        frontier_ = (*found)->frontier;
      }
    }
    bool met = meets_goal(reached_);
    auto saved = std::chrono::steady_clock::now();
    while (!met && !at_end()) {
      if (options_.max_levels != 0 && result_.levels >= options_.max_levels) break;
      watch_.start();
      level();
      watch_.stop();
      ++result_.levels;
      met = meets_goal(options_.strategy == Strategy::kSaturation ? reached_ : frontier_);
      report();
      if (!file) continue;
      const std::chrono::duration<double> since = std::chrono::steady_clock::now() - saved;
      // save() is collective, and the clocks of the processes differ.
      const auto due = manager_.value_of_rank_0(since.count() > options_.checkpoint_seconds);
      if (!due.ok()) return due.status();
      if (*due == 0) continue;
      if (absl::Status status = save(*file); !status.ok()) return status;
      saved = std::chrono::steady_clock::now();
    }
    if (file) {
      if (absl::Status status = save(*file); !status.ok()) return status;
    }
    result_.complete = at_end();
    result_.goal_reached = met;
    result_.seconds = watch_.seconds();
    result_.states = reached_.count(model_.variables);
    result_.nodes = reached_.nodes();
    if (met) result_.trace = find_trace(model_, reached_, *options_.goal);
    if (options_.deadlocks && !met) {
      result_.deadlocks = find_deadlocks(model_, reached_);
      if (!result_.deadlocks->is_false()) {
        result_.trace = find_trace(model_, reached_, *result_.deadlocks);
      }
    }
    result_.reached = std::move(reached_);
    return std::move(result_);
  }

 private:
  [[nodiscard]] bool at_end() const {
    if (options_.strategy == Strategy::kSaturation) {
      return result_.levels >= first_variables_.size();
    }
    return frontier_.is_false();
  }

  void level() {
    switch (options_.strategy) {
      case Strategy::kBfs:
        frontier_ = manager_.image(frontier_, transitions_).minus(reached_);
        reached_ = reached_ | frontier_;
        break;
      case Strategy::kChaining:
        frontier_ = manager_.chain(frontier_, transitions_).minus(reached_);
        reached_ = reached_ | frontier_;
        break;
      case Strategy::kSaturation:
        reached_ = manager_.saturate(reached_, transitions_, first_variables_[result_.levels]);
        break;
    }
  }

  [[nodiscard]] bool meets_goal(const Bdd& states) const {
    return options_.goal && !(states & *options_.goal).is_false();
  }

  void report() {
    if (!options_.progress) return;
    const uint64_t new_nodes = options_.strategy == Strategy::kSaturation ? 0 : frontier_.nodes();
    result_.history.push_back({result_.levels, reached_.count(model_.variables), reached_.nodes(),
                               new_nodes, watch_.seconds()});
    options_.progress(result_.history.back());
  }

  [[nodiscard]] absl::Status save(const internal::CheckpointFile& file) const {
    return file.write({result_.levels, reached_, frontier_});
  }

  const Model& model_;
  const ReachOptions& options_;
  Manager& manager_;
  std::vector<Transition> transitions_;
  // kSaturation: the smallest variable of the transitions that a level adds, by level.
  std::vector<uint32_t> first_variables_;
  Bdd reached_;
  Bdd frontier_;  // the states that the last level has added
  Stopwatch watch_;
  ReachResult result_;
};

}  // namespace

std::string_view strategy_name(Strategy strategy) {
  switch (strategy) {
    case Strategy::kBfs:
      return "bfs";
    case Strategy::kChaining:
      return "chaining";
    case Strategy::kSaturation:
      return "saturation";
  }
  return "";
}

absl::StatusOr<ReachResult> reach(const Model& model, const ReachOptions& options) {
  if (absl::Status fits = check_model(model); !fits.ok()) return fits;
  return Search(model, options).run();
}

std::vector<TraceStep> find_trace(const Model& model, const Bdd& within, const Bdd& goal) {
  Manager& manager = manager_of(model);
  if (!is_set_of_states(model, within) || !is_set_of_states(model, goal)) {
    throw std::invalid_argument(
        "bdd: find_trace() of a function of a variable that is no state bit of the model");
  }
  // layers[i]: the states from which the goal is i steps away, and not fewer.
  std::vector<Bdd> layers{within & goal};
  Bdd seen = layers[0];
  while ((layers.back() & model.initial).is_false()) {
    Bdd layer = (manager.preimage(layers.back(), model.transitions) & within).minus(seen);
    if (layer.is_false()) return {};
    seen = seen | layer;
    layers.push_back(std::move(layer));
  }
  Bdd state = (layers.back() & model.initial).pick(model.variables);
  std::vector<TraceStep> trace{{std::nullopt, model.values(state)}};
  for (size_t i = layers.size() - 1; i-- > 0;) {
    for (size_t group = 0; group < model.transitions.size(); ++group) {
      const Transition& one = model.transitions[group];
      const Bdd next = state.relnext(one.relation, one.variables) & layers[i];
      if (next.is_false()) continue;
      state = next.pick(model.variables);
      trace.push_back({group, model.values(state)});
      break;
    }
  }
  return trace;
}

Bdd find_deadlocks(const Model& model, const Bdd& states) {
  Manager& manager = manager_of(model);
  Bdd blocked = states;
  for (const Transition& one : model.transitions) {
    // relprev() of all states returns the states in which the transition is possible.
    blocked = blocked.minus(manager.constant(true).relprev(one.relation, one.variables));
  }
  return blocked;
}

Bdd queens(Manager& manager, uint32_t n) {
  // A path of the diagram has a node for each square.
  if (n == 0 || uint64_t{n} * n > kMaxLevels) {
    throw std::invalid_argument("bdd: queens() of " + std::to_string(n) +
                                " rows: choose 1 to 96 rows");
  }
  std::vector<Bdd> squares;
  for (uint32_t i = 0; i < n * n; ++i) squares.push_back(manager.variable(i));
  Bdd all = manager.constant(true);
  for (uint32_t i = 0; i < n; ++i) {
    Bdd row = manager.constant(false);
    for (uint32_t j = 0; j < n; ++j) {
      Bdd queen = squares[i * n + j];
      for (uint32_t k = 0; k < n; ++k) {
        for (uint32_t l = 0; l < n; ++l) {
          const bool attacked = k == i || l == j || k + j == l + i || k + l == i + j;
          if (attacked && (k != i || l != j)) queen = queen.minus(squares[k * n + l]);
        }
      }
      row = row | queen;
    }
    all = all & row;
  }
  return all;
}

}  // namespace cariama::bdd
