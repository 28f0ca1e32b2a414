#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <new>
#include <stdexcept>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "bdd/bdd.h"
#include "bdd/files.h"
#include "bdd/internal/engine.h"
#include "bdd/internal/index_map.h"
#include "bdd/internal/node_reader.h"
#include "bdd/internal/node_table.h"
#include "bdd/internal/request.h"
#include "dht/agreement.h"
#include "dtutils/error.h"
#include "dtutils/wait.h"
#include "tasks/exceptions.h"
#include "tasks/internal/check_options.h"
#include "tasks/pool.h"
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

// Time in which all processes begin to create the manager, and in which they destroy it. The steps
// between have the deadline of ManagerOptions::timeout: another process may need long to clear its
// part of a large table, or to compute an operation.
constexpr std::chrono::seconds kPatience{120};

// A worker creates as many tasks for thieves as there are processes, but at most this number,
// before it computes operations in its batch, which offers no tasks. The tasks that are stolen
// first are the largest. Each step that creates a task waits for its own look-ups, so fewer are
// better.
constexpr size_t kMostSpareTasks = 4;

// If a part of the table is not mapped, rank 0 alone loads diagrams with so many nodes, and sends
// the edges of their roots to the other processes: that takes less time than look-ups of all nodes
// in every process.
constexpr size_t kLoadedByRank0 = 256;

constexpr std::string_view kNoMemory = "no memory for the live nodes";

absl::Status check(const ManagerOptions& options) {
  if (options.in_flight == 0 || options.in_flight > TableAccessOptions::kMaxInFlight) {
    return absl::InvalidArgumentError(absl::StrCat("bdd: in_flight is ", options.in_flight,
                                                   "; choose 1 to ",
                                                   TableAccessOptions::kMaxInFlight));
  }
  constexpr uint64_t kMost = ManagerOptions::kMostBytes;
  if (options.cache_bytes > kMost) {
    return absl::InvalidArgumentError(
        absl::StrCat("bdd: cache_bytes is ", options.cache_bytes, "; choose at most ", kMost));
  }
  if (options.timeout.count() < 0 || options.timeout > tasks::kMostTimeout) {
    return absl::InvalidArgumentError(absl::StrCat("bdd: timeout is ", options.timeout.count(),
                                                   " ms; choose 0, which is no limit, to 100 "
                                                   "years"));
  }
  if (options.table_bytes >= 4096 && options.max_table_bytes >= options.table_bytes &&
      options.max_table_bytes <= kMost) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("bdd: table_bytes is ", options.table_bytes, " and max_table_bytes is ",
                   options.max_table_bytes,
                   "; choose at least 4096, no less for the limit, and at most ", kMost));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Manager>> Manager::create(const ManagerOptions& options) {
  if (absl::Status status = check(options); !status.ok()) return status;
  auto table = new_table(options, nullptr, options.table_bytes, false);
  if (!table.ok()) return table.status();
  return std::unique_ptr<Manager>(new Manager(
      options, {}, nullptr, std::make_unique<Engine>(*std::move(table), options.cache_bytes)));
}

