// Telling tasks, wherever they are, that their result is not wanted any more.
//
//   cariama::CancellationSource source;
//   const cariama::CancellationToken token = source.token();        // plain data: capture it
//   cariama::parallel_for(token, 0L, n, [=](long i) { if (found(i)) ... ; token.check(); });
//   ... any task, on any worker ...
//   token.cancel();
//
// Cancelling is never silent: who is cancelled throws task_cancelled, which reaches the joiner as
// any exception does. Children that run already go on until they look. Looking is one load, in
// memory of the own worker; cancelling writes to each of the P workers.
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

// What cancelled tasks throw; the type arrives in every process.
class CARIAMA_TASKS_EXPORT task_cancelled : public std::runtime_error {
 public:
  explicit task_cancelled(const std::string& text = "the task was cancelled")
      : std::runtime_error(text) {}
  ~task_cancelled() override;
};

// Plain data; valid on every worker of the runtime.
class CancellationToken {
 public:
  [[nodiscard]] bool cancelled() const { return word_->load(std::memory_order_acquire) == serial_; }
  // Throws task_cancelled if it is.
  void check() const {
    if (cancelled()) [[unlikely]]
      throw task_cancelled();
  }
  // Tells every worker. May be called several times, by any task.
  void cancel() const { tasks::cancel_token(word_, serial_); }

 private:
  friend class CancellationSource;
  CancellationToken(const std::atomic<uint64_t>* word, uint64_t serial)
      : word_(word), serial_(serial) {}

  const std::atomic<uint64_t>* word_;  // at the same address in every worker
  uint64_t serial_;
};

// Makes a token. One round trip to rank 0. Of the last kCancellationTokens made in a job each can
// be cancelled; an older one may be forgotten.
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

// As parallel_for(): looks at the token at each fork, and after each join.
template <std::integral I, std::invocable<I> F>
void parallel_for(CancellationToken token, I begin, I end, F f, I grain = 1) {
  token.check();
  if (end - begin <= grain) {
    for (; begin < end; ++begin) f(begin);
    return;
  }
  const I middle = begin + (end - begin) / 2;
  task<void> low = spawn([=] { parallel_for(token, begin, middle, f, grain); });
  const uint64_t failure = tasks::call_guarded([&] { parallel_for(token, middle, end, f, grain); });
  join(std::move(low));
  if (failure != 0) [[unlikely]]
    tasks::join_record(failure, nullptr, 0);
  token.check();
}

}  // namespace cariama

#endif  // CARIAMA_TASKS_CANCELLATION_H_
