// ask(): a call with an answer (question.h) to the service of another process, with one deadline
// for the connection, which may have to be set up first, and the answer.
#ifndef CARIAMA_DSFABRIC_INVOCATION_ASK_H_
#define CARIAMA_DSFABRIC_INVOCATION_ASK_H_

#include <functional>
#include <utility>

#include "dsfabric/fabric.h"
#include "dsfabric/internal/question.h"
#include "dsfabric/peers/connect_deadline.h"
#include "dtutils/wait.h"

namespace cariama::internal {

// Sends a Question (question.h), and returns it. If a connection to `rank` must be set up first and
// the peer does not accept it by `deadline`, Question::wait() returns DEADLINE_EXCEEDED. Pass the
// same deadline to wait(). `late` gets an answer that arrives after wait() has returned; it may be
// empty.
template <typename T, typename F, typename... Args>
[[nodiscard]] Question<T> ask(Fabric& fabric, Rank rank, Deadline deadline,
                              std::function<void(T)> late, F&& function, Args&&... arguments) {
  const ScopedConnectDeadline scope(deadline);
  return Question<T>(fabric, rank, std::move(late), std::forward<F>(function),
                     std::forward<Args>(arguments)...);
}

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_INVOCATION_ASK_H_