absl::StatusOr<std::unique_ptr<Manager>> Manager::create(TaskRuntime& runtime, Collectives& all,
                                                         const ManagerOptions& options) {
  return create(Workers{&runtime, nullptr}, all, options);
}
absl::StatusOr<std::unique_ptr<Manager>> Manager::create(TaskPool& pool, Collectives& all,
                                                         const ManagerOptions& options) {
  return create(Workers{nullptr, &pool}, all, options);
}
absl::StatusOr<std::unique_ptr<Manager>> Manager::create(Collectives& all,
                                                         const ManagerOptions& options) {
  return create(Workers{}, all, options);
}
absl::StatusOr<std::unique_ptr<Manager>> Manager::create(Workers workers, Collectives& all,
                                                         const ManagerOptions& options) {
  absl::Status usable = check(options);
  const bool has_tasks = workers.runtime != nullptr || workers.pool != nullptr;
  if (usable.ok() && has_tasks && internal::worker_engine != nullptr) {
    usable = absl::FailedPreconditionError("bdd: this process has a manager of a job already");
  }
  if (absl::Status agreed = cariama::agree(
          all, usable, "bdd: no manager", std::min(wait_limit(options), deadline_after(kPatience)));
      !agreed.ok()) {
    return name_option(options, agreed);
  }
  auto table = new_table(options, &all, options.table_bytes, false);
  if (!table.ok()) return table.status();
  register_exception<internal::NoRoom>();
  const size_t cache_bytes = std::max<size_t>(options.cache_bytes, size_t{64} << 10);
  auto memory =
      internal::HostMemory::create(all, (*table)->first_mapped(),
                                   cache_bytes + OperationCache::kHeaderBytes, wait_limit(options));
  if (!memory.ok()) {
    // Every process returns such an error, so every process frees its part of the table.
    if (!absl::IsDeadlineExceeded(memory.status())) {
      static_cast<void>(
          (*table)->destroy(std::min(wait_limit(options), deadline_after(kPatience))));
    }
    return name_option(options, memory.status());
  }
  auto engine = memory->bytes().empty()
                    ? std::make_unique<Engine>(*std::move(table), cache_bytes)
                    : std::make_unique<Engine>(*std::move(table), *std::move(memory));
  engine->use = cariama::internal::FabricUse(all.fabric(), "a bdd::Manager");
  if (engine->table->is_remote() && options.in_flight > 1) {
    const bool alone = !has_tasks || all.fabric().size() == 1;
    const size_t spare_tasks = std::min<size_t>(all.fabric().size(), kMostSpareTasks);
    engine->batch = std::make_unique<internal::Batch>(*engine, alone ? 0 : spare_tasks);
  }
  std::unique_ptr<Manager> manager(new Manager(options, workers, &all, std::move(engine)));
  if (has_tasks) internal::worker_engine = manager->engine_.get();
  return manager;
}

Manager::Manager(const ManagerOptions& options, Workers workers, Collectives* all,
                 std::unique_ptr<Engine> engine)
    : options_(options),
      workers_(workers),
      all_(all),
      engine_(std::move(engine)),
      roots_(new internal::Roots{.manager = this}),
      exceptions_(std::uncaught_exceptions()) {
  roots_->all.push_back({kFalse, 1, true, false});  // the places of the constants are never free
  roots_->all.push_back({kTrue, 1, true, true});
}

Manager::~Manager() {
  engine_->use.end();
  roots_->manager = nullptr;
  if (roots_->objects == 0) delete roots_;
  if (internal::worker_engine == engine_.get()) internal::worker_engine = nullptr;
  const bool late = absl::IsDeadlineExceeded(lost_);
  if (all_ == nullptr || (engine_->table == nullptr && !late)) return;
  // After an error in this process only, the others do not call the collective destroy(), and may
  // still use the memory of this process: it is not freed. Nor is it if a process was late.
  const bool alone = !lost_.ok() || std::uncaught_exceptions() > exceptions_;
  if (!alone &&
      engine_->table->destroy(std::min(wait_limit(options_), deadline_after(kPatience))).ok())
    return;
  engine_->cache_memory.abandon();
}

Deadline Manager::wait_limit(const ManagerOptions& options) {
  return options.timeout.count() <= 0 ? kForever : deadline_after(options.timeout);
}

absl::Status Manager::name_option(const ManagerOptions& options, const absl::Status& result) {
  if (!absl::IsDeadlineExceeded(result) || options.timeout.count() <= 0) return result;
  return make_error(absl::StatusCode::kDeadlineExceeded, error_scope(result),
                    std::string(result.message()),
                    "raise ManagerOptions::timeout (cariama-bdd --timeout) if that process needs "
                    "more time for an operation; then start the job again");
}

Engine& Manager::engine() const {
  if (!lost_.ok()) throw std::runtime_error(std::string(lost_.message()));
  return *engine_;
}

uint32_t Manager::place_of(const Bdd& operand) const {
  if (&operand.owner() != this) {
    throw std::invalid_argument("bdd: an operand belongs to another manager");
  }
  return operand.place_;
}

absl::Status Manager::end_if_late(const absl::Status& result) const {
  if (absl::IsDeadlineExceeded(result)) lost_ = name_option(options_, result);
  return absl::IsDeadlineExceeded(result) ? lost_ : result;
}

void Manager::lose(const char* what, const absl::Status& cause) {
  if (lost_.ok()) lost_ = absl::UnavailableError(absl::StrCat(what, cause.message()));
  throw std::runtime_error(std::string(lost_.message()));
}

absl::Status Manager::agree(const absl::Status& mine, std::string_view what, uint64_t value) const {
  if (all_ == nullptr) return mine;
  if (absl::IsDeadlineExceeded(lost_)) return lost_;
  const absl::Status agreed = cariama::agree(*all_, mine, what, wait_limit(options_), value);
  // `mine` may have the code of a late process, too.
  return agreed == mine ? agreed : end_if_late(agreed);
}

