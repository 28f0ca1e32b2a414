#include "dsfabric/peers/receive_units.h"

#include <new>
#include <utility>

namespace cariama::internal {

ReceiveUnits::Unit::~Unit() {
  if (memory.get_buffer() != nullptr) allocator.free_or_keep(std::move(memory));
}

ReceiveUnits::~ReceiveUnits() {
  if (count() > limits_.reserved) budget_.give(count() - limits_.reserved);
}

absl::StatusOr<ReceiveUnits::NewUnit> ReceiveUnits::create() const {
  NewUnit unit(new Unit(memory_));
  auto memory = memory_.allocate(limits_.bytes);
  if (!memory.ok()) return memory.status();
  unit->memory = *std::move(memory);
  unit->connection = &owner_;
  unit->rank = rank_;
  unit->bytes = unit->memory.get_buffer();
  return unit;
}

ReceiveUnits::NewUnit ReceiveUnits::create_shared() const {
  if (!budget_.take()) return {};
  try {
    if (absl::StatusOr<NewUnit> unit = create(); unit.ok()) {
      unit->get_deleter().budget = &budget_;
      return *std::move(unit);
    }
  } catch (const std::bad_alloc&) {  // the connection works with the units that it has
  }
  budget_.give(1);
  return {};
}

ArrivedMessage* ReceiveUnits::add(NewUnit unit) {
  units_.emplace_back();  // may throw: the unit is given back then
  unit->place = units_.size() - 1;
  units_.back().reset(unit.release());
  set_count();
  return units_.back().get();
}

absl::StatusOr<ArrivedMessage*> ReceiveUnits::add_reserved() {
  absl::StatusOr<NewUnit> unit = create();
  if (!unit.ok()) return unit.status();
  return add(*std::move(unit));
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
  const size_t place = static_cast<const Unit*>(unit)->place;
  std::swap(units_[place], units_.back());
  units_[place]->place = place;
  units_.pop_back();
  set_count();
  budget_.give(1);
  return true;
}

}  // namespace cariama::internal
