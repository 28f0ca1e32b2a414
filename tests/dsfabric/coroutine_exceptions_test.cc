// Coroutines that await Synchronizers: the program counts them down, or the exception of another
// coroutine leaves the function that resumes them.
#include <coroutine>
#include <cstdint>
#include <exception>
#include <stdexcept>
#include <thread>
#include <utility>

#include "dsfabric/fabric.h"
#include "dsfabric/future.h"
#include "dsfabric/internal/call_source.h"
#include "dtutils/synchronizer.h"
#include "gtest/gtest.h"
#include "tests/dsfabric/testing/local_job.h"

namespace cariama::testing {
namespace {

// A coroutine that passes its exception on. This object destroys it.
class Passing {
 public:
  struct promise_type {
    Passing get_return_object() {
      return Passing(std::coroutine_handle<promise_type>::from_promise(*this));
    }
    std::suspend_never initial_suspend() noexcept { return {}; }
    std::suspend_always final_suspend() noexcept { return {}; }
    void return_void() {}
    void unhandled_exception() { throw; }
  };
  Passing(Passing&& other) noexcept : coroutine_(std::exchange(other.coroutine_, {})) {}
  Passing& operator=(Passing&&) = delete;
  ~Passing() {
    if (coroutine_) coroutine_.destroy();
  }

 private:
  explicit Passing(std::coroutine_handle<> coroutine) : coroutine_(coroutine) {}
  std::coroutine_handle<> coroutine_;
};

Passing throw_after(Fabric& fabric, Synchronizer& done, uint32_t& resumed) {
  static_cast<void>(co_await finished(fabric, done));
  ++resumed;
  throw std::runtime_error("expected");
}

Passing count_after(Fabric& fabric, Synchronizer& done, uint32_t& resumed) {
  static_cast<void>(co_await finished(fabric, done));
  ++resumed;
}

// The thread has no name, so it resumes coroutines itself.
LocalJobOptions unnamed_thread() {
  LocalJobOptions options{.processes = 1};
  options.init_thread = false;
  return options;
}

TEST(CoroutineExceptions, AllThatAreDueAreResumed) {
  LocalJob job(unnamed_thread());
  job.run([](Fabric& fabric, uint32_t) {
    Synchronizer first, second, third;
    uint32_t resumed = 0;
    const Passing one = throw_after(fabric, first, resumed);
    const Passing two = throw_after(fabric, second, resumed);
    const Passing three = count_after(fabric, third, resumed);
    for (Synchronizer* const done : {&first, &second, &third}) done->decrease();
    EXPECT_EQ(resumed, 0U);
    EXPECT_THROW(internal::tell_waiters(fabric), std::runtime_error);
    EXPECT_EQ(resumed, 3U);
    EXPECT_NO_THROW(internal::tell_waiters(fabric));
    EXPECT_EQ(resumed, 3U);
  });
}

// A coroutine that suspends while another one is due does not get the exception of the other.
TEST(CoroutineExceptions, StayOutOfACoroutineThatSuspends) {
  LocalJob job(unnamed_thread());
  job.run([](Fabric& fabric, uint32_t) {
    Synchronizer first, second;
    uint32_t resumed = 0;
    const Passing one = throw_after(fabric, first, resumed);
    first.decrease();
    const Passing two = count_after(fabric, second, resumed);
    EXPECT_EQ(resumed, 0U);
    EXPECT_THROW(internal::tell_waiters(fabric), std::runtime_error);
    EXPECT_EQ(resumed, 1U);
    second.decrease();
    internal::tell_waiters(fabric);
    EXPECT_EQ(resumed, 2U);
  });
}

Detached set_after(Fabric& fabric, Synchronizer& done, bool& resumed) {
  must(co_await finished(fabric, done));
  resumed = true;
}

TEST(Coroutines, WakingTheirThreadResumesThem) {
  LocalJob job({.processes = 1});
  job.run([](Fabric& fabric, uint32_t) {
    Synchronizer done;
    bool resumed = false;
    set_after(fabric, done, resumed);
    EXPECT_FALSE(resumed);
    std::thread other([&] {
      done.decrease();
      fabric.wake(0);
    });
    EXPECT_TRUE(fabric.wait([&] { return resumed; }, soon()));
    other.join();
  });
}

}  // namespace
}  // namespace cariama::testing
