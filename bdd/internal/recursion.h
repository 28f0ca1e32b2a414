// The recursive operations. Each exists in three instances: one runs in the calling thread, one
// forks tasks that migrate between worker processes (tasks/task.h), and one spawns tasks of a pool
// (tasks/pool.h).
//
// A frame of these functions contains only values: edges, variables, and an empty class. A
// reference to an engine must not be used across fork(), which may return in another process:
// engine() is therefore called anew for each access.
//
// If a part of the node table is not mapped, a worker forks only until enough tasks wait for
// thieves (in_batch()). It then computes the rest of an operation in a Batch (batch.h).
#ifndef CARIAMA_BDD_INTERNAL_RECURSION_H_
#define CARIAMA_BDD_INTERNAL_RECURSION_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "bdd/edge.h"
#include "bdd/internal/batch.h"
#include "bdd/internal/engine.h"
#include "bdd/internal/forms.h"
#include "tasks/pool.h"
#include "tasks/runtime.h"
#include "tasks/task.h"

namespace cariama::bdd::internal {

// Executes operations in the calling thread, on one engine.
struct Here {
  Engine* local;
  [[nodiscard]] Engine& engine() const { return *local; }
  static constexpr bool kForks = false;
  static constexpr bool kBatches = false;
};
// Executes operations in the calling thread, in the batch of its engine.
struct InBatch {
  Engine* local;
  [[nodiscard]] Engine& engine() const { return *local; }
  static constexpr bool kForks = false;
  static constexpr bool kBatches = true;
  [[nodiscard]] static size_t spare_tasks() { return 0; }
  static void serve_thieves() {}
};
// Executes operations as tasks, on the engine of the worker that currently runs the task.
struct AsTasks {
  [[nodiscard]] Engine& engine() const { return *worker_engine; }
  static constexpr bool kForks = true;
  static constexpr bool kBatches = true;
  // Returns the number of tasks of this worker that it has not offered to thieves yet.
  [[nodiscard]] static size_t spare_tasks() {
    return static_cast<size_t>(tasks::cariama_fork_state.top - tasks::cariama_fork_state.floor);
  }
  static void serve_thieves() { poll(); }
};
// Executes operations as tasks of a pool. A task does not migrate after it has begun.
struct InPool {
  [[nodiscard]] Engine& engine() const { return *worker_engine; }
  static constexpr bool kForks = true;
  static constexpr bool kBatches = true;
  [[nodiscard]] static size_t spare_tasks() {
    return static_cast<size_t>(pool::internal::deque.head - pool::internal::deque.tail);
  }
  static void serve_thieves() { pool::communicate(); }
};

// A worker that has so many tasks for thieves computes both parts of a step itself. Thieves take
// the oldest tasks, which are the largest; the worker forks again when they have taken some.
inline constexpr size_t kEnoughTasks = 8;

// Returns true if the calling task computes the parts of a step one after the other. Otherwise it
// forks.
template <typename Where>
[[gnu::always_inline]] inline bool in_sequence(Where) {
  if constexpr (Where::kForks) {
    if (Where::spare_tasks() < kEnoughTasks) return false;
    Where::serve_thieves();
  }
  return true;
}

// Throws NoRoom if the operation is to be given up. Each step calls it before it begins others. A
// failed half of a step does not end the other half immediately: it waits as a task or runs next.
// Failed steps have no entry in the cache, so each path to one would compute it again.
template <typename Where>
[[gnu::always_inline]] inline void give_up_if_full(Where where) {
  if constexpr (Where::kForks) {
    if (where.engine().is_full) [[unlikely]]
      where.engine().no_room();
  }
}

template <typename Closure>
Edge run_closure(Closure closure) {
  return closure();
}

// Computes low() and high(), which return edges. In a job, low() runs as a child task, unless this
// worker has enough tasks. Its closure is copied as bytes.
template <typename Where, typename Low, typename High>
[[gnu::always_inline]] inline Two fork(Where where, Low low, High high) {
  if (!in_sequence(where)) {
    if constexpr (std::is_same_v<Where, InPool>) {
      pool::Children<&run_closure<Low>> child;
      child.spawn(low);
      const Edge above = high();
      return {child.sync(), above};
    } else if constexpr (Where::kForks) {
      auto child = spawn(low);
      const Edge above = high();
      const Edge below = join(std::move(child));
      return {below, above};
    }
  }
  const Edge below = low();
  return {below, high()};
}

// Returns true if the calling task computes the rest of an operation in the batch of its worker,
// by `run_in_batch`.
template <typename Where>
[[gnu::always_inline]] inline bool in_batch(Where where) {
  if constexpr (Where::kBatches) {
    const Batch* const batch = where.engine().batch.get();
    return batch != nullptr && Where::spare_tasks() >= batch->least_spare_tasks();
  } else {
    return false;
  }
}
template <typename Where, typename Start>
[[gnu::noinline]] Edge run_in_batch(Where where, Start start) {
  Batch& batch = *where.engine().batch;
  if constexpr (Where::kBatches) return batch.run(start(batch), &Where::serve_thieves);
  return kFalse;  // not called
}

template <typename Where>
Edge conjoin(Where where, Edge a, Edge b) {
  Edge result;
  if (is_simple_conjunction(a, b, result)) return result;
  if (where.engine().cache.find(key_of(Op::kAnd, a), b, 0, result)) return result;
  give_up_if_full(where);
  if (in_batch(where)) {
    return run_in_batch(where, [=](Batch& batch) { return batch.conjoin(a, b); });
  }
  uint32_t top;
  Two of_a, of_b;
  {
    Engine& engine = where.engine();
    const Sons sons_a = engine.sons(a);
    const Sons sons_b = engine.sons(b);
    top = std::min(sons_a.variable, sons_b.variable);
    of_a = cofactors(sons_a, a, top);
    of_b = cofactors(sons_b, b, top);
  }
  const Two two = fork(
      where, [=, low_a = of_a.low, low_b = of_b.low] { return conjoin(where, low_a, low_b); },
      [&] { return conjoin(where, of_a.high, of_b.high); });
  Engine& engine = where.engine();
  result = engine.make(top, two.low, two.high);
  engine.cache.put(key_of(Op::kAnd, a), b, 0, result);
  return result;
}

template <typename Where>
Edge disjoin(Where where, Edge a, Edge b) {
  return negate(conjoin(where, negate(a), negate(b)));
}

template <typename Where>
Edge exclusive_or(Where where, Edge a, Edge b) {
  Edge mark;
  Edge result;
  if (is_simple_exclusive_or(a, b, mark, result)) return result;
  if (where.engine().cache.find(key_of(Op::kXor, a), b, 0, result)) return result ^ mark;
  give_up_if_full(where);
  if (in_batch(where)) {
    return run_in_batch(where, [=](Batch& batch) { return batch.exclusive_or(a, b); }) ^ mark;
  }
  uint32_t top;
  Two of_a, of_b;
  {
    Engine& engine = where.engine();
    const Sons sons_a = engine.sons(a);
    const Sons sons_b = engine.sons(b);
    top = std::min(sons_a.variable, sons_b.variable);
    of_a = cofactors(sons_a, a, top);
    of_b = cofactors(sons_b, b, top);
  }
  const Two two = fork(
      where, [=, low_a = of_a.low, low_b = of_b.low] { return exclusive_or(where, low_a, low_b); },
      [&] { return exclusive_or(where, of_a.high, of_b.high); });
  Engine& engine = where.engine();
  result = engine.make(top, two.low, two.high);
  engine.cache.put(key_of(Op::kXor, a), b, 0, result);
  return result ^ mark;
}

template <typename Where>
Edge if_then_else(Where where, Edge a, Edge b, Edge c) {
  const IfThenElse form = simplified(a, b, c);
  if (form.is == IfThenElse::Is::kEdge) return form.a;
  if (form.is == IfThenElse::Is::kConjunction) return conjoin(where, form.a, form.b) ^ form.mark;
  if (form.is == IfThenElse::Is::kExclusiveOr) return exclusive_or(where, form.a, form.b);
  a = form.a;
  b = form.b;
  c = form.c;
  const Edge mark = form.mark;
  Edge result;
  if (where.engine().cache.find(key_of(Op::kIte, a), b, c, result)) return result ^ mark;
  give_up_if_full(where);
  if (in_batch(where)) {
    return run_in_batch(where, [=](Batch& batch) { return batch.if_then_else(a, b, c); }) ^ mark;
  }
  uint32_t top;
  Two of_a, of_b, of_c;
  {
    Engine& engine = where.engine();
    const Sons sons_a = engine.sons(a);
    const Sons sons_b = engine.sons(b);
    const Sons sons_c = engine.sons(c);
    top = std::min({sons_a.variable, sons_b.variable, sons_c.variable});
    of_a = cofactors(sons_a, a, top);
    of_b = cofactors(sons_b, b, top);
    of_c = cofactors(sons_c, c, top);
  }
  const Two two = fork(
      where,
      [=, low_a = of_a.low, low_b = of_b.low, low_c = of_c.low] {
        return if_then_else(where, low_a, low_b, low_c);
      },
      [&] { return if_then_else(where, of_a.high, of_b.high, of_c.high); });
  Engine& engine = where.engine();
  result = engine.make(top, two.low, two.high);
  engine.cache.put(key_of(Op::kIte, a), b, c, result);
  return result ^ mark;
}

// `cube` is a conjunction of variables, none negated. Returns the cube without the variables
// smaller than `variable`.
[[nodiscard]] inline Edge skip_to(const Engine& engine, Edge cube, uint32_t variable) {
  while (!is_constant(cube)) {
    const Sons sons = engine.sons(cube);
    if (sons.variable >= variable) break;
    cube = sons.high;
  }
  return cube;
}

template <typename Where>
Edge quantify(Where where, Edge a, Edge cube) {
  if (is_constant(a)) return a;
  uint32_t top;
  Two of_a;
  Edge rest;
  bool quantified;
  {
    Engine& engine = where.engine();
    const Sons sons = engine.sons(a);
    top = sons.variable;
    of_a = {sons.low, sons.high};
    cube = skip_to(engine, cube, top);
    if (is_constant(cube)) return a;
    const Sons next = engine.sons(cube);
    quantified = next.variable == top;
    rest = quantified ? next.high : cube;
  }
  Edge result;
  if (where.engine().cache.find(key_of(Op::kExists, a), cube, 0, result)) return result;
  give_up_if_full(where);
  if (in_batch(where)) {
    return run_in_batch(where, [=](Batch& batch) { return batch.quantify(a, cube); });
  }
  if (quantified && in_sequence(where)) {
    result = quantify(where, of_a.low, rest);
    if (result != kTrue) result = disjoin(where, result, quantify(where, of_a.high, rest));
  } else {
    const Two two = fork(
        where, [=, low = of_a.low] { return quantify(where, low, rest); },
        [&] { return quantify(where, of_a.high, rest); });
    result = quantified ? disjoin(where, two.low, two.high)
                        : where.engine().make(top, two.low, two.high);
  }
  where.engine().cache.put(key_of(Op::kExists, a), cube, 0, result);
  return result;
}

template <typename Where>
Edge conjoin_quantify(Where where, Edge a, Edge b, Edge cube) {
  if (a == kFalse || b == kFalse || a == negate(b)) return kFalse;
  if (a == kTrue || a == b) return quantify(where, b, cube);
  if (b == kTrue) return quantify(where, a, cube);
  if (a > b) std::swap(a, b);
  uint32_t top;
  Two of_a, of_b;
  Edge rest;
  bool quantified;
  {
    Engine& engine = where.engine();
    const Sons sons_a = engine.sons(a);
    const Sons sons_b = engine.sons(b);
    top = std::min(sons_a.variable, sons_b.variable);
    of_a = cofactors(sons_a, a, top);
    of_b = cofactors(sons_b, b, top);
    cube = skip_to(engine, cube, top);
    if (is_constant(cube)) return conjoin(where, a, b);
    const Sons next = engine.sons(cube);
    quantified = next.variable == top;
    rest = quantified ? next.high : cube;
  }
  Edge result;
  if (where.engine().cache.find(key_of(Op::kAndExists, a), b, cube, result)) return result;
  give_up_if_full(where);
  if (in_batch(where)) {
    return run_in_batch(where, [=](Batch& batch) { return batch.conjoin_quantify(a, b, cube); });
  }
  if (quantified && in_sequence(where)) {
    result = conjoin_quantify(where, of_a.low, of_b.low, rest);
    if (result != kTrue) {
      result = disjoin(where, result, conjoin_quantify(where, of_a.high, of_b.high, rest));
    }
  } else {
    const Two two = fork(
        where,
        [=, low_a = of_a.low, low_b = of_b.low] {
          return conjoin_quantify(where, low_a, low_b, rest);
        },
        [&] { return conjoin_quantify(where, of_a.high, of_b.high, rest); });
    result = quantified ? disjoin(where, two.low, two.high)
                        : where.engine().make(top, two.low, two.high);
  }
  where.engine().cache.put(key_of(Op::kAndExists, a), b, cube, result);
  return result;
}

// Returns `a` with `by` in place of `variable`.
template <typename Where>
Edge substitute(Where where, Edge a, uint32_t variable, Edge by) {
  const Edge mark = a & kMark;
  a ^= mark;
  uint32_t top;
  Two of_a, of_by;
  {
    Engine& engine = where.engine();
    const Sons sons = engine.sons(a);
    if (sons.variable > variable) return a ^ mark;
    if (sons.variable == variable) {
      return if_then_else(where, by, sons.high, sons.low) ^ mark;
    }
    const Sons sons_by = engine.sons(by);
    top = std::min(sons.variable, sons_by.variable);
    of_a = cofactors(sons, a, top);
    of_by = cofactors(sons_by, by, top);
  }
  Edge result;
  if (where.engine().cache.find(key_of(Op::kCompose, a), variable, by, result)) {
    return result ^ mark;
  }
  give_up_if_full(where);
  if (in_batch(where)) {
    return run_in_batch(where, [=](Batch& batch) { return batch.substitute(a, variable, by); }) ^
           mark;
  }
  const Two two = fork(
      where,
      [=, low_a = of_a.low, low_by = of_by.low] {
        return substitute(where, low_a, variable, low_by);
      },
      [&] { return substitute(where, of_a.high, variable, of_by.high); });
  Engine& engine = where.engine();
  result = engine.make(top, two.low, two.high);
  engine.cache.put(key_of(Op::kCompose, a), variable, by, result);
  return result ^ mark;
}

}  // namespace cariama::bdd::internal

#endif  // CARIAMA_BDD_INTERNAL_RECURSION_H_
