// Results that are not there yet: as an object to ask, or to co_await.
//
//   Future<int> sum = async_call(fabric, thread, [](int a, int b) { return a + b; }, 2, 3);
//   absl::StatusOr<int> value = sum.get(deadline);       // waits, running incoming calls meanwhile
//   Future<int> same = messenger.async_call([](int a, int b) { return a + b; }, 2, 3);  // riutils
//
//   Detached work(Fabric& fabric) {
//     absl::StatusOr<int> value = co_await async_call(fabric, thread, ...);
//     Synchronizer done;
//     call<RemoteNotify>(fabric, thread, [] { ... }, done);
//     absl::Status status = co_await finished(fabric, done);
//   }
//
// A coroutine goes on where the calls to its thread run: what it awaits from worker w resumes it as
// a call to w would run, in w itself when that processes calls or waits, in a helper thread, or in
// the process consumer, in turn with those calls. One that awaits on a thread without name goes on
// in the thread that the answer reached, a service thread, and must not block.
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
#include "dsfabric/send_call.h"
#include "dtutils/error.h"
#include "dtutils/synchronizer.h"

namespace cariama {

namespace internal {

// What a Future and the call that fills it share.
class CARIAMA_DSFABRIC_EXPORT FutureState {
 public:
  explicit FutureState(Fabric& fabric);
  virtual ~FutureState() = default;

  [[nodiscard]] bool ready() const {
    return waiter_.load(std::memory_order_acquire) == ready_mark();
  }
  [[nodiscard]] absl::Status wait(Deadline deadline);
  [[nodiscard]] const absl::Status& status() const { return status_; }
  // False: it is ready, go on at once. One coroutine at a time.
  [[nodiscard]] bool suspend(std::coroutine_handle<> coroutine);
  void finish(absl::Status status, std::span<const std::byte> result);
  // Global id of the thread that is called. Before the call is sent.
  void calls(uint32_t destination) { destination_ = destination; }

 private:
  virtual void load(std::span<const std::byte> result) = 0;
  // No coroutine's address.
  [[nodiscard]] void* ready_mark() const { return const_cast<FutureState*>(this); }

  Fabric& fabric_;
  uint32_t destination_ = kNoThread;
  uint32_t worker_ = kNoThread;  // of the coroutine; written before waiter_
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

// For calls by other paths: the handle of the answer by process `rank` that finishes `state`.
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT uint64_t expect_future(Fabric& fabric, uint32_t rank,
                                                             std::shared_ptr<FutureState> state);

// Sends the call, whose end finishes `state`.
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT absl::Status send_for_future(
    Fabric& fabric, uint32_t destination, FunctionId id, size_t bytes, const void* call,
    void (*write)(const void* call, std::byte* at), WhenFull when_full,
    std::shared_ptr<FutureState> state);

}  // namespace internal

// The result of a call, or the reason why there is none: INTERNAL (the function threw: with type
// and text), UNAVAILABLE (its process is dead), and so on. Movable; the fabric must outlive it. One
// thread at a time uses it, and one coroutine awaits it.
template <typename T>
class Future {
 public:
  using Result = std::conditional_t<std::is_void_v<T>, absl::Status, absl::StatusOr<T>>;

  explicit Future(std::shared_ptr<internal::FutureValue<T>> state) : state_(std::move(state)) {}
  // One that is ready, and has no result.
  [[nodiscard]] static Future failed(Fabric& fabric, absl::Status why) {
    auto state = std::make_shared<internal::FutureValue<T>>(fabric);
    state->finish(std::move(why), {});
    return Future(std::move(state));
  }

  [[nodiscard]] bool ready() const { return state_->ready(); }
  // Waits for it, running incoming calls meanwhile. The value is moved out: once. DEADLINE_EXCEEDED
  // if the deadline comes first; it may be asked again then. FAILED_PRECONDITION: inside of a call,
  // for a call to the same thread, which is not run before this one has ended.
  [[nodiscard]] Result get(Deadline deadline = kForever) {
    if (absl::Status came = state_->wait(deadline); !came.ok()) return came;
    return state_->take();
  }

  [[nodiscard]] bool await_ready() const { return ready(); }
  [[nodiscard]] bool await_suspend(std::coroutine_handle<> coroutine) {
    return state_->suspend(coroutine);
  }
  [[nodiscard]] Result await_resume() { return state_->take(); }

 private:
  std::shared_ptr<internal::FutureValue<T>> state_;
};

// As call_return(), with the result as a Future. A call that cannot be sent is a future that is
// ready.
template <auto... Options, typename F, typename... Args>
[[nodiscard]] auto async_call(Fabric& fabric, uint32_t destination, F&& function,
                              Args&&... arguments) {
  const auto call = make_call(std::forward<F>(function), std::forward<Args>(arguments)...);
  using Call = std::remove_const_t<decltype(call)>;
  using T = typename Call::Result;
  auto state = std::make_shared<internal::FutureValue<T>>(fabric);
  absl::Status sent = internal::send_for_future(
      fabric, destination, Call::id(), call.bytes(), &call,
      [](const void* self, std::byte* at) { static_cast<const Call*>(self)->write(at); },
      CallOptions<Options...>::kWhenFull, state);
  if (!sent.ok()) state->finish(std::move(sent), {});
  return Future<T>(std::move(state));
}

// co_await finished(fabric, done): goes on once `done` has no operation left; yields done.status().
// For operations that the fabric counts down; who counts down by hand calls Fabric::wake()
// afterwards.
class CARIAMA_DSFABRIC_EXPORT SynchronizerAwaiter {
 public:
  SynchronizerAwaiter(Fabric& fabric, Synchronizer& done) : fabric_(fabric), done_(done) {}
  [[nodiscard]] bool await_ready() const { return done_.done(); }
  void await_suspend(std::coroutine_handle<> coroutine);
  [[nodiscard]] absl::Status await_resume() const { return done_.status(); }

 private:
  Fabric& fabric_;
  Synchronizer& done_;
};
[[nodiscard]] inline SynchronizerAwaiter finished(Fabric& fabric, Synchronizer& done) {
  return {fabric, done};
}

// A coroutine that nobody waits for: starts at once, and frees itself at its end. What it throws
// ends the process.
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
