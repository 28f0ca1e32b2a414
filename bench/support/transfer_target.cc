#include "bench/support/transfer_target.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <string>

#include "dtutils/completion.h"
#include "dtutils/error.h"
#include "dtutils/exchange_connect.h"
#include "dtutils/wait.h"

namespace cariama::bench {
namespace {

// Deadline for waits on the other rank; much longer than any command takes.
Deadline patience() { return deadline_after(std::chrono::minutes(10)); }

uint64_t sum_of_words(Side& side, uint32_t threads) {
  uint64_t sum = 0;
  for (uint32_t thread = 0; thread < threads; ++thread) {
    sum += std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(side.handle(thread).get_buffer()))
               .load();
  }
  return sum;
}

}  // namespace

absl::Status receive_messages(Side& side, QueuePair& queue_pair, uint64_t size, uint64_t messages) {
  constexpr uint32_t kBatch = 32;
  const Window window = side.window(size);
  std::byte* const base = side.handle(0).get_buffer();
  const uint64_t depth = queue_pair.limits().receive_depth;
  uint64_t posted = 0;
  uint64_t received = 0;
  absl::Status failure;
  const auto post = [&] {
    std::array<Segment, kBatch> segments;
    std::array<ReceiveRequest, kBatch> requests;
    while (posted < messages && posted - received < depth) {
      const auto count = static_cast<uint32_t>(
          std::min({uint64_t{kBatch}, messages - posted, depth - (posted - received)}));
      for (uint32_t i = 0; i < count; ++i) {
        const uint64_t slot = (posted + i) % window.slots();
        segments[i] = {base + slot * window.stride, static_cast<uint32_t>(size),
                       side.region().local_key()};
        requests[i] = {.segments = &segments[i], .segment_count = 1};
      }
      const PostResult result = queue_pair.post_receive(std::span(requests.data(), count));
      if (!result.ok()) return to_status(result, queue_pair.peer());
      posted += count;
    }
    return absl::OkStatus();
  };
  while (received < messages) {
    // Refill half a queue or a batch at a time: one call for many receives.
    if (posted - received <= depth / 2 || posted - received + kBatch <= depth) {
      if (absl::Status status = post(); !status.ok()) return status;
    }
    std::array<Completion, kBatch> batch;
    size_t count = 0;
    if (!wait_until(
            [&] {
              count = side.receive_completions().poll(batch);
              return count != 0;
            },
            patience())) {
      return make_error(absl::StatusCode::kDeadlineExceeded, ErrorScope::kPeer,
                        "no message from " + queue_pair.peer());
    }
    for (size_t i = 0; i < count; ++i) {
      if (batch[i].status != CompletionStatus::kSuccess) {
        return to_status(batch[i], queue_pair.peer());
      }
    }
    received += count;
  }
  return absl::OkStatus();
}

void clear_windows(Side& side, uint32_t threads, uint64_t size) {
  for (uint32_t thread = 0; thread < threads; ++thread) {
    std::memset(side.handle(thread).get_buffer(), 0, side.window(size).bytes);
  }
}

void fill_windows(Side& side, uint32_t threads, uint64_t size) {
  for (uint32_t thread = 0; thread < threads; ++thread) {
    std::byte* const base = side.handle(thread).get_buffer();
    for (uint64_t i = 0; i < side.window(size).bytes; ++i) base[i] = pattern(i);
  }
}

bool windows_filled(Side& side, uint32_t threads, uint64_t size) {
  const Window window = side.window(size);
  for (uint32_t thread = 0; thread < threads; ++thread) {
    const std::byte* const base = side.handle(thread).get_buffer();
    for (uint64_t slot = 0; slot < window.bytes; slot += window.stride) {
      for (uint64_t i = slot; i < slot + size; ++i) {
        if (base[i] != pattern(i)) return false;
      }
    }
  }
  return true;
}

absl::StatusOr<uint64_t> TargetControl::ask(const TargetCommand& command) {
  const std::string number = std::to_string(asked_++);
  if (absl::Status status = put_value(exchange_, "command " + number, command); !status.ok()) {
    return status;
  }
  return get_value<uint64_t>(exchange_, 1 - exchange_.rank(), "answer " + number, patience());
}

absl::Status serve_target(Side& side) {
  using Kind = TargetCommand::Kind;
  Exchange& exchange = side.exchange();
  for (uint64_t number = 0;; ++number) {
    const std::string name = std::to_string(number);
    auto command =
        get_value<TargetCommand>(exchange, 1 - exchange.rank(), "command " + name, patience());
    if (!command.ok()) return command.status();
    uint64_t value = 0;
    switch (command->kind) {
      case Kind::kClear:
        clear_windows(side, command->threads, command->size);
        break;
      case Kind::kFill:
        fill_windows(side, command->threads, command->size);
        break;
      case Kind::kIsFilled:
        value = windows_filled(side, command->threads, command->size) ? 1 : 0;
        break;
      case Kind::kWord:
        value = sum_of_words(side, command->threads);
        break;
      case Kind::kReceive:
      case Kind::kEnd:
        break;
    }
    if (absl::Status status = put_value(exchange, "answer " + name, value); !status.ok()) {
      return status;
    }
    if (command->kind == Kind::kEnd) return absl::OkStatus();
    if (command->kind != Kind::kReceive) continue;
    QueuePair& queue_pair =
        command->manual != 0 ? side.manual_queue() : side.transmit_queue().queue_pair();
    if (absl::Status status = receive_messages(side, queue_pair, command->size, command->messages);
        !status.ok()) {
      return status;
    }
  }
}

}  // namespace cariama::bench
