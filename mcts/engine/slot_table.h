// SlotTable: names, of the type SlotId, for objects of one process that other processes refer to.
// A name is a slot and a generation, never an address. So the process can check a name that it
// receives before it accesses the object.
#ifndef CARIAMA_MCTS_ENGINE_SLOT_TABLE_H_
#define CARIAMA_MCTS_ENGINE_SLOT_TABLE_H_

#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace cariama::mcts {

// A slot of a table and the generation of its contents. The generation changes when the slot is
// reused. A slot that has used all its generations is not reused. So no id is used twice, and an
// outdated id names nothing.
struct SlotId {
  uint32_t slot = 0;
  uint32_t generation = 0;

  friend bool operator==(const SlotId&, const SlotId&) = default;
};

// Thread-safe. kLastGeneration: the largest generation. The memory of a slot that has used all its
// generations, at most sizeof(T) + 16 bytes, stays unused.
template <typename T, uint32_t kLastGeneration = UINT32_MAX>
class SlotTable {
 public:
  [[nodiscard]] SlotId add(T value) {
    const std::lock_guard lock(mutex_);
    uint32_t slot = 0;
    if (free_.empty()) {
      slot = static_cast<uint32_t>(entries_.size());
      entries_.emplace_back().generation = first_generation_;
    } else {
      slot = free_.back();
      free_.pop_back();
    }
    entries_[slot].value.emplace(std::move(value));
    return {slot, entries_[slot].generation};
  }
  // Returns the object with this name, or nullopt if no object has it (any more).
  [[nodiscard]] std::optional<T> find(SlotId id) {
    const std::lock_guard lock(mutex_);
    if (!has(id)) return std::nullopt;
    return entries_[id.slot].value;
  }
  // Removes the object with this name and returns it, or nullopt if no object has it (any more).
  [[nodiscard]] std::optional<T> take(SlotId id) {
    const std::lock_guard lock(mutex_);
    if (!has(id)) return std::nullopt;
    return take_slot(id.slot);
  }
  // Removes all objects for which `condition` holds, and returns them.
  template <typename Condition>
  [[nodiscard]] std::vector<T> take_if(Condition&& condition) {
    const std::lock_guard lock(mutex_);
    std::vector<T> taken;
    for (uint32_t slot = 0; slot < entries_.size(); ++slot) {
      if (entries_[slot].value && condition(*entries_[slot].value)) {
        taken.push_back(*take_slot(slot));
      }
    }
    return taken;
  }
  [[nodiscard]] std::vector<SlotId> names() {
    const std::lock_guard lock(mutex_);
    std::vector<SlotId> names;
    for (uint32_t slot = 0; slot < entries_.size(); ++slot) {
      if (entries_[slot].value) names.push_back({slot, entries_[slot].generation});
    }
    return names;
  }
  template <typename Function>
  void for_each(Function&& function) {
    const std::lock_guard lock(mutex_);
    for (Entry& entry : entries_) {
      if (entry.value) function(*entry.value);
    }
  }
  void clear() {
    static_cast<void>(take_if([](const T&) { return true; }));
  }
  // For tests: new slots begin with this generation, to reach the last one soon.
  void begin_at(uint32_t generation) {
    const std::lock_guard lock(mutex_);
    first_generation_ = generation;
  }

 private:
  struct Entry {
    std::optional<T> value;
    uint32_t generation = 0;
  };
  [[nodiscard]] bool has(SlotId id) const {
    return id.slot < entries_.size() && entries_[id.slot].value &&
           entries_[id.slot].generation == id.generation;
  }
  [[nodiscard]] std::optional<T> take_slot(uint32_t slot) {
    Entry& entry = entries_[slot];
    std::optional<T> value = std::move(entry.value);
    entry.value.reset();
    if (entry.generation != kLastGeneration) {
      ++entry.generation;
      free_.push_back(slot);
    }
    return value;
  }

  std::mutex mutex_;
  std::vector<Entry> entries_;
  std::vector<uint32_t> free_;
  uint32_t first_generation_ = 0;
};

}  // namespace cariama::mcts

#endif  // CARIAMA_MCTS_ENGINE_SLOT_TABLE_H_
