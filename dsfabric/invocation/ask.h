// A Question with one deadline for its connection and its answer.
#ifndef CARIAMA_DSFABRIC_INVOCATION_ASK_H_
#define CARIAMA_DSFABRIC_INVOCATION_ASK_H_

#include <functional>
#include <utility>

#include "dsfabric/fabric.h"
#include "dsfabric/peers/connect_deadline.h"
#include "dsfabric/question.h"
#include "dtutils/wait.h"

namespace cariama::internal {

// Sends a Question. If a connection to `rank` must be set up first and is not accepted by
// `deadline`, Question::wait() returns DEADLINE_EXCEEDED. Pass the same deadline to it.
template <typename T, typename F, typename... Args>
[[nodiscard]] Question<T> ask(Fabric& fabric, Rank rank, Deadline deadline,
                              std::function<void(T)> late, F&& function, Args&&... arguments) {
  const ScopedConnectDeadline scope(deadline);
  return Question<T>(fabric, rank, std::move(late), std::forward<F>(function),
                     std::forward<Args>(arguments)...);
}

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_INVOCATION_ASK_H_
