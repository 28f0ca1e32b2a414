// The schedulers of this folder, for comparison with the product's. docs/tasks.md has figures.
#ifndef CARIAMA_TASKS_PAPER_KINDS_H_
#define CARIAMA_TASKS_PAPER_KINDS_H_

#include "tasks/internal/worker_kind.h"
#include "tasks/runtime.h"

namespace cariama::tasks {

[[nodiscard]] WorkerKind the_deque_kind(JoinPolicy join);      // DequeKind::kThe
[[nodiscard]] WorkerKind private_deque_kind(JoinPolicy join);  // DequeKind::kPrivate
[[nodiscard]] WorkerKind crude_kind(JoinPolicy join);          // StackScheme::kCrude
[[nodiscard]] WorkerKind iso_kind(JoinPolicy join);            // StackScheme::kIso

}  // namespace cariama::tasks

#endif  // CARIAMA_TASKS_PAPER_KINDS_H_
