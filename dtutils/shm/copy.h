// Copies into and out of memory that another process (or thread) looks at.
//
// Order (ArrivalOrder::kWrites): whoever sees a WRITE sees all earlier ones of the queue pair. x86
// keeps stores in order (glibc ends its non-temporal copies with a store fence); elsewhere every
// copy starts with a release fence. A copy of an aligned 8, 4, 2 or 1 bytes is one atomic release
// store, and such a READ one atomic acquire load: visible whole, and understood by ThreadSanitizer.
#ifndef CARIAMA_DTUTILS_SHM_COPY_H_
#define CARIAMA_DTUTILS_SHM_COPY_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace cariama::shm {

template <typename Word>
[[nodiscard]] inline bool is_aligned(const void* address) {
  return reinterpret_cast<uintptr_t>(address) % sizeof(Word) == 0;
}

template <typename Word>
inline void store_word(std::byte* to, const std::byte* from) {
  Word word;
  std::memcpy(&word, from, sizeof word);
  if (is_aligned<Word>(to)) [[likely]] {
    std::atomic_ref<Word>(*reinterpret_cast<Word*>(to)).store(word, std::memory_order_release);
  } else {
    std::memcpy(to, &word, sizeof word);
  }
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

inline void release_earlier_writes() {
#if !defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
  std::atomic_thread_fence(std::memory_order_release);
#else
  std::atomic_signal_fence(std::memory_order_release);  // the compiler must not reorder either
#endif
}

// A READ must not overtake an earlier WRITE of its queue pair: a processor may let a load pass
// earlier stores, which breaks protocols that write a flag and then read the other side's.
inline void complete_earlier_writes() {
#if defined(__x86_64__)
  // Cheaper than mfence; the word is this thread's own.
  asm volatile("lock; orl $0, (%%rsp)" ::: "memory", "cc");
#elif !defined(__SANITIZE_THREAD__)
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

// Loads and stores of constant size, at any address: one instruction each, where arrays and memcpy
// go through the stack.
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

// A piece of n to 2n bytes by its two ends.
template <typename Word>
inline void copy_ends(std::byte* to, const std::byte* from, size_t bytes) {
  const Word head = load_any<Word>(from);
  const Word tail = load_any<Word>(from + bytes - sizeof(Word));
  store_any(to, head);
  store_any(to + bytes - sizeof(Word), tail);
}

using Vector16 [[gnu::vector_size(16)]] = uint8_t;

// Copies 64 bytes or more in blocks of 64, with the widest vectors that this processor has; the
// last block ends where the piece ends. Up to a few pages that is faster than memcpy (here 8 % at 1
// KiB), which has to choose a method; above, nothing that was tried is (docs/performance.md). Set
// when the library is loaded.
using CopyFunction = void (*)(std::byte* to, const std::byte* from, size_t bytes);
extern const CopyFunction kCopyBlocks;
inline constexpr size_t kMaxBlockwise = 2048;

// Local → remote, all but 8 bytes.
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
// Local → remote.
inline void copy_out(std::byte* to, const std::byte* from, size_t bytes) {
  if (bytes == 8) [[likely]]
    return store_word<uint64_t>(to, from);
  copy_out_other(to, from, bytes);
}

// Remote → local.
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
      std::memcpy(to, from, bytes);
  }
}

}  // namespace cariama::shm

#endif  // CARIAMA_DTUTILS_SHM_COPY_H_
