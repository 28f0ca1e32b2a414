// Binary decision diagrams: Boolean functions as values.
//
//   auto manager = cariama::bdd::Manager::create({});
//   cariama::bdd::Manager& m = **manager;
//   Bdd x = m.variable(0), y = m.variable(1);
//   Bdd f = (x & y) | (~x & ~y);
//   assert(f == ~(x ^ y));                                  // equal functions are equal values
//   std::puts(f.count(m.cube({0, 1})).to_string().c_str()); // 2 assignments make f true
//
// A Manager owns the nodes of all diagrams: a table in which each function is stored once, and a
// cache of results of operations. Smaller variables are nearer to the root; the order is that of
// the numbers, and never changes.
//
// Diagrams share nodes, and nodes have no counters. When the table is full, the running operation
// is abandoned; the manager keeps the nodes that Bdd objects need, removes all others, enlarges the
// table up to ManagerOptions::max_table_bytes, and repeats the operation. So a Bdd stays valid as
// long as it exists. An Edge (edge.h) is valid until the next operation only.
//
// In a job, the table is spread over the processes (see create()). Every process then calls the
// same operations in the same order, with the same operands, like collectives; each operation runs
// as tasks on all of them, and every process gets the result. The exceptions only read nodes, so a
// process may call them alone: ~, ==, is_false(), is_true(), nodes(), count(), is_cube(),
// evaluate(), variable(), low(), high(), Manager::nodes(), store(), save_file() and statistics().
// Where nodes are in parts of the table that are not mapped, each blocks for round trips, and
// throws std::runtime_error if the owner of a node has failed.
//
// Operations throw
//   TableFull              the functions that exist do not fit into the limit, or no memory is left
//                          to enlarge the table. All diagrams stay valid.
//   std::bad_alloc         another allocation failed. All diagrams stay valid.
//   std::invalid_argument  an operand belongs to another manager or to none (Bdd), or depends on
//                          variables that the operation does not allow
//   std::out_of_range      a variable is larger than kMaxVariable
//   std::runtime_error     a process of the job failed, or all diagrams are lost, because there was
//                          no memory even for a table of the old size, or a process was later than
//                          ManagerOptions::timeout. After the last two each later operation throws
//                          it, too.
//
// In a job, all processes throw TableFull together. Any other exception may occur in one process
// only. Let it leave the scope of the manager, whose destructor then does not wait for the other
// processes, and end the process.
//
// Operations recurse once for each variable on which the operands depend, which takes about 250
// bytes of stack, and 500 bytes for steps of relations. A stack of 8 MiB suffices for a state of
// 4,096 bits together with diagrams of kMaxLevels (diagrams.h), the limit for diagrams from files.
//
// Not thread-safe: a manager and its diagrams belong to one thread at a time.
#ifndef CARIAMA_BDD_BDD_H_
#define CARIAMA_BDD_BDD_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bdd/diagrams.h"
#include "bdd/edge.h"
#include "bdd/exact_count.h"
#include "bdd/export.h"
#include "bdd/look_up_counts.h"
#include "dht/table_options.h"
#include "dsfabric/ids.h"
#include "dtutils/wait.h"

namespace cariama {
class Collectives;
class TaskPool;
class TaskRuntime;
}  // namespace cariama

namespace cariama::bdd {

class Manager;
class NodeTable;
namespace internal {
struct Engine;
struct Request;
struct Instruction;
struct Group;

// The functions of a manager that are needed. The last of the manager and its Bdd objects deletes
// this object.
struct Roots {
  struct Root {
    Edge edge;
    uint32_t references;  // number of Bdd objects
    bool even;            // known to depend on even variables only
    bool cube;            // known to be a conjunction of variables
  };
  Manager* manager;  // nullptr: destroyed
  uint64_t objects = 0;
  std::vector<Root> all{};
  std::vector<uint32_t> free{};
};
}  // namespace internal

// Thrown by operations for which the table has no room, at its largest size and without nodes that
// are not needed. The message names the option. All diagrams that existed before stay valid.
class CARIAMA_BDD_EXPORT TableFull : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  ~TableFull() override;
};

