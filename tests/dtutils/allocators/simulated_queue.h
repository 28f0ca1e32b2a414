// A queue pair reduced to its flush number: the test posts operations, and completes them in order
// by calling complete().
#ifndef CARIAMA_TESTS_DTUTILS_ALLOCATORS_SIMULATED_QUEUE_H_
#define CARIAMA_TESTS_DTUTILS_ALLOCATORS_SIMULATED_QUEUE_H_

#include <cstdint>
#include <deque>
#include <mutex>

#include "dtutils/memory.h"

namespace cariama::testing {

class SimulatedQueue {
 public:
  SimulatedQueue() = default;
  // As with a real queue pair, destruction frees the buffers of outstanding operations, and the
  // flush cell outlives the queue pair.
  ~SimulatedQueue() { complete_all(); }
  SimulatedQueue(const SimulatedQueue&) = delete;
  SimulatedQueue& operator=(const SimulatedQueue&) = delete;

  // Posts an unsignaled transfer of the memory: tags it with the number of operations posted
  // before.
  void post(RDMAMemory* memory) { memory->set_last_use(&cell_, posted_++); }
  // Completes the oldest `operations`.
  void complete(uint64_t operations) {
    cell_.flushed.store(cell_.flushed.load(std::memory_order_relaxed) + operations,
                        std::memory_order_release);
  }
  void complete_all() { cell_.flushed.store(posted_, std::memory_order_release); }
  [[nodiscard]] uint64_t outstanding() const { return posted_ - cell_.flushed.load(); }

 private:
  static FlushCell& immortal_cell() {
    static auto* const mutex = new std::mutex;
    static auto* const cells = new std::deque<FlushCell>;
    const std::lock_guard lock(*mutex);
    return cells->emplace_back();
  }

  FlushCell& cell_ = immortal_cell();
  uint64_t posted_ = 0;
};

}  // namespace cariama::testing

#endif  // CARIAMA_TESTS_DTUTILS_ALLOCATORS_SIMULATED_QUEUE_H_
