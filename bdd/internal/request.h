// Request: one operation with its operands, which a worker or a job executes.
#ifndef CARIAMA_BDD_INTERNAL_REQUEST_H_
#define CARIAMA_BDD_INTERNAL_REQUEST_H_

#include <cstdint>

#include "bdd/edge.h"

namespace cariama::bdd::internal {

enum class Action : uint8_t {
  kAnd,
  kXor,
  kIte,
  kExists,
  kAndExists,
  kCompose,
  kNext,
  kPrevious,
  kImage,
  kPreimage,
  kChain,
  kSaturate,
};

// The result of a request for which the table has no room. Not an edge.
inline constexpr Edge kNoEdge = ~Edge{0};

// An operand is the place of a root in its manager, since a collection changes edges, and a mark.
struct Operand {
  uint32_t place = 0;
  Edge mark = 0;
};

struct Request {
  Action action;
  Operand a{}, b{}, c{};
  uint32_t variable = 0;
  Edge result_mark = 0;

  // True for actions on the groups of the engine.
  [[nodiscard]] bool over_groups() const { return action >= Action::kImage; }
};

// A request whose operands are edges: the argument of a task, copied as bytes.
struct Instruction {
  Action action;
  uint32_t variable;
  Edge a, b, c;
};

struct Engine;

// Execute an instruction in the calling thread; as a task, in a worker of a job; and as a task of a
// pool. Return kNoEdge if the table has no room.
[[nodiscard]] Edge execute_here(Engine& engine, const Instruction& instruction);
[[nodiscard]] Edge execute_as_task(Instruction instruction);
[[nodiscard]] Edge execute_in_pool(Instruction instruction);

}  // namespace cariama::bdd::internal

#endif  // CARIAMA_BDD_INTERNAL_REQUEST_H_