// A Boolean function. Cheap to copy: a copy shares its place in the manager. A default-constructed
// Bdd belongs to no manager. Nor does one whose manager has been destroyed, for example by
// Job::end(). Such a Bdd may be assigned to, destroyed and compared; manager() returns nullptr, and
// its other functions throw std::invalid_argument.
class CARIAMA_BDD_EXPORT Bdd {
 public:
  Bdd() = default;
  Bdd(const Bdd& other);
  Bdd(Bdd&& other) noexcept : roots_(std::exchange(other.roots_, nullptr)), place_(other.place_) {}
  Bdd& operator=(Bdd other) noexcept {
    std::swap(roots_, other.roots_);
    std::swap(place_, other.place_);
    return *this;
  }
  ~Bdd();

  [[nodiscard]] bool is_false() const { return edge() == kFalse; }
  [[nodiscard]] bool is_true() const { return edge() == kTrue; }
  // Equal functions of one manager. Constant time. A Bdd without a manager is unequal to every Bdd,
  // itself included.
  friend bool operator==(const Bdd& a, const Bdd& b) {
    return a.manager() != nullptr && a.manager() == b.manager() && a.edge() == b.edge();
  }

  [[nodiscard]] Bdd operator~() const;  // constant time
  friend CARIAMA_BDD_EXPORT Bdd operator&(const Bdd& a, const Bdd& b);
  friend CARIAMA_BDD_EXPORT Bdd operator|(const Bdd& a, const Bdd& b);
  friend CARIAMA_BDD_EXPORT Bdd operator^(const Bdd& a, const Bdd& b);
  // Returns this function without the elements of `other`: *this & ~other.
  [[nodiscard]] Bdd minus(const Bdd& other) const;
  // Returns "if *this then a else b".
  [[nodiscard]] Bdd ite(const Bdd& a, const Bdd& b) const;

  // Functions with a parameter `cube` (Manager::cube()) throw std::invalid_argument if it is no
  // conjunction of variables.

  // Returns the function that is true where *this is true for some values of the variables of
  // `cube`.
  [[nodiscard]] Bdd exists(const Bdd& cube) const;
  // Returns (*this & other).exists(cube), without the intermediate result.
  [[nodiscard]] Bdd and_exists(const Bdd& other, const Bdd& cube) const;
  // Returns this function with `by` in place of `variable`. Requires: variable <= kMaxVariable.
  [[nodiscard]] Bdd compose(uint32_t variable, const Bdd& by) const;

  // One step of a transition relation. States are over even variables; the variable 2b+1 is the
  // value of 2b after the step. `variables`: the cube of the even variables that the relation reads
  // or writes. All other variables keep their values, and need no nodes in the relation. The
  // relation may depend on more variables (labels of transitions, for example): they are
  // quantified.
  //   relnext  returns the states that the relation reaches from the states *this
  //   relprev  returns the states from which the relation reaches the states *this
  // Throws std::invalid_argument if the states depend on odd variables, or if `variables` is no
  // cube of even variables. The check reads all nodes of the states once, unless they are the
  // result of operations on functions of even variables, and those of `variables`, unless it is the
  // result of Manager::cube().
  [[nodiscard]] Bdd relnext(const Bdd& relation, const Bdd& variables) const;
  [[nodiscard]] Bdd relprev(const Bdd& relation, const Bdd& variables) const;

