// Constants that both protocols of steal requests use: the one for started tasks
// (DequeKind::kPrivate, paper/private_scheduler.cc) and the one for pool tasks (pool/).
#ifndef CARIAMA_TASKS_INTERNAL_STEAL_REQUEST_H_
#define CARIAMA_TASKS_INTERNAL_STEAL_REQUEST_H_

#include <chrono>

namespace cariama::tasks {

// How long a thief waits for an answer before it checks that the victim is alive.
inline constexpr std::chrono::milliseconds kVictimCheckInterval{100};

}  // namespace cariama::tasks

#endif  // CARIAMA_TASKS_INTERNAL_STEAL_REQUEST_H_
