// Records of the processes of a job, each created on first use.
//
//   PerPeer<Count> counts(size);
//   counts.get(rank).begun.fetch_add(1);
//   if (const Count* const count = counts.find(rank)) ...    // nullptr: never used
//   counts.for_each([](uint32_t rank, Count& count) { ... });  // the created ones
//
// Cost: P / 4 bytes for a job of P processes; 264 bytes for each block of 32 consecutive ranks that
// has a record; the records.
#ifndef CARIAMA_DSFABRIC_INTERNAL_PER_PEER_H_
#define CARIAMA_DSFABRIC_INTERNAL_PER_PEER_H_

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

namespace cariama::internal {

// Thread-safe, except for the destructor. A record lives as long as this object.
//
// A missing record stands for a record that was never written: all accesses to the pointers are
// sequentially consistent. So a thread that finds no record, and a thread that creates it, have the
// same order as a thread that reads the initial value of a sequentially consistent variable, and a
// thread that writes the variable afterwards.
template <typename T>
class PerPeer {
 public:
  explicit PerPeer(uint32_t size)
      : size_(size),
        blocks_(std::make_unique<std::atomic<Block*>[]>((size + kBlock - 1) / kBlock)) {}
  ~PerPeer() {
    for (uint32_t i = 0; i < blocks(); ++i) {
      const std::unique_ptr<Block> block(blocks_[i].load(std::memory_order_acquire));
      if (block == nullptr) continue;
      for (std::atomic<T*>& record : block->records) delete record.load(std::memory_order_acquire);
    }
  }
  PerPeer(const PerPeer&) = delete;
  PerPeer& operator=(const PerPeer&) = delete;

  [[nodiscard]] uint32_t size() const { return size_; }  // processes of the job
  // Returns the record, or nullptr if none was created. Requires: rank < size().
  [[nodiscard]] T* find(uint32_t rank) const {
    const Block* const block = blocks_[rank / kBlock].load(std::memory_order_seq_cst);
    return block == nullptr ? nullptr
                            : block->records[rank % kBlock].load(std::memory_order_seq_cst);
  }
  // Returns the record. Creates it as T(arguments...) on first use. Requires: rank < size().
  template <typename... Arguments>
  [[nodiscard]] T& get(uint32_t rank, Arguments&&... arguments) {
    if (T* const record = find(rank); record != nullptr) [[likely]]
      return *record;
    std::atomic<Block*>& place = blocks_[rank / kBlock];
    Block* block = place.load(std::memory_order_seq_cst);
    if (block == nullptr) block = publish(place, std::make_unique<Block>());
    // In this order, for_each() finds each record that is stored.
    block->marks.fetch_or(uint32_t{1} << rank % kBlock, std::memory_order_seq_cst);
    return *publish(block->records[rank % kBlock],
                    std::make_unique<T>(std::forward<Arguments>(arguments)...));
  }
  // Calls `function(rank, record)` for each record, in the order of ranks.
  template <typename Function>
  void for_each(Function&& function) const {
    for (uint32_t i = 0; i < blocks(); ++i) {
      const Block* const block = blocks_[i].load(std::memory_order_seq_cst);
      if (block == nullptr) continue;
      uint32_t marks = block->marks.load(std::memory_order_seq_cst);
      for (; marks != 0; marks &= marks - 1) {
        const auto j = static_cast<uint32_t>(std::countr_zero(marks));
        T* const record = block->records[j].load(std::memory_order_seq_cst);
        if (record != nullptr) function(i * kBlock + j, *record);
      }
    }
  }
  // Returns the number of records.
  [[nodiscard]] uint32_t count() const {
    uint32_t count = 0;
    for_each([&](uint32_t, const T&) { ++count; });
    return count;
  }

 private:
  static constexpr uint32_t kBlock = 32;
  struct Block {
    // Bit j is set before records[j] is stored. for_each() reads only the marked records: the calls
    // that poll visit all records.
    std::atomic<uint32_t> marks{0};
    std::array<std::atomic<T*>, kBlock> records{};
  };

  [[nodiscard]] uint32_t blocks() const { return (size_ + kBlock - 1) / kBlock; }
  // Stores `made` unless another thread has stored an object before. Returns the stored object.
  template <typename Object>
  static Object* publish(std::atomic<Object*>& place, std::unique_ptr<Object> made) {
    Object* stored = nullptr;
    return place.compare_exchange_strong(stored, made.get(), std::memory_order_seq_cst)
               ? made.release()
               : stored;
  }

  const uint32_t size_;
  const std::unique_ptr<std::atomic<Block*>[]> blocks_;
};

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_INTERNAL_PER_PEER_H_
