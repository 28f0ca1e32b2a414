// Counters of all layers. Each counter is declared beside the object that it describes, and any
// thread can read it.
//
//   class Queue {
//     Counter posted_;                                     // one writer: a plain add
//     CounterSet counters_{"queue", "to rank 3", [this] {  // last: destroyed first
//       return CounterSet::Values{{"posted", posted_.value()}};
//     }};
//   };
//   std::fputs(statistics_json().c_str(), file);
//   {"name": "queue.posted", "of": "to rank 3", "value": 17}
//
// Counting costs only the addition; no other component is notified. A snapshot reads the counters
// of every living object and adds the stored sums of destroyed ones, so that no count is lost when
// a queue is destroyed.
//
// Cost: a CounterSet is a pointer, plus about 200 bytes in the registry while it lives. For each
// kind of object the registry retains a few hundred bytes for the sums of destroyed objects.
#ifndef CARIAMA_DTUTILS_STATISTICS_H_
#define CARIAMA_DTUTILS_STATISTICS_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtutils/export.h"

namespace cariama {

// A counter with one writing thread at a time; any thread may read it. Costs as much as a plain
// integer.
class Counter {
 public:
  void add(uint64_t by = 1) {
    value_.store(value_.load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
  }
  [[nodiscard]] uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

// Registers the counters of one object in this process's statistics. Not movable: `read` refers to
// the object. Construction, destruction and rename() take a lock: for set-up only.
class CARIAMA_DTUTILS_EXPORT CounterSet {
 public:
  struct Value {
    std::string_view name;  // static storage
    uint64_t value;
    // A state, such as bytes in use, instead of a count: not stored when the object is destroyed.
    bool is_gauge = false;
  };
  using Values = std::vector<Value>;

  // `kind` names the counted kind of object ("transmit_queue"), `instance` the single object. The
  // thread that takes a snapshot calls `read`, and the destructor calls it a last time, each time
  // with the registry locked. So `read` must not create or destroy a CounterSet, and the thread
  // that destroys this object must not hold a lock that `read` takes.
  CounterSet(std::string_view kind, std::string_view instance, std::function<Values()> read);
  ~CounterSet();
  CounterSet(const CounterSet&) = delete;
  CounterSet& operator=(const CounterSet&) = delete;

  // Replaces the name of the instance, for objects whose final name is known late.
  void rename(std::string_view instance);

 private:
  struct Kind;
  struct Entry;
  friend class StatisticsRegistry;
  Entry* entry_;
};

struct Statistic {
  std::string kind;      // "transmit_queue"
  std::string instance;  // "to rank 3"; kClosed for the sum over all destroyed objects
  std::string name;      // "operations"
  uint64_t value = 0;
  bool is_gauge = false;  // see CounterSet::Value
  friend bool operator==(const Statistic&, const Statistic&) = default;
};
inline constexpr std::string_view kClosed = "(closed)";

// Returns every counter of this process: ordered by kind, within a kind the sum of the destroyed
// objects first, then the objects in the order of creation. Counters of objects in use are read one
// after the other, not at one instant. Takes the registry's lock. Thread-safe.
[[nodiscard]] CARIAMA_DTUTILS_EXPORT std::vector<Statistic> statistics_snapshot();

// Returns the snapshot as JSON, one object a line: {"name": "KIND.NAME", "of": INSTANCE, "value":
// N}.
[[nodiscard]] CARIAMA_DTUTILS_EXPORT std::string statistics_json();

// Names the process whose counters a text shows: each pair becomes a label of every line.
using StatisticsLabels = std::vector<std::pair<std::string, std::string>>;

// Returns the snapshot in the text format of Prometheus (exposition format 0.0.4):
//
//   # TYPE cariama_transmit_queue_bytes_total counter
//   cariama_transmit_queue_bytes_total{rank="0",of="to rank 3"} 4096
//
// Counters end in _total, gauges do not. Characters of kinds and names that the format forbids
// become underscores.
[[nodiscard]] CARIAMA_DTUTILS_EXPORT std::string statistics_prometheus(
    const StatisticsLabels& labels = {});

}  // namespace cariama

#endif  // CARIAMA_DTUTILS_STATISTICS_H_
