// The payloads of bench_call's messages and the handlers that read them: the same in every mode.
#ifndef CARIAMA_BENCH_SUPPORT_CALL_PAYLOAD_H_
#define CARIAMA_BENCH_SUPPORT_CALL_PAYLOAD_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace cariama::bench {

// Counters of the handlers that ran in one thread.
struct CallSink {
  uint64_t count = 0;
  uint64_t sum = 0;
};
inline constinit thread_local CallSink call_sink;

template <size_t kBytes>
struct Payload {
  static_assert(kBytes % 8 == 0);
  std::array<uint64_t, kBytes / 8> words;

  [[nodiscard]] static uint64_t sum_at(const void* at) {
    uint64_t sum = 0;
    for (size_t i = 0; i < kBytes; i += 8) {
      uint64_t word = 0;
      std::memcpy(&word, static_cast<const std::byte*>(at) + i, sizeof word);
      sum += word;
    }
    return sum;
  }
};

// Every handler reads its whole payload and adds its own number, so that a call that reaches the
// wrong handler changes the sum.
template <size_t kBytes, int kHandler>
inline void handle(const void* payload) {
  call_sink.sum += Payload<kBytes>::sum_at(payload) + kHandler;
  ++call_sink.count;
}

// The closure of a call.
template <size_t kBytes, int kHandler>
struct Handler {
  Payload<kBytes> payload;
  void operator()() const { handle<kBytes, kHandler>(&payload); }
};

// The function of a call_buffer, for payloads larger than kMostCaptured.
template <size_t kBytes, int kHandler>
struct BufferHandler {
  void operator()(void* buffer, uint64_t size) const {
    if (size == kBytes) handle<kBytes, kHandler>(buffer);
  }
};
inline constexpr size_t kMostCaptured = 256;

// The closures that are sent in turn: several, so that copying one does not wait for the stores
// that created it, but few enough to stay in the first-level cache.
template <size_t kBytes, int kHandler>
class Closures {
 public:
  static constexpr size_t kCount = std::max<size_t>(4, std::min<size_t>(64, 16384 / kBytes));

  Closures() {
    for (size_t i = 0; i < kCount; ++i) {
      for (size_t word = 0; word < kBytes / 8; ++word) {
        closures_[i].payload.words[word] = (i * 1000003 + word + 1) * 0x9E3779B97F4A7C15;
      }
    }
  }
  [[nodiscard]] const Handler<kBytes, kHandler>& operator[](uint64_t message) const {
    return closures_[message % kCount];
  }

 private:
  std::array<Handler<kBytes, kHandler>, kCount> closures_;
};

// The handlers of a load and the closures that are sent to them.
template <size_t kBytes, int kHandlers>
class Messages {
 public:
  static_assert(kHandlers == 1 || kHandlers == 4);
  static constexpr uint64_t kRound =
      Closures<kBytes, 0>::kCount;  // messages are sent in whole rounds

  // Returns the sum of the handlers after `messages` messages. Requires: a multiple of kRound.
  [[nodiscard]] uint64_t sum(uint64_t messages) const {
    uint64_t sum = 0;
    for (uint64_t i = 0; i < kRound; ++i) {
      sum += Payload<kBytes>::sum_at(&first_[i].payload) + (kHandlers == 4 ? i % 4 : 0);
    }
    return sum * (messages / kRound);
  }

  // Calls send(closure) for each message. Stops and returns false when send returns false.
  template <typename Send>
  __attribute__((always_inline)) bool each(uint64_t messages, Send&& send) const {
    for (uint64_t i = 0; i < messages; i += 4) {
      if (!send(first_[i])) [[unlikely]]
        return false;
      if (!send(second()[i + 1])) [[unlikely]]
        return false;
      if (!send(third()[i + 2])) [[unlikely]]
        return false;
      if (!send(fourth()[i + 3])) [[unlikely]]
        return false;
    }
    return true;
  }

 private:
  [[nodiscard]] const auto& second() const { return pick(first_, second_); }
  [[nodiscard]] const auto& third() const { return pick(first_, third_); }
  [[nodiscard]] const auto& fourth() const { return pick(first_, fourth_); }
  template <typename One, typename Four>
  [[nodiscard]] static const auto& pick(const One& one, const Four& four) {
    if constexpr (kHandlers == 1) {
      return one;
    } else {
      return four;
    }
  }

  Closures<kBytes, 0> first_;
  Closures<kBytes, 1> second_;
  Closures<kBytes, 2> third_;
  Closures<kBytes, 3> fourth_;
};

}  // namespace cariama::bench

#endif  // CARIAMA_BENCH_SUPPORT_CALL_PAYLOAD_H_
