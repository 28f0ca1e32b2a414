// Results and completions of calls, to be polled, waited for, or awaited with co_await.
//
//   Future<int> sum = async_call(fabric, thread, [](int a, int b) { return a + b; }, 2, 3);
//   absl::StatusOr<int> value = sum.get(deadline);       // waits, running incoming calls meanwhile
//   Future<int> same = messenger.async_call([](int a, int b) { return a + b; }, 2, 3);  // riutils
//   Future<void> run;                                    // a completion (completions.h)
//   call<RemoteNotify>(fabric, thread, [] { ... }, run);
//   absl::Status status = run.get(deadline);
//
//   Detached work(Fabric& fabric) {
//     absl::StatusOr<int> value = co_await async_call(fabric, thread, ...);
//     Synchronizer done;
//     call<RemoteNotify>(fabric, thread, [] { ... }, done);
//     absl::Status status = co_await finished(fabric, done);
//   }
//
// A coroutine resumes where the calls to its thread run. If it suspends on worker w, its resumption
// is delivered like a call to w, in order with the other calls to w: it runs in w itself when w
// processes calls or waits, in a helper thread, or in the process consumer. A coroutine that
// suspends on a thread without a name resumes in the thread that receives the answer, a service
// thread, and must not block. co_await throws std::bad_alloc, and does not suspend, if there is no
// memory for the resumption.
//
// An exception that leaves a resumed coroutine leaves the function that has resumed it, for example
// process_calls() or wait(), after the other coroutines that are due; if several throw, the first
// exception does. In a thread of the library std::bad_alloc is reported, and any other exception
// terminates the process. Detached terminates it in any case.
#ifndef CARIAMA_DSFABRIC_FUTURE_H_
#define CARIAMA_DSFABRIC_FUTURE_H_

#include <atomic>
#include <coroutine>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dsfabric/export.h"
#include "dsfabric/fabric.h"
#include "dsfabric/serializer.h"
#include "dtutils/synchronizer.h"
#include "dtutils/wait.h"

namespace cariama {

namespace internal {

struct OwnMessage;  // dsfabric/peers/connection.h

// The error of a Future that belongs to no call.
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT absl::Status future_without_call();

// The state that a Future shares with the call that completes it.
class CARIAMA_DSFABRIC_EXPORT FutureState {
 public:
  explicit FutureState(Fabric& fabric);
  virtual ~FutureState();

  [[nodiscard]] bool ready() const {
    return waiter_.load(std::memory_order_acquire) == ready_mark();
  }
  [[nodiscard]] absl::Status wait(Deadline deadline);
  [[nodiscard]] const absl::Status& status() const { return status_; }
  // Suspends `coroutine` until the result is ready. Returns false if it is ready already: the
  // coroutine then continues immediately. At most one coroutine may await a Future. Throws
  // std::bad_alloc unless prepare() was called, and then does not suspend it.
  [[nodiscard]] bool suspend(std::coroutine_handle<> coroutine);
  // Allocates what suspend() needs, in the thread that will call it. Throws std::bad_alloc.
  void prepare();
  // Makes the result ready, and resumes the coroutine that awaits it. A second call has no effect:
  // the end of an awaited transfer is repeated after std::bad_alloc, which the coroutine may throw.
  void finish(absl::Status status, std::span<const std::byte> result);
  // Records the process and the thread that are called. Call it before the call is sent. With
  // kNoThread, a wait for the Future inside of a call does not detect that it cannot end.
  void calls(Rank rank, ThreadId destination) {
    rank_ = rank;
    destination_ = destination;
  }

 private:
  virtual void load(std::span<const std::byte> result) = 0;
  // The value of waiter_ that means "ready". It differs from every coroutine's address.
  [[nodiscard]] void* ready_mark() const { return const_cast<FutureState*>(this); }

  Fabric& fabric_;
  Rank rank_ = kNoRank;
  ThreadId destination_ = kNoThread;
  bool prepared_ = false;
  std::unique_ptr<OwnMessage> resumption_;  // of the coroutine; written before waiter_
  std::atomic<void*> waiter_{nullptr};
  absl::Status status_;
};

template <typename T>
class FutureValue final : public FutureState {
 public:
  using FutureState::FutureState;
  [[nodiscard]] absl::StatusOr<T> take() {
    if (!status().ok()) return status();
    return *std::move(value_);
  }

