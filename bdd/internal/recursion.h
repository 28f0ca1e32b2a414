// The recursive operations. Each exists in two instances: one runs in the calling thread, the other
// forks tasks, which migrate between worker processes.
//
// A frame of these functions contains only values: edges, variables, and the empty class Anywhere.
// A reference to an engine must not be used across fork(), which may return in another process:
// engine() is therefore called anew for each access.
#ifndef CARIAMA_BDD_INTERNAL_RECURSION_H_
#define CARIAMA_BDD_INTERNAL_RECURSION_H_

#include <algorithm>
#include <cstdint>
#include <utility>

#include "bdd/edge.h"
#include "bdd/internal/engine.h"
#include "tasks/task.h"

namespace cariama::bdd::internal {

// Executes operations in the calling thread, on one engine.
struct Here {
  Engine* local;
  [[nodiscard]] Engine& engine() const { return *local; }
  static constexpr bool kForks = false;
};
// Executes operations as tasks, on the engine of whichever worker runs the task.
struct Anywhere {
  [[nodiscard]] Engine& engine() const { return *worker_engine; }
  static constexpr bool kForks = true;
};

struct Two {
  Edge low;
  Edge high;
};

// Computes low() and high(), which return edges. With Anywhere, low() runs as a child task. Its
// closure is copied as bytes.
template <typename Where, typename Low, typename High>
[[gnu::always_inline]] inline Two fork(Where, Low low, High high) {
  if constexpr (Where::kForks) {
    auto child = spawn(low);
    const Edge above = high();
    const Edge below = join(std::move(child));
    return {below, above};
  } else {
    const Edge below = low();
    return {below, high()};
  }
}

// Returns `sons` of an edge for the variable `top`: the sons, or twice the edge itself if its node
// has a larger variable.
[[gnu::always_inline]] inline Two cofactors(const Sons& sons, Edge edge, uint32_t top) {
  return sons.variable == top ? Two{sons.low, sons.high} : Two{edge, edge};
}

template <typename Where>
Edge conjoin(Where where, Edge a, Edge b) {
  if (a == b) return a;
  if (a == negate(b)) return kFalse;
  if (is_constant(a)) return a == kTrue ? b : kFalse;
  if (is_constant(b)) return b == kTrue ? a : kFalse;
  if (a > b) std::swap(a, b);
  Edge result;
  if (where.engine().cache.find(key_of(Op::kAnd, a), b, 0, result)) return result;
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
  const Edge mark = (a ^ b) & kMark;  // the operation commutes with negation of either operand
  a &= kIndexMask;
  b &= kIndexMask;
  if (a == b) return mark;
  if (a > b) std::swap(a, b);
  if (a == kFalse) return b ^ mark;
  Edge result;
  if (where.engine().cache.find(key_of(Op::kXor, a), b, 0, result)) return result ^ mark;
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
  if (is_constant(a)) return a == kTrue ? b : c;
  if (b == c) return b;
  if (a == b) b = kTrue;
  if (a == negate(b)) b = kFalse;
  if (a == c) c = kFalse;
  if (a == negate(c)) c = kTrue;
  // Each form with a constant is a conjunction, which has more entries in the cache.
  if (b == kTrue) return disjoin(where, a, c);
  if (b == kFalse) return conjoin(where, negate(a), c);
  if (c == kFalse) return conjoin(where, a, b);
  if (c == kTrue) return disjoin(where, negate(a), b);
  if (b == negate(c)) return exclusive_or(where, a, c);
  // Canonical: a and b are unmarked.
  if (a & kMark) {
    a = negate(a);
    std::swap(b, c);
  }
  const Edge mark = b & kMark;
  b ^= mark;
  c ^= mark;
  Edge result;
  if (where.engine().cache.find(key_of(Op::kIte, a), b, c, result)) return result ^ mark;
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
  if (quantified && !Where::kForks) {
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
  if (quantified && !Where::kForks) {
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
