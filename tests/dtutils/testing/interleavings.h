// Explores every interleaving of threads that run real code whose atomics and mutexes are those of
// this header.
//
//   struct World : testing::Interleaving {
//     testing::ModelAtomic<uint64_t> word{0};
//     World() {
//       add_thread([this] { word.store(1); });
//       add_thread([this] { if (word.load() == 0) ... });
//     }
//     std::string state() const override;     // the shared variables that are no ModelAtomic
//     std::string wrong_at_the_end() const override;
//   };
//   Exploration result = testing::explore([] { return std::make_unique<World>(); });
//
// The threads are contexts of one operating system thread. Each access to a ModelAtomic begins a
// step, and the test selects the thread that makes the next step. A state is reached by repeating
// the steps that lead to it. Two states are the same if the ModelAtomics and state() are equal, and
// each thread has read the same values since it called forget(). Accesses are sequentially
// consistent.
#ifndef CARIAMA_TESTS_DTUTILS_TESTING_INTERLEAVINGS_H_
#define CARIAMA_TESTS_DTUTILS_TESTING_INTERLEAVINGS_H_

#include <ucontext.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace cariama::testing {

// One execution. At most one makes steps at a time.
class Interleaving {
 public:
  Interleaving() { current_ = this; }
  // Lets the threads run to their ends.
  virtual ~Interleaving() { current_ = nullptr; }
  Interleaving(const Interleaving&) = delete;
  Interleaving& operator=(const Interleaving&) = delete;

  // Returns the values that determine how the execution continues, without those of the threads.
  [[nodiscard]] virtual std::string state() const = 0;
  // Returns what is wrong when no thread can make a step, or "".
  [[nodiscard]] virtual std::string wrong_at_the_end() const = 0;

  [[nodiscard]] static Interleaving& current() { return *current_; }
  [[nodiscard]] size_t threads() const { return threads_.size(); }
  [[nodiscard]] bool has_ended(size_t index) const { return threads_[index]->ended; }
  // Returns true if the thread can make a step.
  [[nodiscard]] bool is_ready(size_t index) const {
    const Thread& thread = *threads_[index];
    return !thread.ended && (!thread.condition || thread.condition());
  }
  void step(size_t index) {
    running_ = threads_[index].get();
    running_->condition = nullptr;
    running_->seen += '-';
    swapcontext(&main_, &running_->context);
    running_ = nullptr;
  }
  // Ends the threads: each wait ends at once, unless it is for a mutex. Call it before the shared
  // variables are destroyed.
  void abandon() {
    abandoned_ = true;
    for (bool all_ended = false; !all_ended;) {
      all_ended = true;
      for (size_t i = 0; i < threads_.size(); ++i) {
        const Thread& thread = *threads_[i];
        if (!thread.ended && (!thread.locks || thread.condition())) step(i);
        all_ended = all_ended && thread.ended;
      }
    }
  }
  [[nodiscard]] std::string key() const {
    std::string key = state();
    for (const auto& thread : threads_) {
      key += '|';
      key += thread->seen;
      if (thread->ended) key += '.';
    }
    return key;
  }
  [[nodiscard]] const std::string& violation() const { return violation_; }

  // ---- For threads
  // Begins the next step.
  void begin_step() {
    if (running_ == nullptr || abandoned_) return;
    swapcontext(&running_->context, &main_);
  }
  // Waits for the condition. Returns false if the execution was abandoned.
  [[nodiscard]] bool await(std::function<bool()> condition) {
    if (abandoned_ || running_ == nullptr) return false;
    running_->condition = std::move(condition);
    begin_step();
    return !abandoned_;
  }
  // Waits until the mutex is unlocked, also if the execution was abandoned.
  void await_unlocked(const bool& locked) {
    if (running_ == nullptr || (abandoned_ && !locked)) return;
    running_->condition = [&locked] { return !locked; };
    running_->locks = true;
    swapcontext(&running_->context, &main_);
    running_->locks = false;
  }
  // Records a value that the thread has read.
  void note(uint64_t value) {
    if (running_ == nullptr) return;
    running_->seen.append(reinterpret_cast<const char*>(&value), value < 256 ? 1 : sizeof value);
  }
  // Drops the values that the thread has read. `position` tells where in its program the thread is.
  // Requires: the values do not determine how the thread continues, or state() contains them.
  void forget(size_t position) {
    if (running_ != nullptr) running_->seen = '@' + std::to_string(position) + ':';
  }
  void violate(std::string why) {
    if (violation_.empty() && !abandoned_) violation_ = std::move(why);
  }
  [[nodiscard]] size_t thread() const {
    for (size_t i = 0; i < threads_.size(); ++i) {
      if (threads_[i].get() == running_) return i;
    }
    return threads_.size();
  }