  // Returns the number of assignments to the variables of `cube` that make the function true.
  // Exact. Needs memory for two such numbers for each node of the function, in each process that
  // calls it. Throws std::invalid_argument if the function depends on another variable.
  [[nodiscard]] ExactCount count(const Bdd& cube) const;
  // Returns the number of nodes of the function, with the constant. An edge and its negation share
  // a node.
  [[nodiscard]] uint64_t nodes() const;
  // Returns true if the function is a conjunction of variables, none of them negated. The constant
  // true is one.
  [[nodiscard]] bool is_cube() const;
  // Returns the cube of the variables on which the function depends.
  [[nodiscard]] Bdd support() const;
  // Returns the value for the assignment: assignment[v] is the value of variable v. Variables from
  // assignment.size() on are false.
  [[nodiscard]] bool evaluate(const std::vector<bool>& assignment) const;
  // Returns one assignment to the variables of `cube` that makes the function true, as a
  // conjunction of variables and negated variables; false if there is none. Prefers false values.
  // Throws std::invalid_argument if the function depends on another variable.
  [[nodiscard]] Bdd pick(const Bdd& cube) const;
  // variable() returns the variable of the root, or kNoVariable for a constant. low() and high()
  // return the functions for its values false and true.
  [[nodiscard]] uint32_t variable() const;
  [[nodiscard]] Bdd low() const;
  [[nodiscard]] Bdd high() const;

  // Returns nullptr if the function belongs to no manager.
  [[nodiscard]] Manager* manager() const { return roots_ == nullptr ? nullptr : roots_->manager; }
  [[nodiscard]] Edge edge() const;

 private:
  friend class Manager;
  Bdd(internal::Roots* roots, uint32_t place) : roots_(roots), place_(place) { ++roots->objects; }
  // Returns the manager. Throws std::invalid_argument if there is none.
  [[nodiscard]] Manager& owner() const;
  void release();

  internal::Roots* roots_ = nullptr;
  uint32_t place_ = 0;
};

struct ManagerOptions {
  // Size in bytes of the node table at the start, 32 bytes for each node. In a job: of the part
  // in each process, 16 bytes for each bucket. Rounded down to a power of two.
  uint64_t table_bytes = uint64_t{64} << 20;
  // Limit for the table in bytes, rounded down to a power of two; at least table_bytes, which is at
  // least 4096, and at most kMostBytes. In a job: in each process. To clear or enlarge a table, the
  // manager needs 16 bytes for each live node, and up to 64 bytes for the map of its indices. In a
  // job, every process needs this memory for the live nodes of the whole job.
  uint64_t max_table_bytes = uint64_t{4} << 30;
  // Limit for the operation cache in bytes, rounded down to a power of two, at most kMostBytes;
  // less than 64 KiB counts as 64 KiB. The cache starts with 1 MiB, or the limit if that is less.
  // In a job: one cache for the processes of a host, which is allocated immediately, in the process
  // of that host with the lowest rank. Processes with `remote` have a cache each.
  uint64_t cache_bytes = uint64_t{256} << 20;
  // In a job: access all parts of the table as parts that are not mapped, as `look_ups` selects.
  bool remote = false;
  // If a part of the job's table is not mapped: the maximum number of look-ups of nodes that a
  // process has in flight, from 1 to TableAccessOptions::kMaxInFlight. With 1, each step of an
  // operation waits for its look-ups. Each takes 16 KiB of registered memory, except with
  // OperationsBy::kOwner.
  uint32_t in_flight = 64;
  // Which process executes the look-ups in parts of the job's table that are not mapped.
  OperationsBy look_ups = OperationsBy::kAutomatic;
  // In a job: time limit for each wait for the other processes in a function of the manager; 0:
  // none. From 0 to 100 years. Choose more than a process needs for its longest operation, and for
  // clearing its part of the table. After such a wait has ended the manager can only be destroyed:
  // its operations throw std::runtime_error, and agree() and value_of_rank_0() return
  // DEADLINE_EXCEEDED. The message names the late process. Not limited are operations that run as
  // tasks (TaskOptions::run_timeout, PoolOptions::run_timeout; a Job sets them to this value) and
  // look-ups of nodes (30 s each).
  std::chrono::milliseconds timeout{0};

