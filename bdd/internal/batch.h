// Batch: computes one operation with many look-ups in flight, for node tables of which a part is
// not mapped.
//
// The steps of an operation are coroutines. A step that needs a node or creates one starts the
// look-up and is suspended; the batch resumes other steps meanwhile. So the time of an operation is
// not the sum of the round trips of its steps. It is the time of the longest chain of dependent
// steps, or the time that the network needs for all messages, whichever is longer.
//
// A step computes one entry of the operation cache. There is one step for equal operands: a step
// that needs the result of a suspended step waits for that step. The steps that are ready are
// resumed last in, first out, so their number stays proportional to the depth of the diagrams times
// the look-ups in flight.
#ifndef CARIAMA_BDD_INTERNAL_BATCH_H_
#define CARIAMA_BDD_INTERNAL_BATCH_H_

#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <vector>

#include "bdd/edge.h"

namespace cariama::bdd::internal {

struct Engine;

// Belongs to one thread.
class Batch {
 public:
  class Step;
  struct Promise;
  // An edge that is known, or that a step will compute. Valid until run() returns.
  struct Pending {
    Edge edge = kFalse;
    Promise* step = nullptr;  // nullptr: `edge` is known
    Edge mark = 0;            // negates the result
  };

  // `least_spare_tasks`: a worker computes operations in this batch while it has as many tasks for
  // thieves. The engine must outlive the batch.
  Batch(Engine& engine, size_t least_spare_tasks);
  ~Batch();
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  [[nodiscard]] size_t least_spare_tasks() const { return least_spare_tasks_; }

  // Start an operation. Requires: the operands are in the canonical form of forms.h, under which
  // the cache stores results.
  [[nodiscard]] Pending conjoin(Edge a, Edge b);
  [[nodiscard]] Pending exclusive_or(Edge a, Edge b);
  [[nodiscard]] Pending if_then_else(Edge a, Edge b, Edge c);
  [[nodiscard]] Pending quantify(Edge a, Edge cube);
  [[nodiscard]] Pending conjoin_quantify(Edge a, Edge b, Edge cube);
  [[nodiscard]] Pending substitute(Edge a, uint32_t variable, Edge by);
  template <bool kForward>
  [[nodiscard]] Pending step(Edge states, Edge relation, Edge cube);
  template <bool kForward>
  [[nodiscard]] Pending image(Edge states, uint32_t from, uint32_t to);
  [[nodiscard]] Pending saturate(Edge states, uint32_t index);

  // Blocks until an operation has ended, and returns its result. Calls serve_thieves() regularly.
  // Throws NoRoom, and std::runtime_error if the owner of a node has failed; all steps have then
  // been removed. Must not be called within run().
  [[nodiscard]] Edge run(Pending operation, void (*serve_thieves)());

 private:
  // A step that is suspended until `left` results have arrived.
  struct Suspended {
    uint32_t left = 0;
    std::coroutine_handle<> step;
  };
  struct Waiter {
    Waiter* next;
    Edge* result;
    Suspended* suspended;
  };
  // A look-up in flight, or in the queue because the maximum number is in flight.
  struct Lookup {
    Suspended* suspended;
    Lookup* next;
    bool put;
    Node node;
    uint64_t index;
  };
  struct Key {
    uint64_t a, b, c;
    friend bool operator==(const Key&, const Key&) = default;
  };
  template <size_t N>
  class Nodes;
  template <size_t N>
  class Results;
  class Made;
  struct Ended;
  enum class Failure : uint8_t { kNone, kFull, kLost };

  // The operations with any operands: constants and results in the cache need no step.
  [[nodiscard]] Pending any_conjunction(Edge a, Edge b);
  [[nodiscard]] Pending any_disjunction(Edge a, Edge b);
  [[nodiscard]] Pending any_exclusive_or(Edge a, Edge b);
  [[nodiscard]] Pending any_if_then_else(Edge a, Edge b, Edge c);
  [[nodiscard]] Pending any_substitute(Edge a, uint32_t variable, Edge by);

  // Returns the result for `key` from the cache or from a step in progress. Otherwise starts the
  // step that `create` returns.
  template <typename Create>
  [[nodiscard]] Pending find_or_start(const Key& key, Create create);
  [[nodiscard]] Pending start(Step step, const Key& key);

  // The steps.
  Step conjoin_step(Edge a, Edge b);
  Step exclusive_or_step(Edge a, Edge b);
  Step if_then_else_step(Edge a, Edge b, Edge c);
  Step quantify_step(Edge a, Edge cube);
  Step conjoin_quantify_step(Edge a, Edge b, Edge cube);
  Step substitute_step(Edge a, uint32_t variable, Edge by);
  template <bool kForward>
  Step relation_step(Edge states, Edge relation, Edge cube);
  template <bool kForward>
  Step image_step(Edge states, uint32_t from, uint32_t to);
  Step saturate_step(Edge states, uint32_t index);

  void submit(Lookup& lookup);
  void submit_queue();
  // Blocks until a look-up has ended.
  void await_lookup();
  void poll();
  void arrive(Suspended& suspended);
  static void wait_for(const Pending& pending, Waiter& waiter);
  void end(Promise& step);
  void remove_all();
  [[nodiscard]] Promise*& bucket(const Key& key);

  Engine& engine_;
  const size_t least_spare_tasks_;
  std::vector<std::coroutine_handle<>> ready_;
  Lookup* first_queued_ = nullptr;
  Lookup* last_queued_ = nullptr;
  size_t in_flight_ = 0;           // look-ups that the table has started
  std::vector<Promise*> buckets_;  // chained hash table of the steps that have a key
  Promise* steps_ = nullptr;       // list of all steps
  Failure failure_ = Failure::kNone;
  std::exception_ptr exception_;  // of a step
};

}  // namespace cariama::bdd::internal

#endif  // CARIAMA_BDD_INTERNAL_BATCH_H_
