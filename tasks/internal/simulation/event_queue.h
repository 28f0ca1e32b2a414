// What happens when, in virtual time. Events of the same instant come in an order that the seed
// chooses.
#ifndef CARIAMA_TASKS_INTERNAL_SIMULATION_EVENT_QUEUE_H_
#define CARIAMA_TASKS_INTERNAL_SIMULATION_EVENT_QUEUE_H_

#include <cstdint>
#include <functional>
#include <queue>
#include <vector>

namespace cariama::tasks {

// splitmix64 (Steele, Lea and Flood, OOPSLA'14): equal inputs, equal outputs, otherwise random.
[[nodiscard]] constexpr uint64_t mixed(uint64_t x) {
  x += 0x9E3779B97F4A7C15;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9;
  x = (x ^ x >> 27) * 0x94D049BB133111EB;
  return x ^ x >> 31;
}

class EventQueue {
 public:
  enum class Kind : uint32_t {
    kRun,      // worker `index` goes on
    kExecute,  // the operation that worker `index` waits for is at its target
    kPosted,   // operation `index` that nobody waits for is at its target
  };
  struct Event {
    int64_t time;  // picoseconds
    uint64_t order;
    Kind kind;
    uint32_t index;
    friend bool operator>(const Event& a, const Event& b) {
      return a.time != b.time ? a.time > b.time : a.order > b.order;
    }
  };

  explicit EventQueue(uint64_t seed) : seed_(mixed(seed)) {}

  void push(int64_t time, Kind kind, uint32_t index) {
    events_.push({time, mixed(seed_ + pushed_++), kind, index});
  }
  [[nodiscard]] bool empty() const { return events_.empty(); }
  // The next one; the clock is then at its time. Precondition: !empty().
  Event pop() {
    const Event event = events_.top();
    events_.pop();
    now_ = event.time;
    ++popped_;
    hash_ = mixed(hash_ ^ static_cast<uint64_t>(event.time) ^
                  (uint64_t{event.index} << 2 | static_cast<uint64_t>(event.kind)) << 40);
    return event;
  }
  [[nodiscard]] int64_t now() const { return now_; }
  [[nodiscard]] uint64_t popped() const { return popped_; }
  // Over all events that were popped.
  [[nodiscard]] uint64_t hash() const { return hash_; }

 private:
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  const uint64_t seed_;
  uint64_t pushed_ = 0;
  uint64_t popped_ = 0;
  uint64_t hash_ = 0;
  int64_t now_ = 0;
};

}  // namespace cariama::tasks

#endif  // CARIAMA_TASKS_INTERNAL_SIMULATION_EVENT_QUEUE_H_
