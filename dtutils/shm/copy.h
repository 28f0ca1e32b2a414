// Copies into and out of memory that another process (or thread) looks at.
//
// Order (ArrivalOrder::kWrites): whoever sees a WRITE sees all earlier ones of the queue pair. x86
// keeps stores in order (glibc ends its non-temporal copies with a store fence); elsewhere every
// copy starts with a release fence. A copy of an aligned 8, 4, 2 or 1 bytes is one atomic release
// store, and such a READ one atomic acquire load: visible whole, and understood by ThreadSanitizer.
#ifndef CARIAMA_DTUTILS_SHM_COPY_H_
#define CARIAMA_DTUTILS_SHM_COPY_H_

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

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

// The two ends of a piece of n to 2n bytes: constant sizes, which compile to vector moves.
template <size_t kBytes>
inline void copy_ends(std::byte* to, const std::byte* from, size_t bytes) {
  std::byte head[kBytes];
  std::byte tail[kBytes];
  std::memcpy(head, from, kBytes);
  std::memcpy(tail, from + bytes - kBytes, kBytes);
  std::memcpy(to, head, kBytes);
  std::memcpy(to + bytes - kBytes, tail, kBytes);
}

// More than 64 bytes, in blocks of 64 and a last block that ends where the piece ends. Up to some
// hundred bytes the call of memcpy, and its choice of a method, cost more than the copying.
inline constexpr size_t kMaxBlockwise = 1024;
inline void copy_block(std::byte* to, const std::byte* from) {
#if defined(__x86_64__)
  // Vectors by name: of a memcpy of 64 bytes g++ makes string instructions where it does not expect
  // to come often, five times slower.
  const auto* in = reinterpret_cast<const __m128i*>(from);
  auto* out = reinterpret_cast<__m128i*>(to);
  const __m128i a = _mm_loadu_si128(in);
  const __m128i b = _mm_loadu_si128(in + 1);
  const __m128i c = _mm_loadu_si128(in + 2);
  const __m128i d = _mm_loadu_si128(in + 3);
  _mm_storeu_si128(out, a);
  _mm_storeu_si128(out + 1, b);
  _mm_storeu_si128(out + 2, c);
  _mm_storeu_si128(out + 3, d);
#else
  std::memcpy(to, from, 64);
#endif
}
inline void copy_blocks(std::byte* to, const std::byte* from, size_t bytes) {
  for (size_t done = 0; done + 64 < bytes; done += 64) copy_block(to + done, from + done);
  copy_block(to + bytes - 64, from + bytes - 64);
}

// Local → remote.
inline void copy_out(std::byte* to, const std::byte* from, size_t bytes) {
  if (bytes == 8) [[likely]]
    return store_word<uint64_t>(to, from);
  release_earlier_writes();
  if (bytes > kMaxBlockwise) {
    std::memcpy(to, from, bytes);
  } else if (bytes > 64) {
    copy_blocks(to, from, bytes);
  } else if (bytes > 32) {
    copy_ends<32>(to, from, bytes);
  } else if (bytes > 16) {
    copy_ends<16>(to, from, bytes);
  } else if (bytes > 8) {
    copy_ends<8>(to, from, bytes);
  } else if (bytes > 4) {
    copy_ends<4>(to, from, bytes);
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
