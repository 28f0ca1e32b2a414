#include "riutils/internal/channel_receiver.h"

#include <cstring>
#include <utility>

#include "dsfabric/function_table.h"

namespace cariama::internal {
namespace {

constexpr std::string_view kTooLong = "a call is longer than its chunk or batch";

uint64_t load_word(std::byte* at, std::memory_order order) {
  return std::atomic_ref(*reinterpret_cast<uint64_t*>(at)).load(order);
}
CallHeader header_of(uint64_t word) {
  return {static_cast<uint32_t>(word), static_cast<uint32_t>(word >> 32)};
}

}  // namespace

ChannelReceiver::ChannelReceiver(ReceiverBackend& backend, Arrival arrival, Consumption consumption,
                                 uint64_t chunk_bytes, uint32_t source_thread,
                                 std::vector<std::byte*> chunks)
    : backend_(backend),
      arrival_(arrival),
      consumption_(consumption),
      chunk_bytes_(chunk_bytes),
      chunks_(std::move(chunks)) {
  call_.source_thread = source_thread;
  // Nothing is known: words that belong to other places.
  for (uint32_t i = 0; i < kKnownHeaders; ++i) known_[i].word = i ^ 1;
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

// Runs the call at the cursor, whose header is `word`, and those behind it that have the same one,
// in what ends at `limit`. False: run no more now.
template <bool kEvent>
bool ChannelReceiver::run_alike(uint64_t word, FunctionStub stub, const std::byte* limit,
                                size_t most, Cursor& cursor) {
  const size_t size = cursor.size;
  // Announcements are limited in length: the rest of a call is on its way.
  const auto is_announced = [&] { return !kEvent || size / sizeof word <= unread_words_; };
  if (!is_announced()) return false;
  std::byte* at = cursor.at;
  const std::byte* const last = limit - size;
  do {
    call_.closure = {at + sizeof word, size - sizeof word};
    stub(call_);
    if ((static_cast<uint8_t>(call_.outcome) | uint8_t{call_.answered_later}) != 0) [[unlikely]] {
      finish_slowly(nullptr);
    }
    at += size;
    ++cursor.calls;
    if constexpr (kEvent) unread_words_ -= size / sizeof word;
    // Acquire: see run_calls.
  } while (at <= last && cursor.calls < most && is_announced() &&
           load_word(at, std::memory_order_acquire) == word);
  cursor.bytes += static_cast<uint64_t>(at - cursor.at);
  cursor.at = at;
  return true;
}

template <bool kEvent>
size_t ChannelReceiver::run_calls(size_t most) {
  if constexpr (kEvent) unread_words_ += announced_.exchange(0, std::memory_order_acq_rel);
  Cursor cursor{.at = position_, .size = last_size_};
  const std::byte* batch_end = batch_end_;
  while (cursor.calls < most) {
    // In a batch everything is there, and all of it is calls.
    const bool in_batch = cursor.at < batch_end;
    if constexpr (kEvent) {
      if (unread_words_ == 0) break;
    }
    // Acquire: what the sender wrote before this word is visible.
    const uint64_t word = load_word(cursor.at, std::memory_order_acquire);
    const CallHeader header = header_of(word);
    const size_t size = sizeof header + header.bytes();
    const std::byte* const limit = in_batch ? batch_end : end_;
    KnownHeader& known = known_[header.function % kKnownHeaders];
    if (known.word != word) [[unlikely]] {
      if (!in_batch) {
        if (word == 0) {
          if constexpr (kEvent) break_off("words were announced that are no call");
          break;
        }
        if (header.function == BatchWord::kFunction) {
          if (header.flags() != 0 || header.bytes() == 0 ||
              size > static_cast<size_t>(limit - cursor.at)) {
            break_off("a batch is malformed");
            break;
          }
          if constexpr (kEvent) --unread_words_;
          batch_end = cursor.at + size;
          cursor.at += sizeof header;
          cursor.bytes += sizeof header;
          continue;
        }
        if (header.function == EndMarker::kFunction) {
          position_ = cursor.at;
          if (!end_of_chunk(header)) break;
          if constexpr (kEvent) --unread_words_;
          if (ended_) break;
          batch_end = cursor.at = position_;
          continue;
        }
      }
      const FunctionStub stub = header.flags() == 0 ? FunctionTable::resolve(header.id()) : nullptr;
      if (stub == nullptr) {
        if (!run_slowly<kEvent>(header, limit, cursor)) break;
        continue;
      }
      known = {word, size, stub};
    }
    // The next header's address depends on this length, a chain of loads as long as the calls are
    // many. Calls are often as long as the one before: a predicted branch breaks the chain. (The
    // empty asm keeps the compiler from seeing that both are the same.)
    if (known.size != cursor.size) [[unlikely]] {
      cursor.size = known.size;
      asm volatile("" : "+r"(cursor.size));
    }
    if (cursor.size > static_cast<size_t>(limit - cursor.at)) [[unlikely]] {
      break_off(kTooLong);
      break;
    }
    if (!run_alike<kEvent>(word, known.stub, limit, most, cursor)) break;
  }
  if (cursor.bytes != 0) {
    const uint64_t consumed = consumed_bytes_.load(std::memory_order_relaxed) + cursor.bytes;
    consumed_bytes_.store(consumed, std::memory_order_relaxed);
    if (ended_) return cursor.calls;
    auto* const chunk = reinterpret_cast<ChunkHeader*>(chunks_[current_]);
    std::atomic_ref(chunk->consumer.consumed).store(consumed, std::memory_order_relaxed);
  }
  if (!ended_) position_ = cursor.at;
  batch_end_ = batch_end;
  last_size_ = cursor.size;
  return cursor.calls;
}

// A call with flags, or of a function that does not exist. False: run no more now.
template <bool kEvent>
bool ChannelReceiver::run_slowly(const CallHeader& header, const std::byte* limit, Cursor& cursor) {
  const size_t size = sizeof header + header.bytes();
  if (size > static_cast<size_t>(limit - cursor.at)) {
    break_off(kTooLong);
    return false;
  }
  if constexpr (kEvent) {
    if (size / sizeof header > unread_words_) return false;
    unread_words_ -= size / sizeof header;
  }
  if (header.flags() != 0) {
    run_flagged(header, cursor.at + sizeof header);
    if (ended_) return false;
  } else {
    call_.outcome = CallOutcome::kUnknown;
    finish_slowly(nullptr);
  }
  cursor.at += size;
  cursor.bytes += size;
  ++cursor.calls;
  return true;
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