 private:
  void load(std::span<const std::byte> result) override { value_ = load_value<T>(result); }
  std::optional<T> value_;
};
template <>
class FutureValue<void> final : public FutureState {
 public:
  using FutureState::FutureState;
  [[nodiscard]] absl::Status take() { return status(); }

 private:
  void load(std::span<const std::byte>) override {}
};

class FutureAccess;

}  // namespace internal

// The result of a call, or the reason why there is none: INTERNAL (the function threw; with type
// and text), UNAVAILABLE (its process is dead), INVALID_ARGUMENT (the destination found the
// arguments malformed), UNIMPLEMENTED (it does not know the function); if the call was not
// accepted, the reason. Movable. The fabric must outlive it. At most one thread at a time uses it,
// and at most one coroutine awaits it. It may be destroyed before it is ready: the call continues,
// and its result is dropped.
template <typename T>
class Future {
 public:
  using Result = std::conditional_t<std::is_void_v<T>, absl::Status, absl::StatusOr<T>>;

  // Creates a Future that belongs to no call: it is never ready, and get() returns
  // FAILED_PRECONDITION. If it is passed to a call as a completion, it becomes the Future of that
  // call's event.
  Future() = default;
  // Returns a Future that is ready and holds the error `why`.
  [[nodiscard]] static Future failed(Fabric& fabric, absl::Status why) {
    auto state = std::make_shared<internal::FutureValue<T>>(fabric);
    state->finish(std::move(why), {});
    return Future(std::move(state));
  }

  [[nodiscard]] bool ready() const { return state_ != nullptr && state_->ready(); }
  // Blocks until the result is ready; runs incoming calls meanwhile. Moves the value out, so it
  // returns the value once. Returns DEADLINE_EXCEEDED if the deadline comes first (ready() is then
  // false); call get() again then. Returns FAILED_PRECONDITION inside of a call for a result from
  // the calling thread itself (that call could not run before this one has ended), and for a Future
  // that belongs to no call.
  [[nodiscard]] Result get(Deadline deadline) {
    if (state_ == nullptr) return internal::future_without_call();
    if (absl::Status came = state_->wait(deadline); !came.ok()) return came;
    return state_->take();
  }

  [[nodiscard]] bool await_ready() const { return state_ == nullptr || ready(); }
  [[nodiscard]] bool await_suspend(std::coroutine_handle<> coroutine) {
    return state_->suspend(coroutine);
  }
  [[nodiscard]] Result await_resume() {
    if (state_ == nullptr) return internal::future_without_call();
    return state_->take();
  }

 private:
  friend class internal::FutureAccess;
  explicit Future(std::shared_ptr<internal::FutureValue<T>> state) : state_(std::move(state)) {}

  std::shared_ptr<internal::FutureValue<T>> state_;
};

namespace internal {

// Makes the Futures of calls.
class FutureAccess {
 public:
  template <typename T>
  [[nodiscard]] static Future<T> of(std::shared_ptr<FutureValue<T>> state) {
    return Future<T>(std::move(state));
  }
};

}  // namespace internal

// co_await finished(fabric, done) resumes once `done` has no operation left, and yields
// done.status(). Works for operations that the fabric counts down. Code that counts `done` down
// itself must call Fabric::wake() afterwards.
class CARIAMA_DSFABRIC_EXPORT SynchronizerAwaiter {
 public:
  SynchronizerAwaiter(Fabric& fabric, Synchronizer& done) : fabric_(fabric), done_(done) {}
  [[nodiscard]] bool await_ready() const { return done_.done(); }
  [[nodiscard]] bool await_suspend(std::coroutine_handle<> coroutine);
  [[nodiscard]] absl::Status await_resume() const { return done_.status(); }

 private:
  Fabric& fabric_;
  Synchronizer& done_;
};
[[nodiscard]] inline SynchronizerAwaiter finished(Fabric& fabric, Synchronizer& done) {
  return {fabric, done};
}

// The return type of a coroutine whose result is not awaited. The coroutine starts immediately, and
// destroys itself at its end. An exception that leaves it terminates the process.
struct Detached {
  struct promise_type {
    Detached get_return_object() { return {}; }
    std::suspend_never initial_suspend() noexcept { return {}; }
    std::suspend_never final_suspend() noexcept { return {}; }
    void return_void() {}
    void unhandled_exception() { std::terminate(); }
  };
};

}  // namespace cariama

#endif  // CARIAMA_DSFABRIC_FUTURE_H_
