// Counters, the same for every layer: named beside the object that they count, read from anywhere.
//
//   class Queue {
//     Counter posted_;                                     // one writer: a plain add
//     CounterSet counters_{"queue", "to rank 3", [this] {  // last: gone before what it reads
//       return CounterSet::Values{{"posted", posted_.value()}};
//     }};
//   };
//   std::fputs(statistics_json().c_str(), file);
//   {"name": "queue.posted", "of": "to rank 3", "value": 17}
//
// Counting costs nothing but the adding: nobody is told. A snapshot asks every living object, and
// knows the sums of those that are gone, so that no count is lost when a queue closes.
//
// Cost: a CounterSet is a pointer, and about 200 bytes in the registry while it lives. Per kind of
// object a few hundred bytes remain for the sums of its dead.
#ifndef CARIAMA_DTUTILS_STATISTICS_H_
#define CARIAMA_DTUTILS_STATISTICS_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "dtutils/export.h"

namespace cariama {

// A counter with one writing thread at a time; any thread may read. Costs what a plain integer
// costs.
class Counter {
 public:
  void add(uint64_t by = 1) {
    value_.store(value_.load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
  }
  [[nodiscard]] uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

// A counter that any thread may write: an atomic read-modify-write each, so for cold paths.
class SharedCounter {
 public:
  void add(uint64_t by = 1) { value_.fetch_add(by, std::memory_order_relaxed); }
  [[nodiscard]] uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

// The membership of one object's counters in this process's statistics. Not movable: `read` refers
// to the object. Construction, destruction and rename() take a lock: for set-up.
class CARIAMA_DTUTILS_EXPORT CounterSet {
 public:
  struct Value {
    std::string_view name;  // static storage
    uint64_t value;
  };
  using Values = std::vector<Value>;

  // `kind` says what is counted ("transmit_queue"), `instance` which one. `read` is called by the
  // thread that takes a snapshot, and a last time by the destructor, each time with the registry
  // locked: it must not create or destroy a CounterSet, and who destroys this object must not hold
  // a lock that `read` takes.
  CounterSet(std::string_view kind, std::string_view instance, std::function<Values()> read);
  ~CounterSet();
  CounterSet(const CounterSet&) = delete;
  CounterSet& operator=(const CounterSet&) = delete;

  // Gives the instance a better name, when one is known.
  void rename(std::string_view instance);

 private:
  struct Kind;
  struct Entry;
  friend class StatisticsRegistry;
  Entry* entry_;
};

struct Statistic {
  std::string kind;      // "transmit_queue"
  std::string instance;  // "to rank 3"; kClosed for the sum of all that are gone
  std::string name;      // "operations"
  uint64_t value = 0;
  friend bool operator==(const Statistic&, const Statistic&) = default;
};
inline constexpr std::string_view kClosed = "(closed)";

// Every counter of this process: by kind, the closed ones of a kind first, then in the order of
// creation. Counters of objects in use are read one after the other, not at one instant. Takes the
// registry's lock; thread-safe.
[[nodiscard]] CARIAMA_DTUTILS_EXPORT std::vector<Statistic> statistics_snapshot();

// The snapshot as JSON, one object a line: {"name": "KIND.NAME", "of": INSTANCE, "value": N}.
[[nodiscard]] CARIAMA_DTUTILS_EXPORT std::string statistics_json();

}  // namespace cariama

#endif  // CARIAMA_DTUTILS_STATISTICS_H_
