// A thread's ways to all other threads of the job: aggregators of the kind that was asked for.
#ifndef CARIAMA_MCTS_LINES_H_
#define CARIAMA_MCTS_LINES_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "dtutils/statistics.h"
#include "riutils/call.h"

namespace cariama::mcts {

// Belongs to its thread.
class Lines {
 public:
  Lines(ThreadContext& thread, Aggregation kind)
      : lines_(std::in_place_index<0>, thread), used_(thread.fabric().total_threads()) {
    if (kind == Aggregation::kOverflow) lines_.emplace<1>(thread);
  }

  // As CallInterface::call and call_buffer; false: the destination is dead, or far behind.
  template <typename F>
  bool call(uint32_t thread, F&& function) {
    count_message(sizeof(F));
    return send(thread,
                [&](auto& lines) -> bool { return lines.call(thread, std::forward<F>(function)); });
  }
  template <typename F>
  bool call_buffer(uint32_t thread, F&& function, std::span<const std::byte> buffer) {
    count_message(sizeof(F) + buffer.size());
    return send(thread, [&](auto& lines) -> bool {
      return lines.call_buffer(thread, std::forward<F>(function), buffer);
    });
  }

  // Publishes what is held back, if there is something.
  void flush() {
    if (!dirty_) return;
    dirty_ = false;
    std::visit([](auto& lines) { static_cast<void>(lines.flush_all()); }, lines_);
  }
  void shutdown(Deadline deadline) {
    std::visit([&](auto& lines) { static_cast<void>(lines.shutdown_all(deadline)); }, lines_);
  }

  // How many channels were used, and how many of them ever held back more than a chunk.
  [[nodiscard]] std::pair<uint64_t, uint64_t> channels() {
    std::pair<uint64_t, uint64_t> count{0, 0};
    for (uint32_t thread = 0; thread < used_.size(); ++thread) {
      if (!used_[thread]) continue;
      ++count.first;
      std::visit(
          [&](auto& lines) {
            const MessengerStatistics known = lines[thread].statistics();
            count.second += known.exceeding_bytes_high_water > MessengerOptions{}.chunk_bytes;
          },
          lines_);
    }
    return count;
  }
  // Whether something may be held back.
  [[nodiscard]] bool dirty() const { return dirty_; }
  // Any thread. Who reads that a message was counted sees what its thread did before it sent it.
  [[nodiscard]] uint64_t messages() const { return messages_.load(std::memory_order_acquire); }
  [[nodiscard]] uint64_t bytes() const { return bytes_.value(); }

 private:
  template <typename Call>
  bool send(uint32_t thread, Call&& call) {
    used_[thread] = true;
    const bool sent = std::visit(call, lines_);
    // Not before: a call whose channel has to be opened, or to grow, runs incoming ones first, and
    // these may flush, while this one is not held yet.
    dirty_ = true;
    return sent;
  }
  void count_message(uint64_t bytes) {
    bytes_.add(bytes);
    messages_.store(messages_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }

  std::variant<RDMAAggregatorGlobal, RDMAOverflowAggregatorGlobal> lines_;
  std::vector<bool> used_;  // by destination
  std::atomic<uint64_t> messages_{0};
  Counter bytes_;
  bool dirty_ = false;
};

}  // namespace cariama::mcts

#endif  // CARIAMA_MCTS_LINES_H_
