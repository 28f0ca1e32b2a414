// The recursive operations on transition relations: one step forward and backward, and saturation.
// Rules for frames: recursion.h.
#ifndef CARIAMA_BDD_INTERNAL_RELATIONS_H_
#define CARIAMA_BDD_INTERNAL_RELATIONS_H_

#include <algorithm>
#include <cstdint>

#include "bdd/internal/recursion.h"

namespace cariama::bdd::internal {

// The four cofactors of a relation for a pair of an unprimed and a primed variable: `of_low.high`
// leads from states with 0 to states with 1.
struct Four {
  Two of_low;
  Two of_high;
};
[[gnu::always_inline]] inline Four cofactors_of_pair(const Engine& engine, Edge relation,
                                                     const Sons& sons, uint32_t unprimed) {
  const Two halves = cofactors(sons, relation, unprimed);
  const uint32_t primed = unprimed + 1;
  return {cofactors(engine.sons(halves.low), halves.low, primed),
          cofactors(engine.sons(halves.high), halves.high, primed)};
}

// Skips the variables of `cube` that neither operand depends on. `top` is the smallest variable of
// the operands. Returns false if the cube has no variable left.
[[gnu::always_inline]] inline bool skip_variables(const Engine& engine, uint32_t top, Edge& cube,
                                                  Sons& first) {
  const uint32_t unprimed = top & ~uint32_t{1};
  for (;;) {
    if (is_constant(cube)) return false;
    first = engine.sons(cube);
    if (first.variable >= unprimed) return true;
    cube = first.high;
  }
}

// Bdd::relnext and Bdd::relprev. kForward: returns the successors of `states` by `relation`, which
// is exists the unprimed variables of `cube` in (states and relation), with the primed variables
// renamed to unprimed ones. Otherwise returns the predecessors, the states from which `relation`
// leads to a state of `states`. Variables of `states` that are not in `cube` keep their values.
// Variables of `relation` outside of `cube` and its primed copy are quantified.
template <bool kForward, typename Where>
Edge step(Where where, Edge states, Edge relation, Edge cube) {
  if (states == kFalse || relation == kFalse) return kFalse;
  uint32_t top;
  Two of_states;
  Four of_relation{};
  Edge rest;
  bool paired;
  bool outside = false;    // the relation depends on `top`, which is not in the cube
  bool in_states = false;  // the states depend on `top`, which is not in the cube
  {
    Engine& engine = where.engine();
    const Sons sons = engine.sons(states);
    const Sons sons_relation = engine.sons(relation);
    const uint32_t smallest = std::min(sons.variable, sons_relation.variable);
    Sons first;
    // Here the relation is a satisfiable function of quantified variables only.
    if (smallest == kNoVariable || !skip_variables(engine, smallest, cube, first)) return states;
    top = smallest & ~uint32_t{1};
    paired = first.variable == top;
    if (paired) {
      rest = first.high;
      of_states = cofactors(sons, states, top);
      of_relation = cofactors_of_pair(engine, relation, sons_relation, top);
    } else {
      top = smallest;
      rest = cube;
      in_states = sons.variable == top;
      outside = sons_relation.variable == top;
      of_states = cofactors(sons, states, top);
      of_relation.of_low = cofactors(sons_relation, relation, top);
    }
  }
  constexpr Op kOp = kForward ? Op::kNext : Op::kPrevious;
  Edge result;
  if (where.engine().cache.find(key_of(kOp, states), relation, cube, result)) return result;
  give_up_if_full(where);
  if (in_batch(where)) {
    return run_in_batch(where,
                        [=](Batch& batch) { return batch.step<kForward>(states, relation, cube); });
  }
  if (paired) {
    // One task for each value of the variable in the result.
    const Two two = fork(
        where,
        [=, s0 = of_states.low, s1 = of_states.high, r0 = of_relation.of_low.low,
         r1 = kForward ? of_relation.of_high.low : of_relation.of_low.high] {
          const Two parts = fork(
              where, [=] { return step<kForward>(where, s0, r0, rest); },
              [&] { return step<kForward>(where, s1, r1, rest); });
          return disjoin(where, parts.low, parts.high);
        },
        [&] {
          const Two parts = fork(
              where,
              [=, s0 = of_states.low,
               r0 = kForward ? of_relation.of_low.high : of_relation.of_high.low] {
                return step<kForward>(where, s0, r0, rest);
              },
              [&] {
                return step<kForward>(where, of_states.high, of_relation.of_high.high, rest);
              });
          return disjoin(where, parts.low, parts.high);
        });
    result = where.engine().make(top, two.low, two.high);
  } else if (!outside) {
    const Two two = fork(
        where, [=, low = of_states.low] { return step<kForward>(where, low, relation, rest); },
        [&] { return step<kForward>(where, of_states.high, relation, rest); });
    result = where.engine().make(top, two.low, two.high);
  } else {
    const Edge low =
        disjoin(where, step<kForward>(where, of_states.low, of_relation.of_low.low, rest),
                step<kForward>(where, of_states.low, of_relation.of_low.high, rest));
    const Edge high =
        !in_states
            ? low
            : disjoin(where, step<kForward>(where, of_states.high, of_relation.of_low.low, rest),
                      step<kForward>(where, of_states.high, of_relation.of_low.high, rest));
    result = where.engine().make(top, low, high);
  }
  where.engine().cache.put(key_of(kOp, states), relation, cube, result);
  return result;
}

// Returns the union of the successors (or predecessors) of `states` by the groups [from, to).
template <typename Where, bool kForward>
Edge image(Where where, Edge states, uint32_t from, uint32_t to) {
  if (from == to) return kFalse;
  if (to - from == 1) {
    const Group group = where.engine().groups[from];
    return step<kForward>(where, states, group.relation, group.variables);
  }
  give_up_if_full(where);
  if (in_batch(where)) {
    return run_in_batch(where,
                        [=](Batch& batch) { return batch.image<kForward>(states, from, to); });
  }
  const uint32_t middle = from + (to - from) / 2;
  const Two two = fork(
      where, [=] { return image<Where, kForward>(where, states, from, middle); },
      [&] { return image<Where, kForward>(where, states, middle, to); });
  return disjoin(where, two.low, two.high);
}

// Returns `states` with their successors by group 0, with the successors of the result by group 1,
// and so on.
template <typename Where>
Edge chain(Where where, Edge states) {
  const auto count = static_cast<uint32_t>(where.engine().groups.size());
  for (uint32_t i = 0; i < count; ++i) {
    const Group group = where.engine().groups[i];
    states = disjoin(where, states, step<true>(where, states, group.relation, group.variables));
  }
  return states;
}

// Returns all states that the groups from `index` on reach from `states`, by saturation: a group
// applies only to nodes of its first variable, after the nodes below have reached their fixed
// points (Ciardo, Lüttgen and Siminiescu; in the form of van Dijk's Sylvan).
template <typename Where>
Edge saturate(Where where, Edge states, uint32_t index) {
  if (states == kFalse || index == where.engine().groups.size()) return states;
  const uint64_t set = where.engine().group_set;
  Edge result;
  if (where.engine().cache.find(key_of(Op::kSaturate, states), index, set, result)) return result;
  give_up_if_full(where);
  if (in_batch(where)) {
    return run_in_batch(where, [=](Batch& batch) { return batch.saturate(states, index); });
  }
  const Edge argument = states;
  const Group first = where.engine().groups[index];
  const Sons sons = where.engine().sons(states);
  if (first.first_variable <= sons.variable) {
    Edge before;
    do {
      before = states;
      states = saturate(where, states, first.end_of_equal);
      for (uint32_t i = index; i < first.end_of_equal; ++i) {
        const Group group = where.engine().groups[i];
        states = disjoin(where, states, step<true>(where, states, group.relation, group.variables));
      }
    } while (states != before);
    result = states;
  } else {
    const uint32_t top = sons.variable;
    const Two two = fork(
        where, [=, low = sons.low] { return saturate(where, low, index); },
        [&] { return saturate(where, sons.high, index); });
    result = where.engine().make(top, two.low, two.high);
  }
  where.engine().cache.put(key_of(Op::kSaturate, argument), index, set, result);
  return result;
}

}  // namespace cariama::bdd::internal

#endif  // CARIAMA_BDD_INTERNAL_RELATIONS_H_
