#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <new>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "bdd/bdd.h"
#include "bdd/internal/byte_reader.h"
#include "bdd/internal/engine.h"
#include "bdd/internal/index_map.h"
#include "bdd/internal/request.h"
#include "bdd/node_table.h"
#include "dtutils/wait.h"
#include "tasks/exceptions.h"
#include "tasks/runtime.h"

namespace cariama::bdd {

using internal::Action;
using internal::Engine;
using internal::Group;
using internal::IndexMap;
using internal::Instruction;
using internal::kNoEdge;
using internal::Request;

TableFull::~TableFull() = default;

namespace {

// Time limit for the collective steps of setting up and enlarging the table.
constexpr std::chrono::seconds kPatience{120};

absl::Status check(const ManagerOptions& options) {
  if (options.table_bytes >= 4096 && options.most_table_bytes >= options.table_bytes) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("bdd: table_bytes is ", options.table_bytes, " and most_table_bytes is ",
                   options.most_table_bytes, "; choose at least 4096, and no less for the limit"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Manager>> Manager::create(const ManagerOptions& options) {
  if (absl::Status status = check(options); !status.ok()) return status;
  auto table = new_table(options, nullptr, options.table_bytes);
  if (!table.ok()) return table.status();
  return std::unique_ptr<Manager>(new Manager(
      options, nullptr, nullptr, std::make_unique<Engine>(*std::move(table), options.cache_bytes)));
}

absl::StatusOr<std::unique_ptr<Manager>> Manager::create(TaskRuntime& runtime, Collectives& all,
                                                         const ManagerOptions& options) {
  if (absl::Status status = check(options); !status.ok()) return status;
  if (internal::worker_engine != nullptr) {
    return absl::FailedPreconditionError("bdd: this process has a manager of a job already");
  }
  auto table = new_table(options, &all, options.table_bytes);
  if (!table.ok()) return table.status();
  register_exception<internal::NoRoom>();
  const size_t cache_bytes = std::max<size_t>(options.cache_bytes, size_t{64} << 10);
  auto memory = internal::HostMemory::create(all, (*table)->first_mapped(),
                                             cache_bytes + OperationCache::kHeaderBytes,
                                             deadline_after(kPatience));
  if (!memory.ok()) return memory.status();
  auto engine = memory->bytes().empty()
                    ? std::make_unique<Engine>(*std::move(table), cache_bytes)
                    : std::make_unique<Engine>(*std::move(table), *std::move(memory));
  std::unique_ptr<Manager> manager(new Manager(options, &runtime, &all, std::move(engine)));
  internal::worker_engine = manager->engine_.get();
  return manager;
}

Manager::Manager(const ManagerOptions& options, TaskRuntime* runtime, Collectives* all,
                 std::unique_ptr<Engine> engine)
    : options_(options), runtime_(runtime), all_(all), engine_(std::move(engine)) {
  roots_.push_back({kFalse, 1});  // the places of the constants are never free
  roots_.push_back({kTrue, 1});
}

Manager::~Manager() {
  if (internal::worker_engine == engine_.get()) internal::worker_engine = nullptr;
  // Without the other processes, the memory of this process's part is freed by its destructor.
  if (all_ != nullptr) (void)engine_->table->destroy(deadline_after(kPatience));
}

absl::StatusOr<std::unique_ptr<NodeTable>> Manager::new_table(const ManagerOptions& options,
                                                              Collectives* all, uint64_t bytes) {
  if (all == nullptr) return NodeTable::create(bytes);
  return NodeTable::create(*all, bytes, options.remote, deadline_after(kPatience));
}

Bdd Manager::hold(Edge edge) {
  if (is_constant(edge)) {
    const uint32_t place = edge == kTrue ? 1 : 0;
    ++roots_[place].references;
    return {this, place};
  }
  if (free_roots_.empty()) {
    roots_.push_back({edge, 1});
    return {this, static_cast<uint32_t>(roots_.size() - 1)};
  }
  const uint32_t place = free_roots_.back();
  free_roots_.pop_back();
  roots_[place] = {edge, 1};
  return {this, place};
}

void Manager::release(uint32_t place) {
  if (--roots_[place].references != 0) return;
  roots_[place].edge = kFalse;
  free_roots_.push_back(place);
}

Edge Manager::attempt(const Request& request) {
  const auto edge_of = [&](const internal::Operand& operand) {
    return roots_[operand.place].edge ^ operand.mark;
  };
  const Instruction instruction{request.action, request.variable, edge_of(request.a),
                                edge_of(request.b), edge_of(request.c)};
  if (runtime_ == nullptr) return internal::execute_here(*engine_, instruction);
  const absl::StatusOr<Edge> result =
      runtime_->run([instruction] { return internal::execute_as_task(instruction); });
  if (!result.ok()) throw std::runtime_error(std::string(result.status().message()));
  return *result;
}

void Manager::set_groups(std::span<const Transition> transitions, bool sorted) {
  std::vector<Group> groups;
  for (const Transition& one : transitions) {
    const Edge cube = one.variables.edge();
    // A group that reads and writes nothing does not change a state.
    if (one.relation.is_false() || is_constant(cube)) continue;
    groups.push_back({one.relation.edge(), cube, engine_->variable(cube), 0});
  }
  if (sorted) {
    std::stable_sort(groups.begin(), groups.end(), [](const Group& a, const Group& b) {
      return a.first_variable < b.first_variable;
    });
    for (size_t i = groups.size(); i-- > 0;) {
      const bool same =
          i + 1 < groups.size() && groups[i + 1].first_variable == groups[i].first_variable;
      groups[i].end_of_equal = same ? groups[i + 1].end_of_equal : static_cast<uint32_t>(i + 1);
    }
  }
  if (groups == engine_->groups) return;
  engine_->groups = std::move(groups);
  ++engine_->group_set;  // results of saturation in the cache are those of other groups
}

Bdd Manager::execute(const Request& request, std::span<const Transition> transitions) {
  for (bool collected = false;;) {
    // A collection changes all edges, those of the groups too.
    if (request.over_groups()) set_groups(transitions, request.action == Action::kSaturate);
    const Edge result = attempt(request);
    if (result != kNoEdge) return hold(result ^ request.result_mark);
    const bool grow = engine_->table->bytes() < std::bit_floor(options_.most_table_bytes);
    // At the largest size, an operation gets one more attempt, with nodes that are needed only.
    if (!grow && collected) throw TableFull(full_message());
    collected = !grow;
    make_room(grow);
  }
}

std::string Manager::full_message() const {
  return absl::StrCat("bdd: the diagrams do not fit into the node table of ",
                      engine_->table->bytes(),
                      " bytes; raise ManagerOptions::most_table_bytes (cariama-bdd --memory)");
}

void Manager::make_room(bool grow) {
  std::vector<Edge> edges;
  for (const Root& root : roots_) edges.push_back(root.edge);
  const StoredDiagrams live = store_edges(edges);
  uint64_t bytes = engine_->table->bytes();
  const uint64_t most = std::bit_floor(options_.most_table_bytes);
  if (grow) bytes = std::min(4 * bytes, most);
  for (;;) {
    // The old table is freed before the new one is made: both need not fit into memory. In a job,
    // its end is collective, so no process reads it any more.
    remote_before_ += engine_->table->remote_find_or_puts();
    absl::Status freed = engine_->table->destroy(deadline_after(kPatience));
    if (!freed.ok()) throw std::runtime_error(std::string(freed.message()));
    engine_->table.reset();
    if (engine_->cache_memory.bytes().empty() || engine_->cache_memory.is_leader()) {
      engine_->cache.clear();  // before the new table, whose creation is collective
    }
    auto table = new_table(options_, all_, bytes);
    if (!table.ok()) throw std::runtime_error(std::string(table.status().message()));
    engine_->table = *std::move(table);
    std::vector<Edge> moved;
    if (load_edges(live, moved)) {
      for (size_t i = 0; i < roots_.size(); ++i) roots_[i].edge = moved[i];
      break;
    }
    bytes *= 2;  // not reached while the nodes came from a table of this size
  }
  engine_->groups.clear();
  ++engine_->group_set;
  ++collections_;
}

void Manager::collect() { make_room(false); }

StoredDiagrams Manager::store_edges(std::span<const Edge> edges) const {
  StoredDiagrams result;
  IndexMap numbers;
  const auto number_of = [&](Edge edge) {
    const uint64_t index = edge & kIndexMask;
    return index == 0 ? edge & kMark : *numbers.find(index) | (edge & kMark);
  };
  std::vector<uint64_t> path;
  for (const Edge root : edges) {
    if (!is_constant(root)) path.push_back(root & kIndexMask);
    while (!path.empty()) {
      const uint64_t index = path.back();
      if (numbers.find(index) != nullptr) {
        path.pop_back();
        continue;
      }
      const Node node = engine_->table->read(index);
      const uint64_t low = node.low();
      const uint64_t high = node.high() & kIndexMask;
      const size_t before = path.size();
      if (high != 0 && numbers.find(high) == nullptr) path.push_back(high);
      if (low != 0 && numbers.find(low) == nullptr) path.push_back(low);
      if (path.size() != before) continue;  // the sons come first
      path.pop_back();
      result.nodes.push_back(
          {number_of(node.high()), uint64_t{node.variable()} << 40 | number_of(node.low())});
      numbers.insert(index, result.nodes.size());
    }
    result.roots.push_back(number_of(root));
  }
  return result;
}

bool Manager::load_edges(const StoredDiagrams& diagrams, std::vector<Edge>& edges) {
  std::vector<Edge> of_number{kFalse};
  of_number.reserve(diagrams.nodes.size() + 1);
  const auto edge_of = [&](uint64_t reference) {
    return of_number[reference & kIndexMask] ^ (reference & kMark);
  };
  try {
    for (const StoredNode& node : diagrams.nodes) {
      of_number.push_back(engine_->make(static_cast<uint32_t>(node.b >> 40),
                                        edge_of(node.b & kIndexMask), edge_of(node.a)));
    }
  } catch (const internal::NoRoom&) {
    return false;
  }
  for (const uint64_t root : diagrams.roots) edges.push_back(edge_of(root));
  return true;
}

std::vector<Bdd> Manager::load(const StoredDiagrams& diagrams) {
  std::vector<Edge> edges;
  for (bool collected = false; !load_edges(diagrams, edges);) {
    const bool grow = engine_->table->bytes() < std::bit_floor(options_.most_table_bytes);
    if (!grow && collected) throw TableFull(full_message());
    collected = !grow;
    make_room(grow);
  }
  std::vector<Bdd> result;
  result.reserve(edges.size());
  for (const Edge edge : edges) result.push_back(hold(edge));
  return result;
}

StoredDiagrams Manager::store(std::span<const Bdd> functions) {
  std::vector<Edge> edges;
  for (const Bdd& one : functions) edges.push_back(one.edge());
  return store_edges(edges);
}

uint64_t Manager::nodes(std::span<const Bdd> functions) {
  IndexMap seen;
  std::vector<uint64_t> pending;
  const auto visit = [&](Edge edge) {
    const uint64_t index = edge & kIndexMask;
    if (index == 0 || seen.find(index) != nullptr) return;
    seen.insert(index, 0);
    pending.push_back(index);
  };
  for (const Bdd& one : functions) visit(one.edge());
  while (!pending.empty()) {
    const Node node = engine_->table->read(pending.back());
    pending.pop_back();
    visit(node.low());
    visit(node.high());
  }
  return seen.size() + 1;  // the constant
}

absl::Status Manager::save_file(std::span<const Bdd> functions, const std::string& path) {
  std::string bytes;
  append_diagrams(store(functions), bytes);
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!file.flush()) return absl::UnavailableError(absl::StrCat("cannot write ", path));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Bdd>> Manager::load_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf())) {
    return absl::NotFoundError(absl::StrCat("cannot read ", path));
  }
  const std::string bytes = std::move(text).str();
  size_t offset = 0;
  const absl::StatusOr<StoredDiagrams> diagrams = parse_diagrams(bytes, offset);
  if (!diagrams.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", diagrams.status().message()));
  }
  if (offset != bytes.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": byte ", offset, ": the file continues behind its diagrams"));
  }
  return load(*diagrams);
}

