// The receive units of a connection, and the budget of units that all connections of a process
// share.
//
// A connection owns its reserved units from its creation to its end. It takes further units from
// the budget while messages arrive, and gives them back when the sender returns them, and when the
// connection fails or ends. So the receive memory of a process has the limit
//   connections * reserved * bytes + units of the budget * bytes.
#ifndef CARIAMA_DSFABRIC_PEERS_RECEIVE_UNITS_H_
#define CARIAMA_DSFABRIC_PEERS_RECEIVE_UNITS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "dsfabric/peers/arrived_message.h"
#include "dtutils/allocators/general_allocator.h"
#include "dtutils/device.h"
#include "dtutils/memory.h"

namespace cariama::internal {

// Thread-safe, lock-free.
class UnitBudget {
 public:
  explicit UnitBudget(uint64_t units) : left_(units) {}

  // Takes one unit. Returns false if none is left.
  [[nodiscard]] bool take() {
    uint64_t left = left_.load(std::memory_order_relaxed);
    do {
      if (left == 0) return false;
    } while (!left_.compare_exchange_weak(left, left - 1, std::memory_order_relaxed));
    return true;
  }
  // Gives units back that were taken.
  void give(uint64_t units) { left_.fetch_add(units, std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> left_;
};

// Requires: 1 <= reserved <= most.
struct ReceiveUnitLimits {
  uint32_t bytes = 0;     // of a unit
  uint32_t reserved = 0;  // units that do not come from the budget
  uint32_t most = 0;      // units of one connection
};

// Thread-compatible; create_shared(), count() and limits() are thread-safe.
class ReceiveUnits {
  struct Unit : ArrivedMessage {
    explicit Unit(GeneralAllocator& allocator_of_it) : allocator(allocator_of_it) {}
    ~Unit();
    Unit(const Unit&) = delete;
    Unit& operator=(const Unit&) = delete;

    GeneralAllocator& allocator;
    RDMAMemory memory;
    size_t place = 0;  // index in units_
  };
  // Frees a unit that was not added, and gives it back to the budget from which it was taken.
  struct GiveBack {
    void operator()(Unit* unit) const {
      delete unit;
      if (budget != nullptr) budget->give(1);
    }
    UnitBudget* budget = nullptr;  // nullptr: reserved
  };

 public:
  // A unit that no connection has yet.
  using NewUnit = std::unique_ptr<Unit, GiveBack>;

  // `owner`, `memory` and `budget` must outlive this object. `rank` is that of the sender.
  ReceiveUnits(Connection& owner, uint32_t rank, GeneralAllocator& memory, UnitBudget& budget,
               const ReceiveUnitLimits& limits)
      : owner_(owner), rank_(rank), memory_(memory), budget_(budget), limits_(limits) {}
  // Requires: the device does not access the units any more, and no unit is being created.
  ~ReceiveUnits();
  ReceiveUnits(const ReceiveUnits&) = delete;
  ReceiveUnits& operator=(const ReceiveUnits&) = delete;

  // Creates a reserved unit, and adds it. It is not posted. Requires: count() < limits().reserved.
  // Errors: those of GeneralAllocator::allocate().
  [[nodiscard]] absl::StatusOr<ArrivedMessage*> add_reserved();
  // Creates a unit of the budget. May register memory, which takes long: call it without a lock.
  // Returns nullptr if the budget is used up, or there is no memory.
  [[nodiscard]] NewUnit create_shared() const;
  // Adds a unit from create_shared(). It is not posted. Requires: the reserved units exist, and
  // count() < limits().most. Throws std::bad_alloc, and then adds nothing.
  ArrivedMessage* add(NewUnit unit);
  // Posts a unit to the queue pair of its connection, of `domain`. Returns false if the queue pair
  // refuses it.
  [[nodiscard]] bool post(ArrivedMessage* unit, QueuePair& queue_pair,
                          const ProtectionDomain* domain) const;
  // Frees a unit, and gives it back to the budget. Returns false, and does nothing, if only the
  // reserved units are left. Requires: the unit is not posted.
  bool remove(const ArrivedMessage* unit);

  [[nodiscard]] uint32_t count() const { return count_.load(std::memory_order_relaxed); }
  [[nodiscard]] const ReceiveUnitLimits& limits() const { return limits_; }

 private:
  [[nodiscard]] absl::StatusOr<NewUnit> create() const;
  void set_count() {
    count_.store(static_cast<uint32_t>(units_.size()), std::memory_order_relaxed);
  }

  Connection& owner_;
  const uint32_t rank_;
  GeneralAllocator& memory_;
  UnitBudget& budget_;
  const ReceiveUnitLimits limits_;
  std::vector<std::unique_ptr<Unit>> units_;
  std::atomic<uint32_t> count_{0};  // units_.size()
};

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_PEERS_RECEIVE_UNITS_H_
