// Cancellation: a task tells all tasks of a job, on any worker, that their results are not needed.
//
//   cariama::CancellationSource source;
//   const cariama::CancellationToken token = source.token();        // plain data: capture it
//   cariama::parallel_for(token, 0L, n, [=](long i) { if (found(i)) ... ; token.check(); });
//   ... any task, on any worker ...
//   token.cancel();
//
// A cancelled task throws task_cancelled in its next check(). The exception reaches the joiner like
// any other exception. A child that has started continues until it calls cancelled() or check().
// Cost: cancelled() and check() are one load from the memory of this worker; cancel() posts one
// write to each of the P workers.
#ifndef CARIAMA_TASKS_CANCELLATION_H_
#define CARIAMA_TASKS_CANCELLATION_H_

#include <atomic>
#include <concepts>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

#include "tasks/export.h"
#include "tasks/fork_join.h"
#include "tasks/parallel.h"
#include "tasks/task.h"

namespace cariama {

// The exception that a cancelled task throws. It keeps its type when it travels to a joiner in
// another process.
class CARIAMA_TASKS_EXPORT task_cancelled : public std::runtime_error {
 public:
  explicit task_cancelled(const std::string& text = "the task was cancelled")
      : std::runtime_error(text) {}
  ~task_cancelled() override;
};

// Names one cancellation. Plain data, valid on every worker of the runtime.
class CancellationToken {
 public:
  // Returns true if a task has called cancel() and its write has arrived at this worker.
  [[nodiscard]] bool cancelled() const { return word_->load(std::memory_order_acquire) == serial_; }
  // Throws task_cancelled if cancelled() is true.
  void check() const {
    if (cancelled()) [[unlikely]]
      throw task_cancelled();
  }
  // Writes the cancellation to every worker. Any task may call it, any number of times.
  void cancel() const { tasks::cancel_token(word_, serial_); }

 private:
  friend class CancellationSource;
  CancellationToken(const std::atomic<uint64_t>* word, uint64_t serial)
      : word_(word), serial_(serial) {}

  // A word of this worker's memory. It has the same address in every worker.
  const std::atomic<uint64_t>* word_;
  uint64_t serial_;
};

// Creates a token, with one round trip to rank 0. A job has kCancellationTokens (tasks/fork_join.h)
// words for tokens, used in turn. Two tokens whose serial numbers differ by a multiple of that
// number share a word: cancelling one of them hides an earlier cancellation of the other. Only
// tasks may construct it, and call cancel(): in other code both end the program with a message.
// cancel() posts a write to each worker, and does not wait for their completion.
class CancellationSource {
 public:
  CancellationSource() : token_(make()) {}
  [[nodiscard]] const CancellationToken& token() const { return token_; }
  void cancel() const { token_.cancel(); }

 private:
  static CancellationToken make() {
    const auto [word, serial] = tasks::new_token();
    return {word, serial};
  }
  CancellationToken token_;
};

// Like parallel_for() of tasks/parallel.h, and checks `token` before each piece, or each interval
// between two looks for a steal request, and after each join. Throws task_cancelled if the token is
// cancelled.
template <std::integral I, std::invocable<I> F>
[[gnu::always_inline]] inline void parallel_for(CancellationToken token, I begin, I end, F f,
                                                std::type_identity_t<I> grain = 0) {
  tasks::check_parts(f);
  tasks::for_range(begin, end, f, grain, [token] { token.check(); });
}

}  // namespace cariama

#endif  // CARIAMA_TASKS_CANCELLATION_H_
