// Copies into and out of memory that another process (or thread) accesses.
//
// Order (ArrivalOrder::kWrites): a reader that sees a WRITE sees all earlier WRITEs of the queue
// pair. x86 keeps stores in order (glibc ends its non-temporal copies with a store fence); on other
// architectures every copy starts with a release fence. A copy of 8, 4, 2 or 1 aligned bytes is one
// atomic release store, and a READ of that size one atomic acquire load, so it is visible as a
// whole and ThreadSanitizer understands it.
#ifndef CARIAMA_DTUTILS_SHM_COPY_H_
#define CARIAMA_DTUTILS_SHM_COPY_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "dtutils/internal/shared_copy.h"

namespace cariama::shm {

template <typename Word>
[[nodiscard]] inline bool is_aligned(const void* address) {
  return reinterpret_cast<uintptr_t>(address) % sizeof(Word) == 0;
}

inline void release_earlier_writes() {
#if !defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
  std::atomic_thread_fence(std::memory_order_release);
#else
  std::atomic_signal_fence(std::memory_order_release);  // compiler fence
#endif
}

// Stores a word as a whole if `to` is aligned. On x86 one instruction, at any address.
template <typename Word>
inline void store_word(std::byte* to, const std::byte* from) {
  Word word;
  std::memcpy(&word, from, sizeof word);
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
  struct [[gnu::packed, gnu::may_alias]] Anywhere {
    Word word;
  };
  release_earlier_writes();
  reinterpret_cast<volatile Anywhere*>(to)->word = word;
#else
  if (is_aligned<Word>(to)) [[likely]] {
    std::atomic_ref<Word>(*reinterpret_cast<Word*>(to)).store(word, std::memory_order_release);
  } else {
    release_earlier_writes();
    std::memcpy(to, &word, sizeof word);
  }
#endif
}

template <typename Word>
inline void load_word(std::byte* to, std::byte* from) {
  Word word;
  if (is_aligned<Word>(from)) [[likely]] {
    word = std::atomic_ref<Word>(*reinterpret_cast<Word*>(from)).load(std::memory_order_acquire);
  } else {
    std::memcpy(&word, from, sizeof word);
  }
  std::memcpy(to, &word, sizeof word);
}

// Orders a READ after the earlier WRITEs of its queue pair. A processor may execute a load before
// earlier stores, which breaks protocols in which each side writes a flag and then reads the other
// side's flag.
inline void complete_earlier_writes() {
#if defined(__x86_64__)
  // Cheaper than mfence; the word is on this thread's own stack.
  asm volatile("lock; orl $0, (%%rsp)" ::: "memory", "cc");
#elif !defined(__SANITIZE_THREAD__)
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

// Loads and stores of constant size at any address. Each compiles to one instruction, while arrays
// with memcpy go through the stack.
template <typename Word>
inline Word load_any(const std::byte* from) {
  Word word;
  std::memcpy(&word, from, sizeof word);
  return word;
}
template <typename Word>
inline void store_any(std::byte* to, const Word& word) {
  std::memcpy(to, &word, sizeof word);
}

// Copies a piece of sizeof(Word) to 2 * sizeof(Word) bytes by its two ends, which may overlap.
template <typename Word>
inline void copy_ends(std::byte* to, const std::byte* from, size_t bytes) {
  const Word head = load_any<Word>(from);
  const Word tail = load_any<Word>(from + bytes - sizeof(Word));
  store_any(to, head);
  store_any(to + bytes - sizeof(Word), tail);
}

using Vector16 [[gnu::vector_size(16)]] = uint8_t;

// Copies 64 bytes or more in blocks of 64, with the widest vectors that this processor has; the
// last block ends where the piece ends, so it may overlap the block before it. Up to a few pages
// this is faster than memcpy (8 % at 1 KiB on the test machine), which has to select a method; for
// larger pieces no tried method is faster than memcpy (docs/performance.md). The function is
// selected when the library is loaded.
using CopyFunction = void (*)(std::byte* to, const std::byte* from, size_t bytes);
extern const CopyFunction kCopyBlocks;
inline constexpr size_t kMaxBlockwise = 2048;

// Copies from local to remote memory, for all sizes except 8 bytes.
inline void copy_out_other(std::byte* to, const std::byte* from, size_t bytes) {
  release_earlier_writes();
  if (bytes > kMaxBlockwise) {
    std::memcpy(to, from, bytes);
  } else if (bytes >= 64) {
    kCopyBlocks(to, from, bytes);
  } else if (bytes > 32) {
    const auto second = load_any<Vector16>(from + 16);
    const auto third = load_any<Vector16>(from + bytes - 32);
    copy_ends<Vector16>(to, from, bytes);
    store_any(to + 16, second);
    store_any(to + bytes - 32, third);
  } else if (bytes > 16) {
    copy_ends<Vector16>(to, from, bytes);
  } else if (bytes > 8) {
    copy_ends<uint64_t>(to, from, bytes);
  } else if (bytes > 4) {
    copy_ends<uint32_t>(to, from, bytes);
  } else if (bytes == 4) {
    store_word<uint32_t>(to, from);
  } else if (bytes == 2) {
    store_word<uint16_t>(to, from);
  } else if (bytes == 1) {
    store_word<uint8_t>(to, from);
  } else if (bytes == 3) {
    std::memcpy(to, from, 3);
  }
}
// Copies from local to remote memory.
inline void copy_out(std::byte* to, const std::byte* from, size_t bytes) {
  if (bytes == 8) [[likely]]
    return store_word<uint64_t>(to, from);
  copy_out_other(to, from, bytes);
}

// Copies from remote to local memory.
inline void copy_in(std::byte* to, std::byte* from, size_t bytes) {
  switch (bytes) {
    case 8:
      return load_word<uint64_t>(to, from);
    case 4:
      return load_word<uint32_t>(to, from);
    case 2:
      return load_word<uint16_t>(to, from);
    case 1:
      return load_word<uint8_t>(to, from);
    default:
      internal::copy_beside_atomics(to, from, bytes);
  }
}

}  // namespace cariama::shm

#endif  // CARIAMA_DTUTILS_SHM_COPY_H_
