#include "bench/support/call_worker.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <span>
#include <utility>

#include "bench/support/call_payload.h"
#include "bench/support/job.h"
#include "bench/support/transfer_load.h"
#include "bench/support/transfer_target.h"
#include "dsfabric/send_call.h"
#include "dtutils/error.h"
#include "dtutils/statistics.h"
#include "dtutils/synchronizer.h"
#include "riutils/call.h"

namespace cariama::bench {
namespace {

struct Named {
  const char* name;
  CallMode mode;
};
constexpr Named kModes[] = {
    {"ring", CallMode::kRing},      {"ring-batched", CallMode::kRingBatched},
    {"max-raw", CallMode::kMaxRaw}, {"send", CallMode::kSend},
    {"write", CallMode::kWrite},    {"trad", CallMode::kTrad},
    {"ovfl", CallMode::kOvfl},      {"captured", CallMode::kCaptured},
    {"read", CallMode::kRead}};

template <size_t kBytes, int kHandlers>
const Messages<kBytes, kHandlers>& messages_of() {
  static const Messages<kBytes, kHandlers> messages;
  return messages;
}

// Calls function(std::integral_constant<size_t, size>).
template <typename Function>
auto with_size(uint64_t size, Function&& function) {
  switch (size) {
    case 8:
      return function(std::integral_constant<size_t, 8>());
    case 64:
      return function(std::integral_constant<size_t, 64>());
    case 256:
      return function(std::integral_constant<size_t, 256>());
    case 4096:
      return function(std::integral_constant<size_t, 4096>());
    default:
      return function(std::integral_constant<size_t, 65536>());
  }
}

// Returns true if a call was accepted; else stores its error.
inline __attribute__((always_inline)) bool accepted(const CallResult& result,
                                                    absl::Status& failure) {
  if (result.ok()) [[likely]]
    return true;
  failure = result.status();
  return false;
}

// Sends one call in the form that a user would choose for a payload of this size: a lambda that
// captures it, or call_buffer.
template <size_t kBytes, int kHandler, typename Target>
inline __attribute__((always_inline)) bool call_once(Target& target,
                                                     const Handler<kBytes, kHandler>& message,
                                                     absl::Status& failure) {
  if constexpr (kBytes <= kMostCaptured) {
    return accepted(target.call(message), failure);
  } else {
    return accepted(target.call_buffer(BufferHandler<kBytes, kHandler>(),
                                       std::as_bytes(std::span(message.payload.words))),
                    failure);
  }
}

// Send-based calls with the interface of a messenger.
struct SendBased {
  Fabric& fabric;
  uint32_t destination;
  template <typename F>
  CallResult call(const F& function) {
    return cariama::call(fabric, destination, function);
  }
  template <typename F>
  CallResult call_buffer(const F& function, std::span<const std::byte> buffer) {
    return cariama::call_buffer(fabric, destination, function, buffer);
  }
  template <typename F, typename T>
  CallResult call_return(const F& function, T& result, Synchronizer& done) {
    return cariama::call_return(fabric, destination, function, result, done);
  }
};

}  // namespace

std::string call_mode_name(CallMode mode) {
  for (const Named& each : kModes) {
    if (each.mode == mode) return each.name;
  }
  return "?";
}

std::optional<CallMode> call_mode_named(const std::string& name) {
  for (const Named& each : kModes) {
    if (each.name == name) return each.mode;
  }
  return std::nullopt;
}

uint64_t call_round(uint64_t size) {
  return with_size(size, [](auto bytes) { return Messages<bytes(), 1>::kRound; });
}

uint64_t call_sum(const CallLoad& load, uint64_t messages) {
  return with_size(load.size, [&](auto bytes) {
    return load.handlers == 4 ? messages_of<bytes(), 4>().sum(messages)
                              : messages_of<bytes(), 1>().sum(messages);
  });
}

RDMAMessenger& CallWorker::messenger(CallMode mode) {
  auto& own = messengers_[static_cast<size_t>(mode) - static_cast<size_t>(CallMode::kWrite)];
  if (own == nullptr) {
    own = std::make_unique<RDMAMessenger>(*place_.thread, place_.destination, place_.options);
  }
  return *own;
}

template <size_t kBytes>
absl::StatusOr<RDMAMemory*> CallWorker::registered_payloads() {
  const auto known = payloads_.find(kBytes);
  if (known != payloads_.end()) return &known->second;
  using Round = Messages<kBytes, 1>;
  auto memory = place_.thread->fabric().memory().allocate(kBytes * Round::kRound);
  if (!memory.ok()) return memory.status();
  static const Closures<kBytes, 0> closures;
  for (size_t i = 0; i < Round::kRound; ++i) {
    std::memcpy(memory->get_buffer() + i * kBytes, closures[i].payload.words.data(), kBytes);
  }
  return &payloads_.emplace(kBytes, *std::move(memory)).first->second;
}

template <size_t kBytes, int kHandlers>
absl::Status CallWorker::send(CallMode mode, uint64_t messages) {
  const Messages<kBytes, kHandlers>& what = messages_of<kBytes, kHandlers>();
  absl::Status failure;
  const auto send_to = [&](auto& target) __attribute__((always_inline)) {
    what.each(
        messages, [&]<int kHandler>(const Handler<kBytes, kHandler>& message) __attribute__((
                      always_inline)) { return call_once(target, message, failure); });
  };
  switch (mode) {
    case CallMode::kRing:
      place_.ring->send<kBytes, kHandlers, false>(what, messages);
      break;
    case CallMode::kRingBatched:
      place_.ring->send<kBytes, kHandlers, true>(what, messages);
      break;
    case CallMode::kMaxRaw:
      return raw(kBytes, messages);
    case CallMode::kSend: {
      SendBased target{place_.thread->fabric(), place_.destination};
      send_to(target);
      break;
    }
    case CallMode::kWrite:
      send_to(messenger(mode));
      break;
    case CallMode::kTrad: {
      RDMAAggregator aggregator(messenger(mode));
      send_to(aggregator);
      if (failure.ok()) failure = aggregator.flush();
      break;
    }
    case CallMode::kOvfl: {
      RDMAOverflowAggregator aggregator(messenger(mode));
      send_to(aggregator);
      if (failure.ok()) failure = aggregator.flush();
      break;
    }
    case CallMode::kCaptured: {
      RDMAMessenger& target = messenger(mode);
      what.each(
          messages, [&](const auto& message) __attribute__((always_inline)) {
            return accepted(target.call(message), failure);
          });
      break;
    }
    case CallMode::kRead: {
      RDMAMessenger& target = messenger(mode);
      const auto memory = registered_payloads<kBytes>();
      if (!memory.ok()) return memory.status();
      uint64_t number = 0;
      what.each(messages, [&]<int kHandler>(const Handler<kBytes, kHandler>&) {
        const uint64_t offset = number++ % Messages<kBytes, kHandlers>::kRound * kBytes;
        return accepted(target.template call_buffer<Sync>(BufferHandler<kBytes, kHandler>(),
                                                          *memory, offset, kBytes),
                        failure);
      });
      break;
    }
  }
  return failure;
}

template <size_t kBytes>
absl::Status CallWorker::receive(CallMode mode, uint64_t messages) {
  if (!needs_fabric(mode)) {
    place_.ring->receive<kBytes>(messages);
    return absl::OkStatus();
  }
  Patience patience;
  Deadline deadline = kForever;
  for (uint64_t idle = 0; call_sink.count < messages;) {
    if (look() != 0) {
      idle = 0;
      continue;
    }
    patience.pause();
    if (++idle % 1'000'000 != 0) continue;
    const Deadline now = std::chrono::steady_clock::now();
    if (idle == 1'000'000) deadline = now + std::chrono::minutes(2);
    if (now > deadline) {
      return make_error(absl::StatusCode::kDataLoss, ErrorScope::kOperation,
                        "of " + std::to_string(messages) + " calls " +
                            std::to_string(call_sink.count) +
                            " arrived, and no further one within two minutes");
    }
  }
  return absl::OkStatus();
}

absl::Status CallWorker::raw(uint64_t size, uint64_t messages) {
  if (place_.side == nullptr) return absl::OkStatus();
  if (!place_.sends) {
    return receive_messages(*place_.side, place_.side->transmit_queue().queue_pair(), size,
                            messages);
  }
  const Load load{.mode = Mode::kAuto,
                  .operation = Operation::kSend,
                  .window = Window(size, place_.side->options().ring),
                  .messages = messages};
  return run_load(*place_.side, load).status();
}

template <size_t kBytes>
absl::Status CallWorker::round_trip(CallMode mode, uint64_t count) {
  Fabric& fabric = place_.thread->fabric();
  static const Closures<kBytes, 0> closures;
  const Handler<kBytes, 0>& message = closures[0];
  const auto function = [payload = message.payload] { return Payload<kBytes>::sum_at(&payload); };
  const uint64_t expected = function();
  round_trips_.clear();
  const auto measure = [&](auto& target) {
    for (uint64_t i = 0; i < count; ++i) {
      uint64_t result = 0;
      Synchronizer done;
      const int64_t start = now_ns();
      const CallResult sent = target.call_return(function, result, done);
      if (!sent.ok()) return sent.status();
      if (!fabric.wait([&] { return done.done(); }, deadline_after(std::chrono::minutes(2)))) {
        return make_error(absl::StatusCode::kDeadlineExceeded, ErrorScope::kOperation,
                          "a call_return was not answered within two minutes");
      }
      round_trips_.push_back(static_cast<double>(now_ns() - start));
      if (absl::Status status = done.status(); !status.ok()) return status;
      if (result != expected) {
        return make_error(absl::StatusCode::kDataLoss, ErrorScope::kOperation,
                          "a call_return returned a wrong result");
      }
    }
    // Ends the receiver's loop, which waits for one call.
    return target.call(message).status();
  };
  if (mode == CallMode::kSend) {
    SendBased target{fabric, place_.destination};
    return measure(target);
  }
  return measure(messenger(CallMode::kWrite));
}

absl::StatusOr<RoundResult> CallWorker::run(const CallLoad& load, uint64_t messages,
                                            Rounds& rounds) {
  RoundResult result;
  call_sink = {};
  const uint64_t preempted = preemptions();
  const bool counts = place_.index == 0 && place_.thread != nullptr;
  const RoundResult before = counts ? process_counts(place_.thread->fabric()) : RoundResult{};
  result.start_ns = rounds.meet();
  absl::Status status;
  if (load.mode == CallMode::kMaxRaw) {
    status = raw(load.size, messages);
    if (!place_.sends) call_sink.count = messages;
  } else {
    with_size(load.size, [&](auto bytes) {
      status = !place_.sends        ? receive<bytes()>(load.mode, load.latency ? 1 : messages)
               : load.latency       ? round_trip<bytes()>(load.mode, messages)
               : load.handlers == 4 ? send<bytes(), 4>(load.mode, messages)
                                    : send<bytes(), 1>(load.mode, messages);
    });
  }
  if (!status.ok()) return status;
  result.end_ns = now_ns();
  result.preemptions = preemptions() - preempted;
  result.count = call_sink.count;
  result.sum = call_sink.sum;
  if (counts) result.set_counts(before, process_counts(place_.thread->fabric()));
  return result;
}

absl::Status CallWorker::close() {
  absl::Status first;
  for (const auto& messenger : messengers_) {
    if (messenger == nullptr) continue;
    first.Update(messenger->shutdown(deadline_after(std::chrono::minutes(1))));
  }
  for (auto& [size, memory] : payloads_) {
    first.Update(place_.thread->fabric().memory().free(std::move(memory)));
  }
  payloads_.clear();
  return first;
}

}  // namespace cariama::bench
