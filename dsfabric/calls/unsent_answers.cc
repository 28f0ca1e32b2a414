#include "dsfabric/calls/unsent_answers.h"

#include <new>

#include "dtutils/internal/start_thread.h"
#include "dtutils/trace.h"
#include "dtutils/wait.h"

namespace cariama::internal {

void UnsentAnswers::add(UnsentAnswer answer) {
  const uint32_t to = answer.to;
  const std::lock_guard lock(mutex_);
  // Either may find no memory. An answer that is kept was counted as begun.
  std::list<UnsentAnswer> kept;
  kept.push_back(std::move(answer));
  counts_.begin(to);
  answers_.splice(answers_.end(), kept);
  any_.store(true, std::memory_order_release);
}

void UnsentAnswers::heartbeat() {
  if (!any_.load(std::memory_order_acquire)) return;
  {
    const std::lock_guard lock(mutex_);
    if (!thread_.joinable() && !job_.lifecycle().is_stopping()) {
      auto thread = start_thread([this] { run_until_stopped(); });
      if (!thread.ok()) return;  // the next heartbeat tries again
      thread_ = *std::move(thread);
    }
  }
  due_.store(true, std::memory_order_release);
  wake_.ring();
}

void UnsentAnswers::run_until_stopped() {
  name_trace_thread("answer thread");
  DoorbellSleeper sleeper(wake_);
  const auto stopping = [&] { return job_.lifecycle().is_stopping(); };
  while (!stopping()) {
    static_cast<void>(
        wait_until([&] { return stopping() || due_.exchange(false, std::memory_order_acquire); },
                   kForever, &sleeper));
    if (!stopping()) repeat_all();
  }
}

void UnsentAnswers::repeat_all() {
  std::list<UnsentAnswer> all;
  {
    const std::lock_guard lock(mutex_);
    all.swap(answers_);
  }
  for (auto answer = all.begin(); answer != all.end();) {
    bool ended = false;
    try {
      ended = job_.lifecycle().is_stopping() || repeat_(*answer);
    } catch (const std::bad_alloc&) {  // is tried again
    }
    if (!ended) {
      ++answer;
      continue;
    }
    counts_.end(answer->to);
    answer = all.erase(answer);
  }
  const std::lock_guard lock(mutex_);
  answers_.splice(answers_.begin(), all);
  any_.store(!answers_.empty(), std::memory_order_release);
}

void UnsentAnswers::stop() {
  wake_.ring();
  std::thread thread;
  {
    const std::lock_guard lock(mutex_);
    thread = std::move(thread_);
  }
  if (thread.joinable()) thread.join();
}

}  // namespace cariama::internal