template <typename T>
absl::Status Manager::broadcast_from_rank_0(T& value) const {
  if (absl::IsDeadlineExceeded(lost_)) return lost_;
  return end_if_late(all_->broadcast(value, 0, wait_limit(options_)));
}

absl::StatusOr<uint64_t> Manager::value_of_rank_0(uint64_t mine) const {
  if (all_ == nullptr) return mine;
  if (absl::Status sent = broadcast_from_rank_0(mine); !sent.ok()) return sent;
  return mine;
}

absl::StatusOr<std::unique_ptr<NodeTable>> Manager::new_table(const ManagerOptions& options,
                                                              Collectives* all, uint64_t bytes,
                                                              bool long_probes) {
  if (all == nullptr) return NodeTable::create(bytes);
  auto table = NodeTable::create(*all,
                                 {.bytes = bytes,
                                  .remote = options.remote,
                                  .long_probes = long_probes,
                                  .in_flight = options.in_flight,
                                  .look_ups = options.look_ups},
                                 wait_limit(options));
  if (!table.ok()) return name_option(options, table.status());
  return table;
}

Bdd Manager::hold(Edge edge, bool even) {
  std::vector<internal::Roots::Root>& all = roots_->all;
  if (is_constant(edge)) {
    const uint32_t place = edge == kTrue ? 1 : 0;
    ++all[place].references;
    return {roots_, place};
  }
  if (roots_->free.empty()) {
    if (all.size() == all.capacity()) all.reserve(2 * all.size());
    roots_->free.reserve(all.capacity());  // Bdd::release() must not allocate
    all.push_back({edge, 1, even, false});
    return {roots_, static_cast<uint32_t>(all.size() - 1)};
  }
  const uint32_t place = roots_->free.back();
  roots_->free.pop_back();
  all[place] = {edge, 1, even, false};
  return {roots_, place};
}

void Manager::require_even(const Bdd& operand, const char* role) {
  internal::Roots::Root& root = roots_->all[place_of(operand)];
  if (root.even) return;
  for (const StoredNode& node : store({&operand, 1}).nodes) {
    const uint64_t variable = node.b >> 40;
    if (variable % 2 == 0) continue;
    throw std::invalid_argument(absl::StrCat(
        "bdd: ", role, " of a step depend on the odd variable ", variable,
        ": states are over even variables, and 2b + 1 is the value of 2b after the step"));
  }
  root.even = true;
}

bool Manager::is_cube(const Bdd& function) {
  internal::Roots::Root& root = roots_->all[place_of(function)];
  // A cube has no marked edge but that to true, and no low edge but that to false.
  const auto leads_on = [](uint64_t to) { return ((to & kMark) != 0) == is_constant(to); };
  if (!root.cube && leads_on(root.edge)) {
    const StoredDiagrams stored = store({&function, 1});
    root.cube = std::all_of(stored.nodes.begin(), stored.nodes.end(), [&](const StoredNode& node) {
      return (node.b & kIndexMask) == 0 && leads_on(node.a);
    });
  }
  return root.cube;
}

uint32_t Manager::place_of_cube(const Bdd& operand) {
  if (is_cube(operand)) return operand.place_;
  throw std::invalid_argument(
      "bdd: the variables of an operation are no conjunction of variables: use Manager::cube()");
}

Edge Manager::attempt(const Request& request) {
  const auto edge_of = [&](const internal::Operand& operand) {
    return roots_->all[operand.place].edge ^ operand.mark;
  };
  const Instruction instruction{request.action, request.variable, edge_of(request.a),
                                edge_of(request.b), edge_of(request.c)};
  engine().is_full = false;
  if (all_ == nullptr) return internal::execute_here(engine(), instruction);
  const absl::StatusOr<Edge> result = attempt_in_job(instruction);
  if (result.ok()) return *result;
  throw std::runtime_error(std::string(end_if_late(result.status()).message()));
}

absl::StatusOr<Edge> Manager::attempt_in_job(const Instruction& instruction) {
  if (workers_.pool != nullptr) {
    return workers_.pool->run<&internal::execute_in_pool>(instruction);
  }
  if (workers_.runtime != nullptr) {
    return workers_.runtime->run([instruction] { return internal::execute_as_task(instruction); });
  }
  // The other processes wait in value_of_rank_0().
  return value_of_rank_0(rank() == 0 ? internal::execute_here(engine(), instruction) : kNoEdge);
}

