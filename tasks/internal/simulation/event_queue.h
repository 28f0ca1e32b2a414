// EventQueue: the events of a simulation, ordered by virtual time. Simultaneous events are in an
// order that the seed chooses.
//
// A radix heap (Ahuja, Mehlhorn, Orlin and Tarjan, JACM 1990). Time never decreases. An event is in
// the bucket of the highest bit in which its time differs from the clock; buckets are not sorted.
// When the clock advances to the first event of a bucket, the events of the bucket move to lower
// buckets. A push is a store, and an event moves only a few times, in memory order. With 10^5
// workers this is several times as fast as a binary heap.
#ifndef CARIAMA_TASKS_INTERNAL_SIMULATION_EVENT_QUEUE_H_
#define CARIAMA_TASKS_INTERNAL_SIMULATION_EVENT_QUEUE_H_

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "dtutils/random.h"

namespace cariama::tasks {

// Returns a pseudo-random function of x.
[[nodiscard]] constexpr uint64_t mixed(uint64_t x) { return Random::mix(x + Random::kStep); }

class EventQueue {
 public:
  enum class Kind : uint32_t {
    kRun,      // worker `index` continues
    kExecute,  // the operation that worker `index` waits for arrives at its target
    kPosted,   // the posted operation `index` arrives at its target
  };
  struct Event {
    int64_t time;  // picoseconds
    uint64_t order;
    Kind kind;
    uint32_t index;
  };

  explicit EventQueue(uint64_t seed) : seed_(mixed(seed)) {}

  // Adds an event. Requires: time >= now().
  void push(int64_t time, Kind kind, uint32_t index) {
    file({time, mixed(seed_ + pushed_++), kind, index});
  }
  [[nodiscard]] bool empty() const { return filled_ == 0 && due_.empty(); }
  // Removes and returns the next event, and sets the clock to its time. Requires: !empty().
  Event pop() {
    if (due_.empty()) advance();
    std::pop_heap(due_.begin(), due_.end(), later);
    const Event event = due_.back();
    due_.pop_back();
    ++popped_;
    hash_ = mixed(hash_ ^ static_cast<uint64_t>(event.time) ^
                  (uint64_t{event.index} << 2 | static_cast<uint64_t>(event.kind)) << 40);
    return event;
  }
  [[nodiscard]] int64_t now() const { return now_; }
  [[nodiscard]] uint64_t popped() const { return popped_; }
  // Returns a hash over all events that were popped, in order.
  [[nodiscard]] uint64_t hash() const { return hash_; }

 private:
  static bool later(const Event& a, const Event& b) { return a.order > b.order; }
  void file(const Event& event) {
    const auto bit = std::bit_width(static_cast<uint64_t>(event.time ^ now_));
    if (bit == 0) {
      due_.push_back(event);
      std::push_heap(due_.begin(), due_.end(), later);
    } else {
      waiting_[static_cast<size_t>(bit - 1)].push_back(event);
      filled_ |= uint64_t{1} << (bit - 1);
    }
  }
  // Sets the clock to the time of the next event: the least time in the lowest bucket that is not
  // empty. Moves the events of this bucket to due_ and to lower buckets.
  void advance() {
    const auto first = static_cast<size_t>(std::countr_zero(filled_));
    filled_ &= filled_ - 1;
    std::vector<Event> events;
    events.swap(waiting_[first]);
    now_ = std::min_element(events.begin(), events.end(), [](const Event& a, const Event& b) {
             return a.time < b.time;
           })->time;
    for (const Event& event : events) file(event);
    events.clear();
    waiting_[first].swap(events);  // reuse its memory: no event was added to this bucket meanwhile
  }

  std::vector<Event> due_;                      // the events at now_, a heap by `order`
  std::array<std::vector<Event>, 63> waiting_;  // the buckets, by bit
  uint64_t filled_ = 0;                         // bit i: waiting_[i] is not empty
  const uint64_t seed_;
  uint64_t pushed_ = 0;
  uint64_t popped_ = 0;
  uint64_t hash_ = 0;
  int64_t now_ = 0;
};

}  // namespace cariama::tasks

#endif  // CARIAMA_TASKS_INTERNAL_SIMULATION_EVENT_QUEUE_H_
