// Steps of transition relations over all transitions of a model.
#include "bdd/bdd.h"
#include "bdd/internal/request.h"

namespace cariama::bdd {

using internal::Action;

void Manager::check_steps(const Bdd& states, std::span<const Transition> transitions) {
  require_even(states, "the states");
  for (const Transition& one : transitions) {
    require_even(one.variables, "the variables");
    (void)place_of_cube(one.variables);
  }
}

Bdd Manager::image(const Bdd& states, std::span<const Transition> transitions) {
  check_steps(states, transitions);
  return execute({.action = Action::kImage, .a = {place_of(states)}}, transitions);
}
Bdd Manager::preimage(const Bdd& states, std::span<const Transition> transitions) {
  check_steps(states, transitions);
  return execute({.action = Action::kPreimage, .a = {place_of(states)}}, transitions);
}
Bdd Manager::chain(const Bdd& states, std::span<const Transition> transitions) {
  check_steps(states, transitions);
  return execute({.action = Action::kChain, .a = {place_of(states)}}, transitions);
}
Bdd Manager::saturate(const Bdd& states, std::span<const Transition> transitions,
                      uint32_t first_variable) {
  check_steps(states, transitions);
  return execute({.action = Action::kSaturate, .a = {place_of(states)}, .variable = first_variable},
                 transitions);
}

}  // namespace cariama::bdd
