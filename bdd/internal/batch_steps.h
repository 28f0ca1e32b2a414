// The coroutine type of a Batch, and what its steps await. For batch.cc and batch_operations.cc.
#ifndef CARIAMA_BDD_INTERNAL_BATCH_STEPS_H_
#define CARIAMA_BDD_INTERNAL_BATCH_STEPS_H_

#include <array>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <exception>

#include "bdd/edge.h"
#include "bdd/internal/batch.h"
#include "bdd/internal/engine.h"
#include "bdd/internal/forms.h"

namespace cariama::bdd::internal {

// The return type of a step's coroutine. The batch owns the step.
class Batch::Step {
 public:
  using promise_type = Batch::Promise;
  explicit Step(Promise& step) : promise(step) {}
  Promise& promise;
};

// Delivers the result of a step and frees its frame.
struct Batch::Ended {
  static bool await_ready() noexcept { return false; }
  static void await_suspend(std::coroutine_handle<Promise> step) noexcept;
  static void await_resume() noexcept {}
};

struct Batch::Promise {
  template <typename... Operands>
  explicit Promise(Batch& owner, const Operands&...) : batch(owner) {}
  Step get_return_object() { return Step(*this); }
  static std::suspend_always initial_suspend() noexcept { return {}; }
  static Ended final_suspend() noexcept { return {}; }
  void return_value(Edge edge) { result = edge; }
  void unhandled_exception() { batch.exception_ = std::current_exception(); }

  Batch& batch;
  Edge result = kFalse;
  Key key{};  // key.a == 0: the step has no entry in the cache
  Waiter* waiters = nullptr;
  Promise* next_in_bucket = nullptr;
  Promise* next = nullptr;
  Promise* previous = nullptr;
};

inline void Batch::Ended::await_suspend(std::coroutine_handle<Promise> step) noexcept {
  step.promise().batch.end(step.promise());
}

// co_await Nodes<N>(batch, edges...): returns the sons of N edges.
template <size_t N>
class Batch::Nodes {
 public:
  template <typename... Edges>
  explicit Nodes(Batch& batch, Edges... edges) : batch_(batch), edges_{edges...} {}

  bool await_ready() {
    NodeTable& table = *batch_.engine_.table;
    for (size_t i = 0; i < N; ++i) {
      lookups_[i].index = edges_[i] & kIndexMask;
      missing_[i] = !table.read_here(lookups_[i].index, lookups_[i].node);
      suspended_.left += missing_[i];
    }
    return suspended_.left == 0;
  }
  void await_suspend(std::coroutine_handle<> step) {
    suspended_.step = step;
    for (size_t i = 0; i < N; ++i) {
      if (!missing_[i]) continue;
      lookups_[i].suspended = &suspended_;
      lookups_[i].put = false;
      batch_.submit(lookups_[i]);
    }
  }
  std::array<Sons, N> await_resume() const {
    std::array<Sons, N> sons;
    for (size_t i = 0; i < N; ++i) {
      const Node& node = lookups_[i].node;
      sons[i] = {node.variable(), negate_if(node.low(), edges_[i]),
                 negate_if(node.high(), edges_[i])};
    }
    return sons;
  }

 private:
  Batch& batch_;
  std::array<Edge, N> edges_;
  std::array<Lookup, N> lookups_;
  std::array<bool, N> missing_;
  Suspended suspended_;
};

// co_await Results<N>(pending...): returns N edges.
template <size_t N>
class Batch::Results {
 public:
  template <typename... Several>
  explicit Results(const Several&... pending) : pending_{pending...} {}

  bool await_ready() {
    for (const Pending& one : pending_) suspended_.left += one.step != nullptr;
    return suspended_.left == 0;
  }
  void await_suspend(std::coroutine_handle<> step) {
    suspended_.step = step;
    for (size_t i = 0; i < N; ++i) {
      if (pending_[i].step == nullptr) continue;
      waiters_[i] = {nullptr, &pending_[i].edge, &suspended_};
      wait_for(pending_[i], waiters_[i]);
    }
  }
  std::array<Edge, N> await_resume() const {
    std::array<Edge, N> edges;
    for (size_t i = 0; i < N; ++i) edges[i] = pending_[i].edge ^ pending_[i].mark;
    return edges;
  }

 private:
  std::array<Pending, N> pending_;
  std::array<Waiter, N> waiters_;
  Suspended suspended_;
};

// co_await Made(batch, variable, low, high): returns the edge of "if variable then high else low".
class Batch::Made {
 public:
  Made(Batch& batch, uint32_t variable, Edge low, Edge high)
      : batch_(batch), low_(low), mark_(low & kMark), is_node_(low != high) {
    lookup_.node = Node::of(variable, low ^ mark_, high ^ mark_);
  }

  bool await_ready() {
    return !is_node_ || batch_.engine_.table->find_or_put_here(lookup_.node, lookup_.index);
  }
  void await_suspend(std::coroutine_handle<> step) {
    suspended_ = {1, step};
    lookup_.suspended = &suspended_;
    lookup_.put = true;
    batch_.submit(lookup_);
  }
  [[nodiscard]] Edge await_resume() const {
    if (!is_node_) return low_;
    if (lookup_.index == NodeTable::kFull) batch_.failure_ = Failure::kFull;
    return (lookup_.index & kIndexMask) | mark_;
  }

 private:
  Batch& batch_;
  const Edge low_;
  const Edge mark_;
  const bool is_node_;
  Lookup lookup_;
  Suspended suspended_;
};

}  // namespace cariama::bdd::internal

#endif  // CARIAMA_BDD_INTERNAL_BATCH_STEPS_H_
