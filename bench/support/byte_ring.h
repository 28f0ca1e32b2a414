// The ceiling of bench_call: a minimal fast implementation that invokes functions with a payload in
// another process of the host. One ring of bytes in shared memory with one producer and one
// consumer. A message is the 8-byte number of a function and the payload, whose size is known at
// compile time. The consumer calls the function through a table.
//
// Properties that were found by measurement to make it fast:
//   - The memory is mapped twice in a row, so that no message wraps.
//   - Head and tail are on separate cache lines.
//   - The producer reads the tail again only when the ring seems full.
//   - The consumer releases 64 KiB at a time.
//   - The consumer pauses before it reads an unchanged head again (four times as fast at 64 bytes
//     as without the pause, with messages published one by one).
//   - The ring has half a MiB (a quarter of a MiB is half as fast).
#ifndef CARIAMA_BENCH_SUPPORT_BYTE_RING_H_
#define CARIAMA_BENCH_SUPPORT_BYTE_RING_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <thread>

#include "absl/status/statusor.h"
#include "bench/support/call_payload.h"

namespace cariama::bench {

// The pause of a polling loop. Every 1024th pause yields the core to other threads.
class Patience {
 public:
  void pause() {
    for (int i = 0; i < 2; ++i) {
#if defined(__x86_64__)
      __builtin_ia32_pause();
#elif defined(__aarch64__)
      asm volatile("isb" ::: "memory");
#endif
    }
    if (++pauses_ % 1024 == 0) std::this_thread::yield();
  }

 private:
  uint32_t pauses_ = 0;
};

// Created before the fork; each of the two processes uses one end. Thread-compatible: one thread
// per end.
class ByteRing {
 public:
  static constexpr uint64_t kRelease = 64 << 10;
  static constexpr uint64_t kBatch = 4096;

  // `capacity`: bytes, a power of two and a multiple of the page size. Error: RESOURCE_EXHAUSTED.
  [[nodiscard]] static absl::StatusOr<ByteRing> create(uint64_t capacity);
  ~ByteRing();
  ByteRing(ByteRing&& other) noexcept;
  ByteRing& operator=(ByteRing&&) = delete;

  // Sends `messages` messages, published one by one or kBatch bytes at a time. Blocks while the
  // ring is full.
  template <size_t kBytes, int kHandlers, bool kBatched>
  void send(const Messages<kBytes, kHandlers>& what, uint64_t messages);

  // Runs `messages` messages. Blocks until they have arrived.
  template <size_t kBytes>
  void receive(uint64_t messages);

 private:
  using Function = void (*)(const std::byte* payload);
  struct Shared {
    alignas(128) std::atomic<uint64_t> head{0};
    alignas(128) std::atomic<uint64_t> tail{0};
  };

  ByteRing(std::byte* memory, uint64_t capacity, Shared* shared)
      : memory_(memory), capacity_(capacity), shared_(shared) {}
  [[gnu::noinline]] uint64_t wait_for_room(uint64_t position, uint64_t bytes) const;

  std::byte* memory_;
  uint64_t capacity_;
  Shared* shared_;
  uint64_t position_ = 0;  // of this process's end, in bytes since the beginning
};

template <size_t kBytes, int kHandlers, bool kBatched>
void ByteRing::send(const Messages<kBytes, kHandlers>& what, uint64_t messages) {
  constexpr uint64_t kStride = 8 + kBytes;
  const uint64_t mask = capacity_ - 1;
  uint64_t position = position_;
  uint64_t room_until = shared_->tail.load(std::memory_order_acquire) + capacity_;
  uint64_t publish_at = position + kBatch;
  what.each(
      messages, [&]<int kHandler>(const Handler<kBytes, kHandler>& message)
                    __attribute__((always_inline)) {
                      if (position + kStride > room_until) [[unlikely]] {
                        shared_->head.store(position, std::memory_order_release);
                        room_until = wait_for_room(position, kStride);
                      }
                      std::byte* const at = memory_ + (position & mask);
                      constexpr uint64_t kFunction = kHandler;
                      std::memcpy(at, &kFunction, sizeof kFunction);
                      std::memcpy(at + 8, &message.payload, kBytes);
                      position += kStride;
                      if (!kBatched || position >= publish_at) {
                        shared_->head.store(position, std::memory_order_release);
                        publish_at = position + kBatch;
                      }
                      return true;
                    });
  shared_->head.store(position, std::memory_order_release);
  position_ = position;
}

template <size_t kBytes>
void ByteRing::receive(uint64_t messages) {
  constexpr uint64_t kStride = 8 + kBytes;
  static constexpr Function kFunctions[] = {
      [](const std::byte* payload) { handle<kBytes, 0>(payload); },
      [](const std::byte* payload) { handle<kBytes, 1>(payload); },
      [](const std::byte* payload) { handle<kBytes, 2>(payload); },
      [](const std::byte* payload) { handle<kBytes, 3>(payload); }};
  const Function* functions = kFunctions;
  asm volatile("" : "+r"(functions));  // prevents the compiler from inlining through the table
  const uint64_t mask = capacity_ - 1;
  uint64_t position = position_;
  uint64_t release_at = position + kRelease;
  const uint64_t end = position + messages * kStride;
  Patience patience;
  while (position != end) {
    const uint64_t head = shared_->head.load(std::memory_order_acquire);
    if (head == position) {
      patience.pause();
      continue;
    }
    while (position != head) {
      const std::byte* const at = memory_ + (position & mask);
      uint64_t function = 0;
      std::memcpy(&function, at, sizeof function);
      functions[function](at + 8);
      position += kStride;
      if (position >= release_at) {
        shared_->tail.store(position, std::memory_order_release);
        release_at = position + kRelease;
      }
    }
  }
  shared_->tail.store(position, std::memory_order_release);
  position_ = position;
}

}  // namespace cariama::bench

#endif  // CARIAMA_BENCH_SUPPORT_BYTE_RING_H_