void Manager::set_groups(std::span<const Transition> transitions, bool sorted) {
  std::vector<Group> groups;
  for (const Transition& one : transitions) {
    (void)place_of(one.relation);
    const Edge cube = roots_->all[place_of(one.variables)].edge;
    // A group that reads and writes nothing does not change a state.
    if (one.relation.is_false() || is_constant(cube)) continue;
    groups.push_back({one.relation.edge(), cube, engine().variable(cube), 0});
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

template <typename Attempt>
void Manager::with_room(Attempt attempt) {
  for (bool collected = false; !attempt();) {
    const uint64_t bytes = engine().table->bytes();
    const bool grow = bytes < std::bit_floor(options_.max_table_bytes);
    // At the largest size, an operation gets one more attempt after a collection.
    if (!grow && collected) {
      throw TableFull(
          absl::StrCat("bdd: the diagrams do not fit into the node table of ", bytes,
                       " bytes; raise ManagerOptions::max_table_bytes (cariama-bdd --memory)"));
    }
    collected = !grow;
    make_room(grow);
  }
}

Bdd Manager::execute(const Request& request, std::span<const Transition> transitions) {
  (void)engine();
  Edge result = kNoEdge;
  with_room([&] {
    // A collection changes all edges, those of the groups too.
    if (request.over_groups()) set_groups(transitions, request.action == Action::kSaturate);
    result = attempt(request);
    return result != kNoEdge;
  });
  const bool quantifies = request.action == Action::kExists || request.action == Action::kAndExists;
  const bool steps = request.over_groups() || request.action == Action::kNext ||
                     request.action == Action::kPrevious;
  const bool even =
      is_even(request.a.place) &&
      (steps || (is_even(request.b.place) && (quantifies || is_even(request.c.place))));
  return hold(result ^ request.result_mark, even);
}

void Manager::make_room(bool grow) {
  StoredDiagrams live;
  const absl::Status stored = status_of(kNoMemory, [&] {
    std::vector<Edge> edges;
    for (const internal::Roots::Root& root : roots_->all) edges.push_back(root.edge);
    live = store_edges(edges);
    return absl::OkStatus();
  });
  const uint64_t before = engine().table->bytes();
  if (const absl::Status all = agree(stored, "bdd"); !all.ok()) {
    (void)engine();  // throws if a process was late
    // Several processes may have failed, and each one has its own error. If all of them lack memory
    // the table is intact, else a process has failed, and its part of the table is lost.
    const absl::Status intact =
        agree(absl::IsResourceExhausted(stored) ? absl::OkStatus() : stored, "bdd");
    if (!intact.ok()) lose("bdd: the node table is lost: ", intact);
    throw TableFull(absl::StrCat("bdd: the node table of ", before,
                                 " bytes is full, and cannot be collected: ", all.message()));
  }
  const uint64_t after =
      grow ? std::min(4 * before, std::bit_floor(options_.max_table_bytes)) : before;
  // All processes restore the table, or none: the steps of both are collective.
  const absl::Status moved = agree(replace_table(after, false, live), "bdd");
  if (!moved.ok()) {
    (void)engine();  // throws if a process was late
    // The nodes have fitted into a table of the old size. In a job they are now put in another
    // order, so some nodes may be farther from their home than before.
    const absl::Status restored = agree(replace_table(before, true, live), "bdd");
    if (!restored.ok()) lose("bdd: all diagrams are lost in a collection: ", restored);
  }
  engine_->groups.clear();
  ++engine_->group_set;
  ++collections_;
  if (!moved.ok() && grow) {
    throw TableFull(absl::StrCat("bdd: the node table of ", before,
                                 " bytes is full, and cannot be enlarged to ", after,
                                 " bytes: ", moved.message(),
                                 ". Set ManagerOptions::max_table_bytes (cariama-bdd --memory) to "
                                 "a size for which there is memory"));
  }
}

absl::Status Manager::replace_table(uint64_t bytes, bool long_probes, const StoredDiagrams& live) {
  Engine& engine = *engine_;
  // The old table is freed before the new one is made: both need not fit into memory. In a job, its
  // end is collective, so no process reads it any more.
  if (engine.table != nullptr) {
    look_ups_before_ += engine.table->look_ups();  // 0 after an earlier destroy()
    absl::Status freed = end_if_late(engine.table->destroy(wait_limit(options_)));
    if (!freed.ok()) return freed;
    engine.table.reset();
  }
  const absl::Status cleared = status_of(kNoMemory, [&] {
    // In a job: before the new table, whose creation is collective.
    if (engine.cache_memory.bytes().empty() || engine.cache_memory.is_leader()) {
      engine.cache.clear();
    }
    return absl::OkStatus();
  });
  if (absl::Status all = agree(cleared, "bdd: no operation cache"); !all.ok()) return all;
  auto table = new_table(options_, all_, bytes, long_probes);
  if (!table.ok()) {
    if (absl::IsDeadlineExceeded(table.status())) lost_ = table.status();
    return table.status();
  }
  engine.table = *std::move(table);
  std::vector<Edge> moved;
  const absl::Status loaded = status_of(kNoMemory, [&] {
    return load_edges(live, moved) ? absl::OkStatus()
                                   : absl::ResourceExhaustedError("the live nodes do not fit");
  });
  if (absl::Status all = agree(loaded, "bdd: no collection"); !all.ok()) return all;
  for (size_t i = 0; i < roots_->all.size(); ++i) roots_->all[i].edge = moved[i];
  return absl::OkStatus();
}

void Manager::collect() { make_room(false); }

StoredDiagrams Manager::store_edges(std::span<const Edge> edges) const {
  StoredDiagrams result;
  IndexMap numbers;
  const auto number_of = [&](Edge edge) {
    const uint64_t index = edge & kIndexMask;
    return index == 0 ? edge & kMark : *numbers.find(index) | (edge & kMark);
  };
  const internal::NodeReader nodes(*engine().table, edges);
  std::vector<uint64_t> path;
  for (const Edge root : edges) {
    if (!is_constant(root)) path.push_back(root & kIndexMask);
    while (!path.empty()) {
      const uint64_t index = path.back();
      if (numbers.find(index) != nullptr) {
        path.pop_back();
        continue;
      }
      const Node node = nodes.read(index);
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
  const bool remote = engine_->table->is_remote();
  const bool shared = remote && diagrams.nodes.size() >= kLoadedByRank0;
  std::vector<Edge> of_number(diagrams.nodes.size() + 1, kFalse);
  const auto edge_of = [&](uint64_t reference) {
    return of_number[reference & kIndexMask] ^ (reference & kMark);
  };
  bool has_room = true;
  if (remote && (!shared || rank() == 0)) {
    try {
      has_room = load_together(diagrams, of_number);
    } catch (...) {
      // Send edges also after a failure, because the other processes wait for them.
      std::vector<Edge> none(diagrams.roots.size(), kFalse);
      if (shared) (void)broadcast_edges(none, false);
      throw;
    }
  } else if (!remote) {
    try {
      for (size_t i = 0; i < diagrams.nodes.size(); ++i) {
        const StoredNode& node = diagrams.nodes[i];
        of_number[i + 1] = engine_->make(static_cast<uint32_t>(node.b >> 40),
                                         edge_of(node.b & kIndexMask), edge_of(node.a));
      }
    } catch (const internal::NoRoom&) {
      has_room = false;
    }
  }
  std::vector<Edge> roots;
  for (const uint64_t root : diagrams.roots) roots.push_back(edge_of(root));
  if (shared) has_room = broadcast_edges(roots, has_room);
  if (has_room) edges.insert(edges.end(), roots.begin(), roots.end());
  return has_room;
}

// Sends the edges and `has_room` of rank 0 to all other processes. Returns `has_room` of rank 0.
bool Manager::broadcast_edges(std::span<Edge> edges, bool has_room) const {
  struct Part {
    std::array<Edge, 63> edges;
    uint64_t has_room;
  };
  Part part{{}, has_room};
  for (size_t first = 0; first == 0 || first < edges.size(); first += part.edges.size()) {
    const size_t count = std::min(part.edges.size(), edges.size() - first);
    std::copy_n(edges.begin() + static_cast<ptrdiff_t>(first), count, part.edges.begin());
    const absl::Status sent = broadcast_from_rank_0(part);
    if (!sent.ok()) throw std::runtime_error(std::string(sent.message()));
    std::copy_n(part.edges.begin(), count, edges.begin() + static_cast<ptrdiff_t>(first));
  }
  return part.has_room != 0;
}

// The nodes of equal height above the constant are put together, so that their look-ups overlap.
bool Manager::load_together(const StoredDiagrams& diagrams, std::vector<Edge>& of_number) {
  std::vector<uint32_t> heights(of_number.size(), 0);
  std::vector<std::vector<size_t>> of_height;
  for (size_t number = 1; number < of_number.size(); ++number) {
    const StoredNode& node = diagrams.nodes[number - 1];
    const uint32_t below = std::max(heights[node.a & kIndexMask], heights[node.b & kIndexMask]);
    heights[number] = below + 1;
    if (of_height.size() == below) of_height.emplace_back();
    of_height[below].push_back(number);
  }
  std::vector<Node> nodes;
  std::vector<uint64_t> indices;
  for (const std::vector<size_t>& numbers : of_height) {
    nodes.clear();
    for (const size_t number : numbers) {
      const StoredNode& node = diagrams.nodes[number - 1];
      const Edge low = of_number[node.b & kIndexMask];
      const Edge high = of_number[node.a & kIndexMask] ^ (node.a & kMark);
      // A stored low edge has no mark, but that of its function may have one here.
      const Edge mark = low & kMark;
      nodes.push_back(Node::of(static_cast<uint32_t>(node.b >> 40), low ^ mark, high ^ mark));
      of_number[number] = mark;
    }
    indices.resize(nodes.size());
    engine_->table->find_or_put(nodes, indices);
    for (size_t i = 0; i < numbers.size(); ++i) {
      if (indices[i] == NodeTable::kFull) return false;
      of_number[numbers[i]] ^= indices[i];
    }
  }
  return true;
}

std::vector<Bdd> Manager::load(const StoredDiagrams& diagrams) {
  (void)engine();
  std::vector<Edge> edges;
  with_room([&] { return load_edges(diagrams, edges); });
  std::vector<Bdd> result;
  result.reserve(edges.size());
  const bool even = std::all_of(diagrams.nodes.begin(), diagrams.nodes.end(),
                                [](const StoredNode& node) { return (node.b >> 40) % 2 == 0; });
  for (const Edge edge : edges) result.push_back(hold(edge, even));
  return result;
}

StoredDiagrams Manager::store(std::span<const Bdd> functions) {
  std::vector<Edge> edges;
  for (const Bdd& one : functions) edges.push_back(roots_->all[place_of(one)].edge);
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
  std::vector<Edge> edges;
  for (const Bdd& one : functions) edges.push_back(roots_->all[place_of(one)].edge);
  const internal::NodeReader nodes(*engine().table, edges);
  for (const Edge edge : edges) visit(edge);
  while (!pending.empty()) {
    const Node node = nodes.read(pending.back());
    pending.pop_back();
    visit(node.low());
    visit(node.high());
  }
  return seen.size() + 1;  // the constant
}

absl::Status Manager::save_file(std::span<const Bdd> functions, const std::string& path) {
  std::string bytes;
  append_diagrams(store(functions), bytes);
  return write_file(path, bytes);
}

absl::StatusOr<std::vector<Bdd>> Manager::load_file(const std::string& path) {
  StoredDiagrams diagrams;
  uint64_t seen = 0;
  const auto read = [&]() -> absl::Status {
    const absl::StatusOr<std::string> bytes = read_file(path);
    if (!bytes.ok()) return bytes.status();
    seen = checksum(*bytes);
    size_t offset = 0;
    absl::StatusOr<StoredDiagrams> parsed = parse_diagrams(*bytes, offset);
    if (!parsed.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": ", parsed.status().message()));
    }
    if (offset != bytes->size()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": byte ", offset, ": the file continues behind its diagrams"));
    }
    diagrams = *std::move(parsed);
    return absl::OkStatus();
  };
  const absl::Status mine = read();
  if (absl::Status all = agree(mine, "bdd: no diagrams", seen); !all.ok()) return all;
  return load(diagrams);
}

ManagerStatistics Manager::statistics() const {
  ManagerStatistics result;
  result.owned_nodes = engine().table->owned_nodes();
  result.tasks = engine_->cache.entered();
  result += look_ups_before_;
  result += engine_->table->look_ups();
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
  Bdd made = load(chain)[0];
  roots_->all[made.place_].cube = true;
  return made;
}

Rank Manager::rank() const { return all_ == nullptr ? Rank(0) : all_->fabric().rank(); }
int Manager::size() const { return all_ == nullptr ? 1 : static_cast<int>(all_->fabric().size()); }

}  // namespace cariama::bdd
