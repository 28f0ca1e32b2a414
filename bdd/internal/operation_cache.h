// OperationCache: results of operations on diagrams. Direct-mapped and lossy: a new entry replaces
// the entry in its place. Not for users: Manager (bdd.h) owns it.
//
// A manager without a job has a cache in private memory, without atomics. The processes of a job
// that share a host share one cache in mapped memory, so that no process repeats the work of
// another one. An entry of a shared cache has a version: a writer locks the entry by a
// compare-and-swap, or gives up; a reader accepts only an entry whose version is the same before
// and after it was read. The version has 14 bits: a reader that is suspended while the entry is
// written 16,384 times would accept a mixed entry.
//
// The part of the cache that is in use starts small and doubles, up to the limit: a private cache
// after twice as many results were entered as it has places, a shared one after a process of the
// host has entered as many. So a small search touches little memory.
#ifndef CARIAMA_BDD_INTERNAL_OPERATION_CACHE_H_
#define CARIAMA_BDD_INTERNAL_OPERATION_CACHE_H_

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "bdd/edge.h"

namespace cariama::bdd {

class OperationCache {
 public:
  // Size of one entry in bytes. Two entries share a cache line.
  static constexpr size_t kEntryBytes = 32;
  static constexpr size_t kInitialBytes = size_t{1} << 20;
  // Bytes of a shared cache before its entries.
  static constexpr size_t kHeaderBytes = 64;

  // Creates a private cache. `max_bytes`: limit for its memory in bytes, rounded down to a power
  // of two, at least 64 KiB. Not thread-safe. Throws std::bad_alloc.
  explicit OperationCache(size_t max_bytes);
  // Creates this process's object for a shared cache in `memory`, which the processes of a host
  // share, and which was zero when the first of them used it. Requires: at least 64 KiB, aligned to
  // 64 bytes.
  explicit OperationCache(std::span<std::byte> memory);
  ~OperationCache();
  OperationCache(const OperationCache&) = delete;
  OperationCache& operator=(const OperationCache&) = delete;

  // `a` has an operation number in bits 47..40, which is not 0, besides the bits of an edge.
  // Returns true and stores the result in `result` if the cache has it.
  [[nodiscard]] bool find(uint64_t a, uint64_t b, uint64_t c, Edge& result) const {
    if (header_ != nullptr) return find_shared(a, b, c, result);
    const Entry& entry = entries_[hash(a, b, c) & mask_];
    if (entry.a != a || entry.b != b || entry.c != c) return false;
    result = entry.result;
    return true;
  }
  void put(uint64_t a, uint64_t b, uint64_t c, Edge result) {
    ++entered_;
    if (header_ != nullptr) return put_shared(a, b, c, result);
    entries_[hash(a, b, c) & mask_] = {a, b, c, result};
    if (entered_ == grow_at_) [[unlikely]]
      grow();
  }

  // Removes all entries, because after a collection indices name other nodes. Requires, for a
  // shared cache: one process calls clear(), while the other processes do not use the cache. Throws
  // std::bad_alloc, and is then unchanged.
  void clear();
  // Returns the bytes in use.
  [[nodiscard]] size_t bytes() const { return (mask() + 1) * kEntryBytes; }
  // Returns the number of results that this object has entered.
  [[nodiscard]] uint64_t entered() const { return entered_; }

 private:
  struct Entry {
    // Shared: bits 61..48 are the version, bit 62 is the lock.
    uint64_t a;
    uint64_t b, c;
    Edge result;
  };
  static_assert(sizeof(Entry) == kEntryBytes);
  struct Header {
    std::atomic<uint64_t> mask;  // 0: not used yet
  };
  static_assert(sizeof(Header) <= kHeaderBytes && std::atomic<uint64_t>::is_always_lock_free);
  static constexpr uint64_t kLock = uint64_t{1} << 62;
  static constexpr uint64_t kOneVersion = uint64_t{1} << 48;
  static constexpr uint64_t kVersions = kLock - kOneVersion;

  [[nodiscard]] static uint64_t hash(uint64_t a, uint64_t b, uint64_t c) {
    // Marks are in bit 63. Without the rotations, the multiplication would shift them out of the
    // word.
    const uint64_t mixed =
        (std::rotl(a, 1) * 0x9e3779b97f4a7c15 + std::rotl(b, 17)) * 0xff51afd7ed558ccd +
        std::rotl(c, 31);
    const uint64_t product = (mixed ^ mixed >> 32) * 0xd6e8feb86659fd93;
    return product ^ product >> 32;
  }
  [[nodiscard]] static std::atomic_ref<uint64_t> word(const uint64_t& place) {
    return std::atomic_ref<uint64_t>(const_cast<uint64_t&>(place));
  }
  [[nodiscard]] uint64_t mask() const {
    return header_ == nullptr ? mask_ : header_->mask.load(std::memory_order_relaxed);
  }
  [[nodiscard]] bool find_shared(uint64_t a, uint64_t b, uint64_t c, Edge& result) const {
    const Entry& entry = entries_[hash(a, b, c) & mask_];
    const uint64_t before = word(entry.a).load(std::memory_order_acquire);
    if (((before ^ a) & ~kVersions) != 0) return false;  // another key, empty, or locked
    // Acquire: a word that a later writer stored makes that writer's lock visible to the last load.
    const uint64_t found_b = word(entry.b).load(std::memory_order_acquire);
    const uint64_t found_c = word(entry.c).load(std::memory_order_acquire);
    const Edge found = word(entry.result).load(std::memory_order_acquire);
    if (found_b != b || found_c != c) return false;
    if (word(entry.a).load(std::memory_order_relaxed) != before) return false;
    result = found;
    return true;
  }
  void put_shared(uint64_t a, uint64_t b, uint64_t c, Edge result) {
    mask_ = header_->mask.load(std::memory_order_relaxed);
    Entry& entry = entries_[hash(a, b, c) & mask_];
    uint64_t before = word(entry.a).load(std::memory_order_relaxed);
    if ((before & kLock) != 0) return;
    // Another process has entered the same result: a write would take the line from its cache.
    if (((before ^ a) & ~kVersions) == 0 && word(entry.b).load(std::memory_order_relaxed) == b &&
        word(entry.c).load(std::memory_order_relaxed) == c) {
      return;
    }
    if (!word(entry.a).compare_exchange_strong(before, before | kLock, std::memory_order_acquire)) {
      return;
    }
    // Release: no reader sees one of these words without the lock.
    word(entry.b).store(b, std::memory_order_release);
    word(entry.c).store(c, std::memory_order_release);
    word(entry.result).store(result, std::memory_order_release);
    const uint64_t version = (before + kOneVersion) & kVersions;
    word(entry.a).store(a | version, std::memory_order_release);
    if (entered_ >= grow_at_) [[unlikely]]
      grow_shared();
  }
  void allocate(uint64_t entries);
  void grow();
  void grow_shared();

  Entry* entries_ = nullptr;
  Header* header_ = nullptr;  // of a shared cache
  // Number of entries - 1. Of a shared cache: as of the last put() of this object. With an older,
  // smaller value, find() does not find the entries that were put in the upper half since.
  uint64_t mask_ = 0;
  uint64_t most_ = 0;  // largest number of entries
  uint64_t entered_ = 0;
  uint64_t grow_at_ = 0;
};

}  // namespace cariama::bdd

#endif  // CARIAMA_BDD_INTERNAL_OPERATION_CACHE_H_
