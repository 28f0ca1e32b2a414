#include "riutils/internal/channel_receiver.h"

#include <cstring>
#include <utility>

#include "dsfabric/function_table.h"

namespace cariama::internal {

ChannelReceiver::ChannelReceiver(ReceiverBackend& backend, Arrival arrival, Consumption consumption,
                                 uint64_t chunk_bytes, uint32_t source_thread,
                                 std::vector<std::byte*> chunks)
    : backend_(backend),
      arrival_(arrival),
      consumption_(consumption),
      chunk_bytes_(chunk_bytes),
      chunks_(std::move(chunks)) {
  call_.source_thread = source_thread;
  enter(0);
}

void ChannelReceiver::prepare(std::byte* chunk) {
  // The header, and the word that says that no call is there yet. The rest may hold anything.
  std::memset(chunk, 0, sizeof(ChunkHeader) + sizeof(CallHeader));
}

void ChannelReceiver::enter(uint32_t index) {
  current_ = index;
  position_ = chunks_[index] + sizeof(ChunkHeader);
  end_ = chunks_[index] + chunk_bytes_ - sizeof(CallHeader);
}

size_t ChannelReceiver::run(size_t most) {
  if (ended_) return 0;
  return arrival_ == Arrival::kEvent ? run_calls<true>(most) : run_calls<false>(most);
}

template <bool kEvent>
size_t ChannelReceiver::run_calls(size_t most) {
  if constexpr (kEvent) unread_words_ += announced_.exchange(0, std::memory_order_acq_rel);
  size_t count = 0;
  uint64_t bytes = 0;
  std::byte* at = position_;
  std::byte* end = end_;
  size_t size = predicted_;
  while (count < most) {
    if constexpr (kEvent) {
      if (unread_words_ == 0) break;
    }
    // Acquire: what the sender wrote before this header is visible.
    const uint64_t word =
        std::atomic_ref(*reinterpret_cast<uint64_t*>(at)).load(std::memory_order_acquire);
    if (word == 0) {
      if constexpr (kEvent) break_off("words were announced that are no call");
      break;
    }
    const CallHeader header{static_cast<uint32_t>(word), static_cast<uint32_t>(word >> 32)};
    if (header.function == EndMarker::kFunction) [[unlikely]] {
      position_ = at;
      if (!end_of_chunk(header)) break;
      if constexpr (kEvent) --unread_words_;
      if (ended_) break;
      at = position_;
      end = end_;
      continue;
    }
    // The next header's address depends on this length, a chain of loads as long as the calls are
    // many. Calls are often as long as the one before: a predicted branch breaks the chain. (The
    // empty asm keeps the compiler from seeing that both are the same.)
    if (sizeof(CallHeader) + header.bytes() != size) [[unlikely]] {
      size = sizeof(CallHeader) + header.bytes();
      asm volatile("" : "+r"(size));
    }
    if (size > static_cast<size_t>(end - at)) [[unlikely]] {
      break_off("a call is longer than its chunk");
      break;
    }
    if constexpr (kEvent) {
      // Announcements are limited in length: the rest of this call is on its way.
      if (size / sizeof(CallHeader) > unread_words_) break;
      unread_words_ -= size / sizeof(CallHeader);
    }
    std::byte* const behind = at + sizeof(CallHeader);
    if (header.flags() == 0) [[likely]] {
      call_.closure = {behind, size - sizeof(CallHeader)};
      if (FunctionStub stub = FunctionTable::resolve(header.id()); stub != nullptr) [[likely]] {
        stub(call_);
      } else {
        call_.outcome = CallOutcome::kUnknown;
      }
      if (call_.outcome != CallOutcome::kDone || call_.answered_later) [[unlikely]] {
        finish_slowly(nullptr);
      }
    } else {
      run_flagged(header, behind);
      if (ended_) break;
    }
    at += size;
    bytes += size;
    ++count;
  }
  if (bytes != 0) {
    const uint64_t consumed = consumed_bytes_.load(std::memory_order_relaxed) + bytes;
    consumed_bytes_.store(consumed, std::memory_order_relaxed);
    if (ended_) return count;
    auto* const chunk = reinterpret_cast<ChunkHeader*>(chunks_[current_]);
    std::atomic_ref(chunk->consumer.consumed).store(consumed, std::memory_order_relaxed);
  }
  if (!ended_) position_ = at;
  predicted_ = size;
  return count;
}

void ChannelReceiver::run_flagged(const CallHeader& header, std::byte* behind) {
  NotifyTarget notify;
  if ((header.flags() & ~(kCallNotify | kCallReturn)) != 0 || header.bytes() < sizeof notify) {
    return break_off("a call has flags that do not exist, or no place for its notification");
  }
  std::memcpy(&notify, behind, sizeof notify);
  call_.closure = {behind + sizeof notify, header.bytes() - sizeof notify};
  result_.clear();
  call_.result = (header.flags() & kCallReturn) != 0 ? &result_ : nullptr;
  call_.notify = &notify;
  run_call(header, call_);
  call_.result = nullptr;
  call_.notify = nullptr;
  finish_slowly(&notify);
}

void ChannelReceiver::finish_slowly(const NotifyTarget* notify) {
  backend_.finished(notify, call_, result_);
  call_.outcome = CallOutcome::kDone;
  call_.answered_later = false;
  call_.error_type.clear();
  call_.error_text.clear();
}

bool ChannelReceiver::end_of_chunk(const CallHeader& header) {
  const uint32_t inserted = header.words_and_flags & CallHeader::kMaxWords;
  const uint8_t flags = header.flags();
  if ((flags & ~EndMarker::kShutdown) != 0 || inserted > kMaxChunks - chunks_.size()) {
    break_off("an end marker is malformed");
    return false;
  }
  if (inserted != 0) {
    std::vector<std::byte*> more;
    switch (backend_.take_chunks(inserted, more)) {
      case ReceiverBackend::Taken::kNotYet:
        return false;
      case ReceiverBackend::Taken::kMissing:
        break_off("an end marker speaks of chunks that were not granted");
        return false;
      case ReceiverBackend::Taken::kTaken:
        chunks_.insert(chunks_.begin() + current_ + 1, more.begin(), more.end());
        break;
    }
  }
  std::byte* const chunk = chunks_[current_];
  // The sender writes here again once it knows that the chunk was consumed. Until then its first
  // header must not be read a second time.
  std::atomic_ref(*reinterpret_cast<uint64_t*>(chunk + sizeof(ChunkHeader)))
      .store(0, std::memory_order_relaxed);
  ++consumed_chunks_;
  auto* const header_of_chunk = reinterpret_cast<ChunkHeader*>(chunk);
  std::atomic_ref(header_of_chunk->consumer.chunks)
      .store(consumed_chunks_, std::memory_order_release);
  ended_ = (flags & EndMarker::kShutdown) != 0;
  // The last one is pushed in any case: the sender's memory is free to be reused then.
  if (consumption_ == Consumption::kPush || ended_) backend_.push(consumed_chunks_);
  if (!ended_) enter((current_ + 1) % static_cast<uint32_t>(chunks_.size()));
  return true;
}

void ChannelReceiver::break_off(std::string_view why) {
  ended_ = true;
  backend_.broken(why);
  backend_.push(ChannelControl::kBroken);
}

}  // namespace cariama::internal