 protected:
  void add_thread(std::function<void()> body) {
    auto thread = std::make_unique<Thread>();
    thread->body = std::move(body);
    // The stacks are used again by the next execution.
    static std::vector<std::unique_ptr<Stack>> stacks;
    if (stacks.size() == threads_.size()) stacks.push_back(std::make_unique<Stack>());
    getcontext(&thread->context);
    thread->context.uc_stack.ss_sp = stacks[threads_.size()]->bytes;
    thread->context.uc_stack.ss_size = sizeof(Stack);
    thread->context.uc_link = nullptr;
    makecontext(&thread->context, &Interleaving::run, 0);
    threads_.push_back(std::move(thread));
  }

 private:
  struct alignas(64) Stack {
    std::byte bytes[64 << 10];
  };
  struct Thread {
    ucontext_t context{};
    std::function<void()> body;
    std::function<bool()> condition;  // for which the thread waits
    bool locks = false;               // the condition is that a mutex is unlocked
    std::string seen;
    bool ended = false;
  };
  static void run() {
    Interleaving& all = current();
    Thread* const thread = all.running_;
    thread->body();
    thread->ended = true;
    swapcontext(&thread->context, &all.main_);
  }

  static inline Interleaving* current_ = nullptr;
  std::vector<std::unique_ptr<Thread>> threads_;
  ucontext_t main_{};
  Thread* running_ = nullptr;
  bool abandoned_ = false;
  std::string violation_;
};

template <typename T>
class ModelAtomic {
 public:
  ModelAtomic(T initial = T{}) : value_(initial) {}  // NOLINT: as std::atomic
  [[nodiscard]] T value() const { return value_; }   // for the test; no step

  T load(std::memory_order = std::memory_order_seq_cst) const {
    Interleaving::current().begin_step();
    return seen(value_);
  }
  void store(T value, std::memory_order = std::memory_order_seq_cst) {
    Interleaving::current().begin_step();
    value_ = value;
  }
  T exchange(T value, std::memory_order = std::memory_order_seq_cst) {
    Interleaving::current().begin_step();
    return seen(std::exchange(value_, value));
  }
  bool compare_exchange_strong(T& expected, T desired,
                               std::memory_order = std::memory_order_seq_cst,
                               std::memory_order = std::memory_order_seq_cst) {
    Interleaving::current().begin_step();
    const T old = seen(value_);
    if (old == expected) value_ = desired;
    return std::exchange(expected, old) == old;
  }
  T fetch_or(T bits, std::memory_order = std::memory_order_seq_cst) {
    Interleaving::current().begin_step();
    return seen(std::exchange(value_, value_ | bits));
  }
  T fetch_and(T bits, std::memory_order = std::memory_order_seq_cst) {
    Interleaving::current().begin_step();
    return seen(std::exchange(value_, value_ & bits));
  }

 protected:
  static T seen(T value) {
    uint64_t word = 0;
    if constexpr (std::is_pointer_v<T>) {
      word = value != nullptr ? 1 : 0;
    } else {
      word = static_cast<uint64_t>(value);
    }
    Interleaving::current().note(word);
    return value;
  }
  T value_;
};

class ModelMutex {
 public:
  void lock() {
    Interleaving::current().await_unlocked(locked_);
    locked_ = true;
  }
  void unlock() { locked_ = false; }

 private:
  bool locked_ = false;
};

struct Exploration {
  size_t states = 0;
  size_t ends = 0;
  std::string violation;
};

// Explores the executions of make(), which returns a std::unique_ptr of an Interleaving.
template <typename Make>
Exploration explore(const Make& make) {
  Exploration result;
  std::set<std::pair<uint64_t, uint64_t>> known;  // two hashes of each state
  std::vector<std::vector<uint8_t>> open{{}};
  while (!open.empty() && result.violation.empty()) {
    std::vector<uint8_t> path = std::move(open.back());
    open.pop_back();
    auto execution = make();
    for (const uint8_t index : path) execution->step(index);
    for (;;) {
      result.violation = execution->violation();
      if (!result.violation.empty()) break;
      const std::string key = execution->key();
      const std::hash<std::string> hash;
      if (!known.insert({hash(key), hash('-' + key)}).second) break;
      std::vector<uint8_t> ready;
      for (size_t i = 0; i < execution->threads(); ++i) {
        if (execution->is_ready(i)) ready.push_back(static_cast<uint8_t>(i));
      }
      if (ready.empty()) {
        ++result.ends;
        result.violation = execution->wrong_at_the_end();
        break;
      }
      for (size_t i = 1; i < ready.size(); ++i) {
        open.push_back(path);
        open.back().push_back(ready[i]);
      }
      path.push_back(ready[0]);
      execution->step(ready[0]);
    }
    execution->abandon();
  }
  result.states = known.size();
  return result;
}

}  // namespace cariama::testing

#endif  // CARIAMA_TESTS_DTUTILS_TESTING_INTERLEAVINGS_H_