  // 16 TiB. Without a job, such a table has 2^39 nodes; the index of a node has 40 bits.
  static constexpr uint64_t kMostBytes = uint64_t{1} << 44;
};

// One transition group of a model, for the functions below.
struct Transition {
  Bdd relation;
  Bdd variables;  // cube of the unprimed variables that the relation reads or writes
};

struct ManagerStatistics : LookUpCounts {
  // Nodes in this process's part of the table, including those that no diagram needs. In a job,
  // statistics() reads the whole part to count them.
  uint64_t owned_nodes = 0;
  uint64_t tasks = 0;        // recursive operations that this process has computed
  uint64_t table_bytes = 0;  // in this process
  uint64_t cache_bytes = 0;  // in this process
  uint64_t collections = 0;  // times that the table was cleared of unneeded nodes
};

class CARIAMA_BDD_EXPORT Manager {
 public:
  // Creates a manager whose operations run in the calling thread. Errors: INVALID_ARGUMENT (an
  // option), RESOURCE_EXHAUSTED (memory).
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<Manager>> create(
      const ManagerOptions& options);
  // Creates the manager of a job, whose operations run as tasks of `runtime` on all processes. The
  // processes of `all` are those of `runtime`. Collective, with equal options; there is at most one
  // such manager at a time. `runtime` and `all` must outlive it. (job.h creates all of them.)
  // Waits at most 120 s for the other processes to call it, and then until all have cleared their
  // parts of the table; for both at most ManagerOptions::timeout. Every process gets an error if
  // one does: UNAVAILABLE, with the text of that process. Errors: INVALID_ARGUMENT (an option),
  // FAILED_PRECONDITION (this process has such a manager), DEADLINE_EXCEEDED, and those of
  // NodeTable::create and RemoteMemory::allocate.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<Manager>> create(
      TaskRuntime& runtime, Collectives& all, const ManagerOptions& options);
  // Creates the manager of a job whose operations run as tasks of a pool (tasks/pool.h). All else
  // is as in create() with a TaskRuntime.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<Manager>> create(
      TaskPool& pool, Collectives& all, const ManagerOptions& options);
  // Creates the manager of a job whose operations rank 0 computes alone, in its calling thread. The
  // other processes provide memory for nodes, and wait for the results. A process may have several
  // such managers. All else is as in create() with a TaskRuntime.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<Manager>> create(
      Collectives& all, const ManagerOptions& options);
  // In a job: waits at most 120 s, and at most ManagerOptions::timeout, for the other processes to
  // do the same, and not at all while an exception leaves the scope of the manager or after a
  // process was late. If one of them does not do so in that time, this
  // process's part of the table stays allocated until the fabric ends.
  ~Manager();
  Manager(const Manager&) = delete;
  Manager& operator=(const Manager&) = delete;

  [[nodiscard]] Bdd constant(bool value);
  // Requires: variable <= kMaxVariable.
  [[nodiscard]] Bdd variable(uint32_t variable);
  // Returns the conjunction of the variables, which denotes a set of variables.
  [[nodiscard]] Bdd cube(std::initializer_list<uint32_t> variables);
  [[nodiscard]] Bdd cube(std::vector<uint32_t> variables);

  // Reachability. The order of `transitions` changes the result of chain() only. (reachability.h
  // has the complete search.) Operands and exceptions are those of Bdd::relnext().
  //   image     the union of relnext of all transitions
  //   preimage  the union of relprev of all transitions
  //   chain     `states` and the states that the transitions reach, each transition applied in
  //             order to the result of the transitions before it
  //   saturate  all states that the transitions reach from `states`; applies only the transitions
  //             whose smallest variable is at least `first_variable`
  [[nodiscard]] Bdd image(const Bdd& states, std::span<const Transition> transitions);
  [[nodiscard]] Bdd preimage(const Bdd& states, std::span<const Transition> transitions);
  [[nodiscard]] Bdd chain(const Bdd& states, std::span<const Transition> transitions);
  [[nodiscard]] Bdd saturate(const Bdd& states, std::span<const Transition> transitions,
                             uint32_t first_variable = 0);

  // Returns the number of nodes that the functions have together, with the constant. In a job, the
  // work of this function, store(), Bdd::count() and Bdd::support() is not divided: each process
  // that calls them reads all nodes of the functions.
  [[nodiscard]] uint64_t nodes(std::span<const Bdd> functions);
  // Returns the nodes of the functions in the form of files (diagrams.h).
  [[nodiscard]] StoredDiagrams store(std::span<const Bdd> functions);
  // Returns the functions of `diagrams`, whose nodes it creates. Requires: store() has returned
  // `diagrams`, or parse_diagrams() (diagrams.h) has accepted them.
  [[nodiscard]] std::vector<Bdd> load(const StoredDiagrams& diagrams);
  // Writes the functions to a file, in the calling process only. Errors: those of write_file()
  // (files.h).
  [[nodiscard]] absl::Status save_file(std::span<const Bdd> functions, const std::string& path);
  // Reads a file of save_file(). Collective in a job: every process reads the file, and gets an
  // error if one does. Errors: those of read_file() (files.h) and of parse_diagrams().
  [[nodiscard]] absl::StatusOr<std::vector<Bdd>> load_file(const std::string& path);

  // Removes all nodes that no Bdd needs. The manager calls it itself when the table is full. In a
  // job: collective; blocks until all processes have called it, at most for ManagerOptions::timeout
  // in each of its steps. Throws TableFull, or std::runtime_error if all diagrams are lost or a
  // process was late (above).
  void collect();
  // For a step that each process of a job executes by itself, such as reading a file: returns OK if
  // `mine` is OK and `value` is equal in all processes. Collective; blocks until all processes have
  // called agree(), at most for ManagerOptions::timeout. Errors: those of cariama::agree()
  // (dht/agreement.h), which begin with `what`. Without a job, returns `mine`.
  [[nodiscard]] absl::Status agree(const absl::Status& mine, std::string_view what,
                                   uint64_t value = 0) const;
  // For a decision that depends on a clock, a signal or other state of one process: returns the
  // argument `mine` of rank 0 in all processes. Collective; blocks until rank 0 has called
  // value_of_rank_0(), at most for ManagerOptions::timeout. Errors: those of
  // Collectives::broadcast() (dsfabric/collectives.h). Without a job, returns `mine`.
  [[nodiscard]] absl::StatusOr<uint64_t> value_of_rank_0(uint64_t mine) const;
  // Throws std::runtime_error if all diagrams are lost or a process was late.
  [[nodiscard]] ManagerStatistics statistics() const;
  // Return the rank of this process in the job, and the number of processes; 0 and 1 without a job.
  [[nodiscard]] Rank rank() const;
  [[nodiscard]] int size() const;

 private:
  friend class Bdd;
  friend class Job;
  friend CARIAMA_BDD_EXPORT Bdd operator&(const Bdd& a, const Bdd& b);
  friend CARIAMA_BDD_EXPORT Bdd operator|(const Bdd& a, const Bdd& b);
  friend CARIAMA_BDD_EXPORT Bdd operator^(const Bdd& a, const Bdd& b);

  // The runtime that runs the tasks of a job: one of the two, or neither if rank 0 computes alone.
  struct Workers {
    TaskRuntime* runtime = nullptr;
    TaskPool* pool = nullptr;
  };
  Manager(const ManagerOptions& options, Workers workers, Collectives* all,
          std::unique_ptr<internal::Engine> engine);
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<Manager>> create(
      Workers workers, Collectives& all, const ManagerOptions& options);
  // Returns an empty table of this size. In a job: collective.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<NodeTable>> new_table(
      const ManagerOptions& options, Collectives* all, uint64_t bytes, bool long_probes);

  // Returns the deadline of a wait for the other processes that begins now.
  [[nodiscard]] static Deadline wait_limit(const ManagerOptions& options);
  // Returns the result of a wait. If it is DEADLINE_EXCEEDED, adds the option to it.
  [[nodiscard]] static absl::Status name_option(const ManagerOptions& options,
                                                const absl::Status& result);
  // Returns the result of a wait. If it is DEADLINE_EXCEEDED, adds the option to it, and sets
  // lost_: the collective operation is still in progress, so no other one can follow.
  [[nodiscard]] absl::Status end_if_late(const absl::Status& result) const;
  // Sets lost_ unless a process was late, and throws it.
  [[noreturn]] void lose(const char* what, const absl::Status& cause);
  template <typename T>
  [[nodiscard]] absl::Status broadcast_from_rank_0(T& value) const;

  // Throws std::runtime_error if lost_ is set.
  [[nodiscard]] internal::Engine& engine() const;
  // Returns the place of an operand. Throws std::invalid_argument if it is not of this manager.
  [[nodiscard]] uint32_t place_of(const Bdd& operand) const;
  // even: the function is known to depend on even variables only.
  [[nodiscard]] Bdd hold(Edge edge, bool even = false);
  [[nodiscard]] bool is_even(uint32_t place) const { return roots_->all[place].even; }
  // Throws std::invalid_argument, in which `role` names the operand, unless it depends on even
  // variables only.
  void require_even(const Bdd& operand, const char* role);
  [[nodiscard]] bool is_cube(const Bdd& function);
  // Returns the place of an operand. Throws std::invalid_argument unless it is a cube of this
  // manager.
  [[nodiscard]] uint32_t place_of_cube(const Bdd& operand);
  void check_steps(const Bdd& states, std::span<const Transition> transitions);
  // Executes a request, whose operands are functions, in this process or in the job.
  [[nodiscard]] Bdd execute(const internal::Request& request,
                            std::span<const Transition> transitions = {});
  [[nodiscard]] Edge attempt(const internal::Request& request);
  [[nodiscard]] absl::StatusOr<Edge> attempt_in_job(const internal::Instruction& instruction);
  void set_groups(std::span<const Transition> transitions, bool sorted);
  [[nodiscard]] StoredDiagrams store_edges(std::span<const Edge> edges) const;
  // Returns false if the table has no room for the nodes.
  [[nodiscard]] bool load_edges(const StoredDiagrams& diagrams, std::vector<Edge>& edges);
  [[nodiscard]] bool broadcast_edges(std::span<Edge> edges, bool has_room) const;
  [[nodiscard]] bool load_together(const StoredDiagrams& diagrams, std::vector<Edge>& of_number);
  // Calls attempt() until it returns true. attempt() returns false if the table has no room; then
  // makes room, and repeats. Throws TableFull.
  template <typename Attempt>
  void with_room(Attempt attempt);
  // Removes all nodes that the roots do not need; with `grow`, also enlarges the table. Throws
  // TableFull if there is no memory for that; then the table has its old size.
  void make_room(bool grow);
  // Replaces the table by one of this size with the nodes `live`, to which the roots then refer.
  // After an error the roots refer to nothing. In a job: collective.
  [[nodiscard]] absl::Status replace_table(uint64_t bytes, bool long_probes,
                                           const StoredDiagrams& live);

  ManagerOptions options_;
  Workers workers_;
  Collectives* all_;  // nullptr without a job
  std::unique_ptr<internal::Engine> engine_;
  internal::Roots* roots_;
  // Why the diagrams are lost; DEADLINE_EXCEEDED if a process was late.
  mutable absl::Status lost_;
  const int exceptions_;  // in flight when this object was created
  uint64_t collections_ = 0;
  LookUpCounts look_ups_before_;  // of the tables before this one
};

}  // namespace cariama::bdd

#endif  // CARIAMA_BDD_BDD_H_
