// A service call whose result the caller waits for with a deadline. Several may be in flight at the
// same time.
//
//   Question<uint64_t> question(fabric, rank, nullptr, [](int id) { return look_up(id); }, 7);
//   absl::StatusOr<uint64_t> answer = question.wait(deadline);
//
// For this library's own protocols, in this layer and above; programs use async_call (future.h).
#ifndef CARIAMA_DSFABRIC_INTERNAL_QUESTION_H_
#define CARIAMA_DSFABRIC_INTERNAL_QUESTION_H_

#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dsfabric/fabric.h"
#include "dsfabric/send_call.h"
#include "dtutils/error.h"
#include "dtutils/internal/peer_remedy.h"
#include "dtutils/synchronizer.h"

namespace cariama::internal {

// Thread-compatible. May be destroyed before the answer has come.
template <typename T>
class Question {
 public:
  // Sends the call to the service of `rank`. Never waits for credits. If wait() has timed out
  // before the answer comes, the answer is passed to `late` (if given), in the thread that receives
  // it.
  template <typename F, typename... Args>
  Question(Fabric& fabric, Rank rank, std::function<void(T)> late, F&& function,
           Args&&... arguments)
      : fabric_(fabric), rank_(rank) {
    answer_->late = std::move(late);
    const auto made = make_call(function, std::forward<Args>(arguments)...);
    const auto& call = owned(made);
    CallEnd end;
    end.consumed = EventReceiver(answer_->done);
    end.receiver = std::make_unique<Receiver>(answer_);
    sent_ = send_call(fabric, rank, kService, OutgoingCall::of(call), RetryAsync, end);
  }

  // Blocks until the answer has come; runs calls meanwhile. Errors: those of the call;
  // DEADLINE_EXCEEDED (then wait() may be called again, unless the question has a `late`).
  [[nodiscard]] absl::StatusOr<T> wait(Deadline deadline) {
    if (!sent_.ok()) return sent_;
    Answer& answer = *answer_;
    const bool ended =
        answer.done.done() || fabric_.wait([&] { return answer.done.done(); }, deadline);
    // Either the deadline or the answer claims the question first. If this thread is second, the
    // answer is in place.
    if (!ended && !(answer.late && answer.claimed.exchange(true, std::memory_order_acq_rel))) {
      return make_error(absl::StatusCode::kDeadlineExceeded, ErrorScope::kPeer,
                        fabric_.label(rank_) + " did not answer in time",
                        peer_remedy(PeerRemedy::kSilent));
    }
    if (absl::Status status = answer.done.status(); !status.ok()) return status;
    return std::move(answer.value);
  }

  // Returns true if the answer has come, or cannot come: wait() then returns immediately. Never
  // blocks and runs no calls.
  [[nodiscard]] bool answered() const { return !sent_.ok() || answer_->done.done(); }

 private:
  struct Answer {
    Synchronizer done;
    T value{};
    std::function<void(T)> late;
    std::atomic<bool> claimed{false};
  };
  class Receiver final : public ResultReceiver {
   public:
    explicit Receiver(std::shared_ptr<Answer> answer) : answer_(std::move(answer)) {}
    void receive(std::span<const std::byte> result) override {
      answer_->value = load_value<T>(result);
      if (answer_->late && answer_->claimed.exchange(true, std::memory_order_acq_rel)) {
        answer_->late(std::move(answer_->value));
      }
    }

   private:
    std::shared_ptr<Answer> answer_;
  };

  Fabric& fabric_;
  const Rank rank_;
  std::shared_ptr<Answer> answer_ = std::make_shared<Answer>();
  absl::Status sent_;
};

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_INTERNAL_QUESTION_H_
