// Copies into and out of memory that other threads may load and store at the same time, such as the
// target of one-sided operations. Aligned 8-byte words are transferred as a whole. Each store is a
// release, so it publishes the stores before it: a target that polls with an acquire load is
// correct, and ThreadSanitizer can verify this.
#ifndef CARIAMA_DTUTILS_INTERNAL_SHARED_COPY_H_
#define CARIAMA_DTUTILS_INTERNAL_SHARED_COPY_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace cariama::internal {

inline constexpr size_t kWord = sizeof(uint64_t);

// Returns the number of bytes before the next word boundary, at most `bytes`.
[[nodiscard]] inline size_t bytes_to_boundary(const std::byte* address, size_t bytes) {
  return std::min(bytes, (kWord - reinterpret_cast<uintptr_t>(address) % kWord) % kWord);
}

inline void store_shared(std::byte* to, const std::byte* from, size_t bytes) {
  const auto store_bytes = [&](size_t count) {
    for (; count > 0; --count, --bytes) {
      std::atomic_ref(*to++).store(*from++, std::memory_order_release);
    }
  };
  store_bytes(bytes_to_boundary(to, bytes));
  for (; bytes >= kWord; bytes -= kWord, to += kWord, from += kWord) {
    uint64_t word;
    std::memcpy(&word, from, kWord);
    std::atomic_ref(*reinterpret_cast<uint64_t*>(to)).store(word, std::memory_order_release);
  }
  store_bytes(bytes);
}

inline void load_shared(std::byte* to, std::byte* from, size_t bytes) {
  const auto load_bytes = [&](size_t count) {
    for (; count > 0; --count, --bytes) {
      *to++ = std::atomic_ref(*from++).load(std::memory_order_acquire);
    }
  };
  load_bytes(bytes_to_boundary(from, bytes));
  for (; bytes >= kWord; bytes -= kWord, to += kWord, from += kWord) {
    const uint64_t word =
        std::atomic_ref(*reinterpret_cast<uint64_t*>(from)).load(std::memory_order_acquire);
    std::memcpy(to, &word, kWord);
  }
  load_bytes(bytes);
}

#if defined(__SANITIZE_THREAD__)
inline constexpr bool kUnderThreadSanitizer = true;
#elif defined(__has_feature)
inline constexpr bool kUnderThreadSanitizer = __has_feature(thread_sanitizer);
#else
inline constexpr bool kUnderThreadSanitizer = false;
#endif

// As memcpy, from memory on whose aligned words other threads may execute atomics at the same time.
// memcpy tears no aligned word on the supported processors, but ThreadSanitizer would report it.
inline void copy_beside_atomics(std::byte* to, std::byte* from, size_t bytes) {
  if constexpr (kUnderThreadSanitizer) {
    load_shared(to, from, bytes);
  } else {
    std::memcpy(to, from, bytes);
  }
}

}  // namespace cariama::internal

#endif  // CARIAMA_DTUTILS_INTERNAL_SHARED_COPY_H_