ManagerStatistics Manager::statistics() const {
  ManagerStatistics result;
  result.owned_nodes = engine_->table->owned_nodes();
  result.tasks = engine_->cache.entered();
  result.remote_find_or_puts = remote_before_ + engine_->table->remote_find_or_puts();
  result.table_bytes = engine_->table->bytes();
  result.cache_bytes = engine_->cache.bytes();
  result.collections = collections_;
  return result;
}

Bdd Manager::constant(bool value) { return hold(value ? kTrue : kFalse); }

Bdd Manager::variable(uint32_t variable) {
  if (variable > kMaxVariable) throw std::out_of_range("bdd: the variable is too large");
  return load({{{uint64_t{kMark}, uint64_t{variable} << 40}}, {1}})[0];
}

Bdd Manager::cube(std::initializer_list<uint32_t> variables) {
  return cube(std::vector<uint32_t>(variables));
}

Bdd Manager::cube(std::vector<uint32_t> variables) {
  std::sort(variables.begin(), variables.end());
  variables.erase(std::unique(variables.begin(), variables.end()), variables.end());
  StoredDiagrams chain;
  uint64_t below = kTrue;
  for (size_t i = variables.size(); i-- > 0;) {
    if (variables[i] > kMaxVariable) throw std::out_of_range("bdd: the variable is too large");
    chain.nodes.push_back({below, uint64_t{variables[i]} << 40});
    below = chain.nodes.size();
  }
  chain.roots.push_back(below);
  return load(chain)[0];
}

Bdd Manager::image(const Bdd& states, std::span<const Transition> transitions) {
  return execute({.action = Action::kImage, .a = {states.place_}}, transitions);
}
Bdd Manager::preimage(const Bdd& states, std::span<const Transition> transitions) {
  return execute({.action = Action::kPreimage, .a = {states.place_}}, transitions);
}
Bdd Manager::chain(const Bdd& states, std::span<const Transition> transitions) {
  return execute({.action = Action::kChain, .a = {states.place_}}, transitions);
}
Bdd Manager::saturate(const Bdd& states, std::span<const Transition> transitions,
                      uint32_t first_variable) {
  return execute({.action = Action::kSaturate, .a = {states.place_}, .variable = first_variable},
                 transitions);
}

int Manager::rank() const { return runtime_ == nullptr ? 0 : runtime_->rank(); }
int Manager::size() const { return runtime_ == nullptr ? 1 : runtime_->size(); }

}  // namespace cariama::bdd
