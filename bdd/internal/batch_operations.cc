// The steps of a batch: the recursive operations of recursion.h and relations.h as coroutines.
#include <algorithm>
#include <utility>

#include "bdd/internal/batch_steps.h"

namespace cariama::bdd::internal {
// The check reports each coroutine, for the compiler's own use of the promise.
// NOLINTBEGIN(readability-static-accessed-through-instance)

Batch::Pending Batch::any_conjunction(Edge a, Edge b) {
  Edge result;
  if (is_simple_conjunction(a, b, result)) return {result, nullptr, 0};
  return conjoin(a, b);
}

Batch::Pending Batch::any_disjunction(Edge a, Edge b) {
  Pending negation = any_conjunction(negate(a), negate(b));
  negation.mark ^= kMark;
  return negation;
}

Batch::Pending Batch::any_exclusive_or(Edge a, Edge b) {
  Edge mark;
  Edge result;
  if (is_simple_exclusive_or(a, b, mark, result)) return {result, nullptr, 0};
  Pending unmarked = exclusive_or(a, b);
  unmarked.mark ^= mark;
  return unmarked;
}

Batch::Pending Batch::any_if_then_else(Edge a, Edge b, Edge c) {
  const IfThenElse form = simplified(a, b, c);
  Pending result;
  switch (form.is) {
    case IfThenElse::Is::kEdge:
      return {form.a, nullptr, 0};
    case IfThenElse::Is::kConjunction:
      result = any_conjunction(form.a, form.b);
      break;
    case IfThenElse::Is::kExclusiveOr:
      return any_exclusive_or(form.a, form.b);
    case IfThenElse::Is::kIfThenElse:
      result = if_then_else(form.a, form.b, form.c);
      break;
  }
  result.mark ^= form.mark;
  return result;
}

Batch::Pending Batch::any_substitute(Edge a, uint32_t variable, Edge by) {
  if (is_constant(a)) return {a, nullptr, 0};
  Pending unmarked = substitute(a & kIndexMask, variable, by);
  unmarked.mark ^= a & kMark;
  return unmarked;
}

Batch::Step Batch::conjoin_step(Edge a, Edge b) {
  const auto [sons_a, sons_b] = co_await Nodes<2>(*this, a, b);
  const uint32_t top = std::min(sons_a.variable, sons_b.variable);
  const Two of_a = cofactors(sons_a, a, top);
  const Two of_b = cofactors(sons_b, b, top);
  const auto [low, high] = co_await Results<2>(any_conjunction(of_a.low, of_b.low),
                                               any_conjunction(of_a.high, of_b.high));
  co_return co_await Made(*this, top, low, high);
}

Batch::Step Batch::exclusive_or_step(Edge a, Edge b) {
  const auto [sons_a, sons_b] = co_await Nodes<2>(*this, a, b);
  const uint32_t top = std::min(sons_a.variable, sons_b.variable);
  const Two of_a = cofactors(sons_a, a, top);
  const Two of_b = cofactors(sons_b, b, top);
  const auto [low, high] = co_await Results<2>(any_exclusive_or(of_a.low, of_b.low),
                                               any_exclusive_or(of_a.high, of_b.high));
  co_return co_await Made(*this, top, low, high);
}

Batch::Step Batch::if_then_else_step(Edge a, Edge b, Edge c) {
  const auto [sons_a, sons_b, sons_c] = co_await Nodes<3>(*this, a, b, c);
  const uint32_t top = std::min({sons_a.variable, sons_b.variable, sons_c.variable});
  const Two of_a = cofactors(sons_a, a, top);
  const Two of_b = cofactors(sons_b, b, top);
  const Two of_c = cofactors(sons_c, c, top);
  const auto [low, high] = co_await Results<2>(any_if_then_else(of_a.low, of_b.low, of_c.low),
                                               any_if_then_else(of_a.high, of_b.high, of_c.high));
  co_return co_await Made(*this, top, low, high);
}

// Both halves are computed at the same time, also of a quantified variable: the result for one
// value may decide the result without the other one, but computing it first would delay the other
// one by as many round trips.
Batch::Step Batch::quantify_step(Edge a, Edge cube) {
  auto [sons, first] = co_await Nodes<2>(*this, a, cube);
  while (first.variable < sons.variable) {
    cube = first.high;
    if (is_constant(cube)) co_return a;
    first = (co_await Nodes<1>(*this, cube))[0];
  }
  const bool quantified = first.variable == sons.variable;
  const Edge rest = quantified ? first.high : cube;
  const auto [low, high] = co_await Results<2>(quantify(sons.low, rest), quantify(sons.high, rest));
  if (quantified) co_return (co_await Results<1>(any_disjunction(low, high)))[0];
  co_return co_await Made(*this, sons.variable, low, high);
}

Batch::Step Batch::conjoin_quantify_step(Edge a, Edge b, Edge cube) {
  auto [sons_a, sons_b, first] = co_await Nodes<3>(*this, a, b, cube);
  const uint32_t top = std::min(sons_a.variable, sons_b.variable);
  while (first.variable < top) {
    cube = first.high;
    if (is_constant(cube)) co_return (co_await Results<1>(any_conjunction(a, b)))[0];
    first = (co_await Nodes<1>(*this, cube))[0];
  }
  const bool quantified = first.variable == top;
  const Edge rest = quantified ? first.high : cube;
  const Two of_a = cofactors(sons_a, a, top);
  const Two of_b = cofactors(sons_b, b, top);
  const auto [low, high] = co_await Results<2>(conjoin_quantify(of_a.low, of_b.low, rest),
                                               conjoin_quantify(of_a.high, of_b.high, rest));
  if (quantified) co_return (co_await Results<1>(any_disjunction(low, high)))[0];
  co_return co_await Made(*this, top, low, high);
}

Batch::Step Batch::substitute_step(Edge a, uint32_t variable, Edge by) {
  const auto [sons, sons_by] = co_await Nodes<2>(*this, a, by);
  if (sons.variable > variable) co_return a;
  if (sons.variable == variable) {
    co_return (co_await Results<1>(any_if_then_else(by, sons.high, sons.low)))[0];
  }
  const uint32_t top = std::min(sons.variable, sons_by.variable);
  const Two of_a = cofactors(sons, a, top);
  const Two of_by = cofactors(sons_by, by, top);
  const auto [low, high] = co_await Results<2>(any_substitute(of_a.low, variable, of_by.low),
                                               any_substitute(of_a.high, variable, of_by.high));
  co_return co_await Made(*this, top, low, high);
}

// As step() in relations.h, which explains the cases.
template <bool kForward>
Batch::Step Batch::relation_step(Edge states, Edge relation, Edge cube) {
  auto [sons, sons_relation, first] = co_await Nodes<3>(*this, states, relation, cube);
  const uint32_t smallest = std::min(sons.variable, sons_relation.variable);
  if (smallest == kNoVariable) co_return states;
  const uint32_t unprimed = smallest & ~uint32_t{1};
  while (first.variable < unprimed) {
    cube = first.high;
    if (is_constant(cube)) co_return states;
    first = (co_await Nodes<1>(*this, cube))[0];
  }
  if (first.variable == unprimed) {
    const Edge rest = first.high;
    const Two of_states = cofactors(sons, states, unprimed);
    const Two halves = cofactors(sons_relation, relation, unprimed);
    const auto [sons_low, sons_high] = co_await Nodes<2>(*this, halves.low, halves.high);
    const Two of_low = cofactors(sons_low, halves.low, unprimed + 1);
    const Two of_high = cofactors(sons_high, halves.high, unprimed + 1);
    // parts[i] of the result's low half, parts[i + 2] of its high half.
    const auto parts = co_await Results<4>(
        step<kForward>(of_states.low, of_low.low, rest),
        step<kForward>(of_states.high, kForward ? of_high.low : of_low.high, rest),
        step<kForward>(of_states.low, kForward ? of_low.high : of_high.low, rest),
        step<kForward>(of_states.high, of_high.high, rest));
    const auto [low, high] = co_await Results<2>(any_disjunction(parts[0], parts[1]),
                                                 any_disjunction(parts[2], parts[3]));
    co_return co_await Made(*this, unprimed, low, high);
  }
  const Two of_states = cofactors(sons, states, smallest);
  const Two of_relation = cofactors(sons_relation, relation, smallest);
  if (sons_relation.variable != smallest) {
    const auto [low, high] = co_await Results<2>(step<kForward>(of_states.low, relation, cube),
                                                 step<kForward>(of_states.high, relation, cube));
    co_return co_await Made(*this, smallest, low, high);
  }
  // The relation depends on a variable that is not in the cube: it is quantified in the relation.
  const auto parts = co_await Results<4>(step<kForward>(of_states.low, of_relation.low, cube),
                                         step<kForward>(of_states.low, of_relation.high, cube),
                                         step<kForward>(of_states.high, of_relation.low, cube),
                                         step<kForward>(of_states.high, of_relation.high, cube));
  const auto [low, high] =
      co_await Results<2>(any_disjunction(parts[0], parts[1]), any_disjunction(parts[2], parts[3]));
  co_return co_await Made(*this, smallest, low, high);
}

template <bool kForward>
Batch::Step Batch::image_step(Edge states, uint32_t from, uint32_t to) {
  if (to - from == 1) {
    const Group& group = engine_.groups[from];
    co_return (co_await Results<1>(step<kForward>(states, group.relation, group.variables)))[0];
  }
  const uint32_t middle = from + (to - from) / 2;
  const auto [low, high] = co_await Results<2>(image<kForward>(states, from, middle),
                                               image<kForward>(states, middle, to));
  co_return (co_await Results<1>(any_disjunction(low, high)))[0];
}

Batch::Step Batch::saturate_step(Edge states, uint32_t index) {
  const Group first = engine_.groups[index];
  const Sons sons = (co_await Nodes<1>(*this, states))[0];
  if (first.first_variable > sons.variable) {
    const auto [low, high] =
        co_await Results<2>(saturate(sons.low, index), saturate(sons.high, index));
    co_return co_await Made(*this, sons.variable, low, high);
  }
  Edge before;
  do {
    before = states;
    states = (co_await Results<1>(saturate(states, first.end_of_equal)))[0];
    for (uint32_t i = index; i < first.end_of_equal; ++i) {
      const Group& group = engine_.groups[i];
      const Edge next =
          (co_await Results<1>(step<true>(states, group.relation, group.variables)))[0];
      states = (co_await Results<1>(any_disjunction(states, next)))[0];
    }
  } while (states != before);
  co_return states;
}

template Batch::Step Batch::relation_step<true>(Edge, Edge, Edge);
template Batch::Step Batch::relation_step<false>(Edge, Edge, Edge);
template Batch::Step Batch::image_step<true>(Edge, uint32_t, uint32_t);
template Batch::Step Batch::image_step<false>(Edge, uint32_t, uint32_t);
// NOLINTEND(readability-static-accessed-through-instance)

}  // namespace cariama::bdd::internal
