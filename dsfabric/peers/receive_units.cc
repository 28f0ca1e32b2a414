#include "dsfabric/peers/receive_units.h"

#include <algorithm>
#include <new>
#include <utility>

namespace cariama::internal {

ReceiveUnits::~ReceiveUnits() {
  if (count() > limits_.reserved) budget_.give(count() - limits_.reserved);
  for (const auto& unit : units_) free_memory(*unit);
}

void ReceiveUnits::free_memory(Unit& unit) noexcept {
  try {
    static_cast<void>(memory_.free(std::move(unit.memory)));
  } catch (const std::bad_alloc&) {  // the allocator frees the memory at its end
  }
}

absl::StatusOr<ArrivedMessage*> ReceiveUnits::add() {
  auto unit = std::make_unique<Unit>();
  units_.reserve(units_.size() + 1);  // nothing below throws while the unit has memory
  auto memory = memory_.allocate(limits_.bytes);
  if (!memory.ok()) return memory.status();
  unit->memory = *std::move(memory);
  unit->connection = &owner_;
  unit->rank = rank_;
  unit->bytes = unit->memory.get_buffer();
  ArrivedMessage* const added = unit.get();
  units_.push_back(std::move(unit));
  set_count();
  return added;
}

absl::StatusOr<ArrivedMessage*> ReceiveUnits::add_reserved() { return add(); }

ArrivedMessage* ReceiveUnits::add_shared() {
  if (count() >= limits_.most || !budget_.take()) return nullptr;
  try {
    if (absl::StatusOr<ArrivedMessage*> unit = add(); unit.ok()) return *unit;
  } catch (const std::bad_alloc&) {  // the connection works with the units that it has
  }
  budget_.give(1);
  return nullptr;
}

bool ReceiveUnits::post(ArrivedMessage* unit, QueuePair& queue_pair,
                        const ProtectionDomain* domain) const {
  const Segment segment{unit->bytes, limits_.bytes,
                        static_cast<const Unit*>(unit)->memory.local_key(domain)};
  const ReceiveRequest request{
      .id = reinterpret_cast<uint64_t>(unit), .segments = &segment, .segment_count = 1};
  return queue_pair.post_receive(request).ok();
}

bool ReceiveUnits::remove(const ArrivedMessage* unit) {
  if (units_.size() <= limits_.reserved) return false;
  const auto at = std::find_if(units_.begin(), units_.end(),
                               [unit](const auto& one) { return one.get() == unit; });
  free_memory(**at);
  std::swap(*at, units_.back());
  units_.pop_back();
  set_count();
  budget_.give(1);
  return true;
}

}  // namespace cariama::internal
