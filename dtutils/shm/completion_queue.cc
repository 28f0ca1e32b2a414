#include "dtutils/shm/completion_queue.h"

#include <bit>

#include "dtutils/error.h"
#include "dtutils/shm/device_core.h"
#include "dtutils/wait.h"

namespace cariama::shm {

bool ShmChannel::wait(std::chrono::nanoseconds timeout) {
  const Deadline deadline = deadline_after(timeout);
  const auto has_event = [this] {
    return shared_->events.load(std::memory_order_acquire) != consumed_;
  };
  DoorbellSleeper sleeper(shared_->doorbell);
  while (!has_event()) {
    if (!sleep_once(has_event, deadline, sleeper) && std::chrono::steady_clock::now() >= deadline) {
      return false;
    }
  }
  ++consumed_;
  return true;
}

ShmCompletionQueue::ShmCompletionQueue(std::shared_ptr<ShmDevice> device, ControlBlock block,
                                       uint32_t depth, std::shared_ptr<ShmChannel> channel)
    : device_(std::move(device)),
      block_(std::move(block)),
      shared_(reinterpret_cast<SharedCompletionQueue*>(block_.data())),
      channel_(std::move(channel)),
      depth_(depth),
      mask_(std::bit_ceil(depth) - 1),
      ring_(new Cell[mask_ + 1]) {
  for (uint64_t i = 0; i <= mask_; ++i) ring_[i].sequence.store(i, std::memory_order_relaxed);
  if (channel_ != nullptr) shared_->channel.store(channel_->offset());
}

ShmCompletionQueue::~ShmCompletionQueue() {
  Entry entry;
  while (pop(&entry) || pop_overflow(&entry)) entry.account->release();
}

void ShmCompletionQueue::push(const Completion& completion, CompletionAccount* account) {
  const Entry entry{completion, account};
  if (!push_to_ring(entry)) [[unlikely]] {
    Spare spare = make_spare();
    push_to_overflow(entry, spare);
  }
  fire(completion);
}

void ShmCompletionQueue::push(const Completion& completion, CompletionAccount* account,
                              Spare spare) noexcept {
  const Entry entry{completion, account};
  if (!push_to_ring(entry)) push_to_overflow(entry, spare);
  fire(completion);
}

// The ring is Vyukov's bounded queue: the sequence of a cell tells whether it may be written or
// read next. Returns false if the entry must go to the overflow list.
bool ShmCompletionQueue::push_to_ring(const Entry& entry) {
  // After one completion has overflowed, all following ones go to the overflow list until it is
  // empty, so that they stay in order.
  if (overflowed_.load(std::memory_order_acquire)) return false;
  uint64_t position = tail_.load(std::memory_order_relaxed);
  for (;;) {
    Cell& cell = ring_[position & mask_];
    const auto turn =
        static_cast<int64_t>(cell.sequence.load(std::memory_order_acquire) - position);
    if (turn < 0) return false;
    if (turn > 0) {
      position = tail_.load(std::memory_order_relaxed);
      continue;
    }
    if (!tail_.compare_exchange_weak(position, position + 1, std::memory_order_relaxed)) continue;
    cell.entry = entry;
    if (channel_ == nullptr) {
      cell.sequence.store(position + 1, std::memory_order_release);
    } else {
      // Sequentially consistent: before fire() reads `armed`.
      cell.sequence.exchange(position + 1);
    }
    return true;
  }
}

void ShmCompletionQueue::push_to_overflow(const Entry& entry, Spare& spare) noexcept {
  spare.front() = entry;
  std::lock_guard lock(overflow_mutex_);
  overflow_.splice(overflow_.end(), spare);
  overflowed_.exchange(true);
}

void ShmCompletionQueue::fire(const Completion& completion) {
  if (channel_ != nullptr) {
    shared_->fire(channel_->shared(), completion.status != CompletionStatus::kSuccess);
  }
}

bool ShmCompletionQueue::pop(Entry* entry) {
  uint64_t position = head_.load(std::memory_order_relaxed);
  for (;;) {
    Cell& cell = ring_[position & mask_];
    const auto turn =
        static_cast<int64_t>(cell.sequence.load(std::memory_order_acquire) - (position + 1));
    if (turn < 0) return false;
    if (turn > 0) {
      position = head_.load(std::memory_order_relaxed);
      continue;
    }
    if (!head_.compare_exchange_weak(position, position + 1, std::memory_order_relaxed)) continue;
    *entry = cell.entry;
    cell.sequence.store(position + mask_ + 1, std::memory_order_release);
    return true;
  }
}

bool ShmCompletionQueue::pop_overflow(Entry* entry) {
  if (!overflowed_.load(std::memory_order_acquire)) return false;
  std::lock_guard lock(overflow_mutex_);
  if (overflow_.empty()) return false;
  *entry = overflow_.front();
  overflow_.pop_front();
  if (overflow_.empty()) overflowed_.store(false, std::memory_order_release);
  return true;
}

size_t ShmCompletionQueue::collect_sends(std::span<Completion> completions) {
  size_t count = 0;
  Entry entry;
  while (count < completions.size() && (pop(&entry) || pop_overflow(&entry))) {
    if (!entry.account->dead.load(std::memory_order_relaxed)) {
      completions[count++] = entry.completion;
    }
    entry.account->release();
  }
  return count;
}

bool ShmCompletionQueue::anything_ready() const {
  const auto bits_set = [this] {
    const uint32_t words = words_.load(std::memory_order_acquire);
    for (uint32_t word = 0; word < words; ++word) {
      if (shared_->ready[word].load(std::memory_order_acquire) != 0) return true;
    }
    return false;
  };
  // A draining thread may put bits back. If this thread reads draining_ as false, the acquire load
  // pairs with that thread's release, and the second bits_set() sees the bits that it put back.
  return bits_set() || draining_.load(std::memory_order_acquire) || bits_set();
}

size_t ShmCompletionQueue::collect_receives(std::span<Completion> completions) {
  if (completions.empty() || !anything_ready()) return 0;
  std::lock_guard lock(drain_mutex_);
  draining_.store(true);
  size_t count = 0;
  const uint32_t words = words_.load(std::memory_order_relaxed);
  // Starts where the last call ended, so that a busy queue pair cannot starve the other ones.
  uint32_t word = next_word_ < words ? next_word_ : 0;
  for (uint32_t turn = 0; turn < words && count < completions.size(); ++turn) {
    if (shared_->ready[word].load(std::memory_order_relaxed) != 0) {
      uint64_t bits = shared_->ready[word].exchange(0);
      while (bits != 0 && count < completions.size()) {
        const auto ahead =
            static_cast<uint32_t>(std::countr_zero(std::rotr(bits, static_cast<int>(next_bit_))));
        const uint32_t bit = (next_bit_ + ahead) % 64;
        ReceiveSource* source = sources_[word * 64 + bit];
        if (source != nullptr) count += source->drain_receives(completions.subspan(count));
        // The source may have more completions.
        if (count == completions.size() && source != nullptr) break;
        bits &= ~(uint64_t{1} << bit);
        next_bit_ = (bit + 1) % 64;
      }
      if (bits != 0) {
        shared_->ready[word].fetch_or(bits);
        next_bit_ = (next_bit_ + 1) % 64;
        break;
      }
    }
    word = word + 1 < words ? word + 1 : 0;
  }
  next_word_ = word;
  draining_.store(false, std::memory_order_release);
  return count;
}

size_t ShmCompletionQueue::poll(std::span<Completion> completions) {
  if (device_->anything_waits()) [[unlikely]]
    device_->progress_sends(this);
  // Alternates, so that neither kind starves the other when the caller takes one completion at a
  // time.
  const bool receives_first = receives_first_.load(std::memory_order_relaxed);
  size_t count = 0;
  if (receives_first) count += collect_receives(completions);
  count += collect_sends(completions.subspan(count));
  if (!receives_first) count += collect_receives(completions.subspan(count));
  if (count != 0) receives_first_.store(!receives_first, std::memory_order_relaxed);
  return count;
}

absl::Status ShmCompletionQueue::arm(bool solicited_only) {
  if (channel_ == nullptr) {
    return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kOperation,
                      "arm: the completion queue has no channel",
                      "create it with CompletionQueueOptions::channel");
  }
  uint32_t state = kDisarmed;
  if (solicited_only) {
    // kArmed already covers solicited completions.
    shared_->armed.compare_exchange_strong(state, kArmedSolicited);
  } else {
    shared_->armed.store(kArmed);
  }
  return absl::OkStatus();
}

std::optional<uint32_t> ShmCompletionQueue::attach(ReceiveSource* source) {
  std::lock_guard lock(drain_mutex_);
  uint32_t bit = 0;
  while (bit < sources_.size() && sources_[bit] != nullptr) ++bit;
  if (bit == kMaxQueuePairsPerCompletionQueue) return std::nullopt;
  if (bit == sources_.size()) sources_.resize(sources_.size() + 64, nullptr);
  sources_[bit] = source;
  words_.store(static_cast<uint32_t>(sources_.size() / 64), std::memory_order_release);
  return bit;
}

void ShmCompletionQueue::detach(uint32_t bit) {
  std::lock_guard lock(drain_mutex_);
  sources_[bit] = nullptr;
}

}  // namespace cariama::shm
