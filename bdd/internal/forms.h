// Rules that the recursive operations (recursion.h) and the batch (batch.h) share: cofactors, and
// the canonical form of operands, under which the operation cache stores a result.
#ifndef CARIAMA_BDD_INTERNAL_FORMS_H_
#define CARIAMA_BDD_INTERNAL_FORMS_H_

#include <cstdint>
#include <utility>

#include "bdd/edge.h"

namespace cariama::bdd::internal {

struct Two {
  Edge low;
  Edge high;
};

// Returns `sons` of an edge for the variable `top`: the sons, or twice the edge itself if its node
// has a larger variable.
[[gnu::always_inline]] inline Two cofactors(const Sons& sons, Edge edge, uint32_t top) {
  return sons.variable == top ? Two{sons.low, sons.high} : Two{edge, edge};
}

// Returns true, and sets `result`, if the conjunction of a and b needs no recursion. Otherwise
// sorts the operands.
[[gnu::always_inline]] inline bool is_simple_conjunction(Edge& a, Edge& b, Edge& result) {
  if (a == b) {
    result = a;
  } else if (a == negate(b)) {
    result = kFalse;
  } else if (is_constant(a)) {
    result = a == kTrue ? b : kFalse;
  } else if (is_constant(b)) {
    result = b == kTrue ? a : kFalse;
  } else {
    if (a > b) std::swap(a, b);
    return false;
  }
  return true;
}

// Returns true, and sets `result`, if a xor b needs no recursion. Otherwise sorts the operands,
// removes their marks, and sets `mark`: the result is that of the unmarked operands, xor `mark`.
[[gnu::always_inline]] inline bool is_simple_exclusive_or(Edge& a, Edge& b, Edge& mark,
                                                          Edge& result) {
  mark = (a ^ b) & kMark;  // the operation commutes with negation of either operand
  a &= kIndexMask;
  b &= kIndexMask;
  if (a > b) std::swap(a, b);
  if (a != b && a != kFalse) return false;
  result = (a == b ? kFalse : b) ^ mark;
  return true;
}

// "If a then b else c" in its simplest form. `mark` negates the result.
struct IfThenElse {
  enum class Is : uint8_t { kEdge, kConjunction, kExclusiveOr, kIfThenElse };
  Is is;
  Edge a, b, c;
  Edge mark;
};
[[nodiscard]] inline IfThenElse simplified(Edge a, Edge b, Edge c) {
  using Is = IfThenElse::Is;
  if (is_constant(a)) return {Is::kEdge, a == kTrue ? b : c, 0, 0, 0};
  if (b == c) return {Is::kEdge, b, 0, 0, 0};
  if (a == b) b = kTrue;
  if (a == negate(b)) b = kFalse;
  if (a == c) c = kFalse;
  if (a == negate(c)) c = kTrue;
  // Each form with a constant is a conjunction, which has more entries in the cache.
  if (b == kTrue) return {Is::kConjunction, negate(a), negate(c), 0, kMark};
  if (b == kFalse) return {Is::kConjunction, negate(a), c, 0, 0};
  if (c == kFalse) return {Is::kConjunction, a, b, 0, 0};
  if (c == kTrue) return {Is::kConjunction, a, negate(b), 0, kMark};
  if (b == negate(c)) return {Is::kExclusiveOr, a, c, 0, 0};
  // Canonical: a and b are unmarked.
  if (a & kMark) {
    a = negate(a);
    std::swap(b, c);
  }
  const Edge mark = b & kMark;
  return {Is::kIfThenElse, a, b ^ mark, c ^ mark, mark};
}

}  // namespace cariama::bdd::internal

#endif  // CARIAMA_BDD_INTERNAL_FORMS_H_
