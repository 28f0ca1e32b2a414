// Symbolic reachability: a farmer takes a wolf, a goat and a cabbage across a river. The boat takes
// the farmer and at most one of them. Wolf and goat, or goat and cabbage, must not be alone.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "bdd/bdd.h"
#include "bdd/model_file.h"
#include "bdd/reachability.h"
#include "docs/examples/check.h"
#include "docs/examples/options.h"

namespace {

using cariama::bdd::Bdd;
using cariama::bdd::Manager;
using cariama::bdd::Model;
using cariama::bdd::ReachResult;

// [model]
// A bit for each of farmer, wolf, goat and cabbage: 1 on the far bank. Variable 2i is the bit now,
// variable 2i+1 the bit after the crossing.
Model river(Manager& manager) {
  Model model;
  model.bits = {1, 1, 1, 1};
  model.first_bit = {0, 1, 2, 3};
  model.state_bits = 4;
  model.variables = manager.cube({0, 2, 4, 6});
  std::vector<Bdd> now, then;
  for (uint32_t i = 0; i < 4; ++i) {
    now.push_back(manager.variable(2 * i));
    then.push_back(manager.variable(2 * i + 1));
  }
  model.initial = ~now[0] & ~now[1] & ~now[2] & ~now[3];
  const Bdd goat_without_farmer = then[2] ^ then[0];
  const Bdd eaten = goat_without_farmer & (~(then[2] ^ then[1]) | ~(then[2] ^ then[3]));
  for (uint32_t passenger = 0; passenger < 4; ++passenger) {  // 0: no passenger
    Bdd crossing = ~(now[passenger] ^ now[0]) & ~eaten;
    for (uint32_t i = 0; i < 4; ++i) {
      const Bdd moves = then[i] ^ now[i];
      crossing = crossing & (i == 0 || i == passenger ? moves : ~moves);
    }
    model.transitions.push_back({crossing, model.variables});
  }
  return model;
}
// [model]

// [reach]
ReachResult cross(const Model& model) {
  // All four are on the far bank.
  const Bdd goal = check(model.states_of("0=1,1=1,2=1,3=1"));
  return check(reach(model, {.strategy = cariama::bdd::Strategy::kBfs, .goal = goal}));
}
// [reach]

}  // namespace

int main(int argc, char** argv) {
  read_options(argc, argv, {.launches = false});
  auto manager = check(Manager::create({}));
  const Model model = river(*manager);
  const ReachResult result = cross(model);
  const char* const passengers[] = {"nobody", "the wolf", "the goat", "the cabbage"};
  for (const auto& step : result.trace) {
    if (step.group) std::printf("the farmer takes %s\n", passengers[*step.group]);
  }
  return result.trace.size() == 8 && result.states == 10u ? 0 : 1;
}
