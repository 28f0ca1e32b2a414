#include "bdd/internal/request.h"

#include "bdd/internal/engine.h"
#include "bdd/internal/recursion.h"
#include "bdd/internal/relations.h"

namespace cariama::bdd::internal {
namespace {

template <typename Where>
Edge perform(Where where, const Instruction& instruction) {
  const auto [action, variable, a, b, c] = instruction;
  switch (action) {
    case Action::kAnd:
      return conjoin(where, a, b);
    case Action::kXor:
      return exclusive_or(where, a, b);
    case Action::kIte:
      return if_then_else(where, a, b, c);
    case Action::kExists:
      return quantify(where, a, c);
    case Action::kAndExists:
      return conjoin_quantify(where, a, b, c);
    case Action::kCompose:
      return substitute(where, a, variable, b);
    case Action::kNext:
      return step<true>(where, a, b, c);
    case Action::kPrevious:
      return step<false>(where, a, b, c);
    case Action::kImage:
      return image<Where, true>(where, a, 0, static_cast<uint32_t>(where.engine().groups.size()));
    case Action::kPreimage:
      return image<Where, false>(where, a, 0, static_cast<uint32_t>(where.engine().groups.size()));
    case Action::kChain:
      return chain(where, a);
    case Action::kSaturate: {
      uint32_t first = 0;
      for (const Group& group : where.engine().groups) first += group.first_variable < variable;
      return saturate(where, a, first);
    }
  }
  return kNoEdge;
}

template <typename Where>
Edge perform_or_fail(Where where, const Instruction& instruction) {
  try {
    return perform(where, instruction);
  } catch (const NoRoom&) {
    return kNoEdge;
  }
}

}  // namespace

Engine* worker_engine = nullptr;

Edge execute_here(Engine& engine, const Instruction& instruction) {
  return engine.batch != nullptr ? perform_or_fail(InBatch{&engine}, instruction)
                                 : perform_or_fail(Here{&engine}, instruction);
}
Edge execute_as_task(Instruction instruction) { return perform_or_fail(AsTasks{}, instruction); }
Edge execute_in_pool(Instruction instruction) { return perform_or_fail(InPool{}, instruction); }

}  // namespace cariama::bdd::internal
