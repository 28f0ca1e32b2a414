#include "riutils/internal/channel_receiver.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "dsfabric/function_table.h"
#include "dtutils/internal/trace_clock.h"
#include "dtutils/trace.h"

namespace cariama::internal {
namespace {

uint64_t load_word(std::byte* at, std::memory_order order) {
  return std::atomic_ref(*reinterpret_cast<uint64_t*>(at)).load(order);
}
// Begins to fetch a closure that the sender's core has just written, all its lines at once: the
// processor's own prefetch needs several misses to begin, and ends at each page. For a longer
// closure it suffices behind the first lines.
void fetch(std::span<const std::byte> closure) {
  constexpr size_t kLine = 64;
  constexpr size_t kMost = 4096;
  const size_t bytes = std::min(closure.size(), kMost);
  for (size_t at = 0; at < bytes; at += kLine) __builtin_prefetch(closure.data() + at);
}
CallHeader header_of(uint64_t word) {
  return {static_cast<uint32_t>(word), static_cast<uint32_t>(word >> 32)};
}

}  // namespace

ChannelReceiver::ChannelReceiver(ReceiverBackend& backend, Arrival arrival, Consumption consumption,
                                 uint32_t source_thread, std::vector<std::span<std::byte>> chunks)
    : backend_(backend), arrival_(arrival), consumption_(consumption) {
  call_.source_thread = source_thread;
  call_.source = backend_.source();
  // No header is known yet: each entry gets a word that maps to a different entry.
  for (uint32_t i = 0; i < kKnownHeaders; ++i) known_[i].word = i ^ 1;
  ring_.begin(std::move(chunks));
  enter();
}

void ChannelReceiver::prepare(std::span<std::byte> chunk, Arrival arrival) {
  // Clear the chunk header and the first call header: no call is there yet. Only kTrailing needs
  // zeros in the rest: the receiver reads the place of a trailing word before the word has arrived.
  std::memset(
      chunk.data(), 0,
      arrival == Arrival::kTrailing ? chunk.size() : sizeof(ChunkHeader) + sizeof(CallHeader));
}

void ChannelReceiver::enter() {
  const std::span<std::byte> chunk = ring_.current();
  position_ = batch_end_ = chunk.data() + sizeof(ChunkHeader);
  limit_ = end_ = chunk.data() + chunk.size() - sizeof(CallHeader);
  if (arrival_ == Arrival::kTrailing) limit_ = position_;
}

size_t ChannelReceiver::run(size_t most) {
  if (report_due_) [[unlikely]]
    report_call();
  if (push_due_) [[unlikely]]
    push_consumed();
  if (ended_) return 0;
  if (trace_enabled()) [[unlikely]]
    return run_traced(most);
  return run_arrived(most);
}

bool ChannelReceiver::has_word() const {
  if (arrival_ == Arrival::kEvent) {
    return unread_words_ + announced_.load(std::memory_order_acquire) != 0;
  }
  return load_word(position_, std::memory_order_acquire) != 0;
}

bool ChannelReceiver::is_inside_publication() {
  if (arrival_ != Arrival::kTrailing) {
    if (position_ < batch_end_) return true;
    limit_ = end_;
    return false;
  }
  if (publication_ == nullptr) return false;
  if (position_ != limit_) return true;
  Cursor cursor{position_, position_, 0};
  close_publication(cursor);
  consumed_before_ += static_cast<uint64_t>(cursor.at - position_);
  consumed_bytes_.store(consumed_before_, std::memory_order_relaxed);
  position_ = limit_ = cursor.at;
  return false;
}

size_t ChannelReceiver::run_traced(size_t most) {
  traced_ = true;
  size_t calls = 0;
  while (calls < most && !ended_) {
    const bool begins = !is_inside_publication();
    // The time is taken after the publication was seen, and so after its arrow has begun.
    if (begins && !has_word()) break;
    const uint64_t start = trace_begin("riutils", "run");
    const uint64_t offset = consumed_bytes();
    const std::byte* const before = position_;
    size_t ran = run_arrived(begins ? 1 : most - calls);
    if (begins && ran != 0 && calls + ran < most && !ended_ && is_inside_publication()) {
      ran += run_arrived(most - calls - ran);
    }
    if (ran != 0) {
      trace_record('X', "riutils", "run", start, trace_now() - start, "calls", ran);
      if (begins) {
        const uint64_t arrow = trace_arrow_id(backend_.trace_stream(), offset);
        trace_record('f', "riutils", "call", start, 0, nullptr, arrow);
      }
    } else if (position_ == before) {
      break;
    }
    calls += ran;
  }
  traced_ = false;
  return calls;
}

size_t ChannelReceiver::run_arrived(size_t most) {
  if (report_due_) [[unlikely]]
    return 0;
  postponed_ = false;
  switch (arrival_) {
    case Arrival::kEvent:
      return run_calls<Arrival::kEvent>(most);
    case Arrival::kTrailing:
      return run_calls<Arrival::kTrailing>(most);
    default:  // kMapped and kPolled publish in the same way
      return run_calls<Arrival::kPolled>(most);
  }
}

template <Arrival kArrival>
size_t ChannelReceiver::run_calls(size_t most) {
  constexpr bool kEvent = kArrival == Arrival::kEvent;
  if constexpr (kEvent) unread_words_ += announced_.exchange(0, std::memory_order_acq_rel);
  // The loop works on local variables whose address is never taken, so that they stay in registers.
  // The rarely executed step() works on a copy, the Cursor.
  std::byte* at = position_;
  first_ = at;
  std::byte* limit = limit_;
  size_t size = last_size_;
  size_t calls = 0;
  const auto go_on = [&](uint64_t word) __attribute__((always_inline)) {
    Cursor cursor{at, limit, calls};
    const bool on = step<kArrival>(word, cursor);
    at = cursor.at;
    limit = cursor.limit;
    calls = cursor.calls;
    return on;
  };
  while (calls < most) {
    if constexpr (kEvent) {
      if (unread_words_ == 0) break;
    }
    // Acquire: pairs with the sender's release of this word; everything that it wrote before the
    // word is visible. (In a batch the batch word has already made everything visible.)
    const uint64_t word = load_word(at, std::memory_order_acquire);
    const KnownHeader& known = known_[word % kKnownHeaders];
    if (known.word != word) [[unlikely]] {
      if (!go_on(word)) break;
      continue;
    }
    // The next header's address depends on this call's length. If each length were taken from its
    // header, all calls of a round would form one chain of dependent loads. Calls often have the
    // length of the call before, so a predicted branch breaks the chain. (The empty asm hides from
    // the compiler that `size` and known.size are equal.)
    if (known.size != size) [[unlikely]] {
      size = known.size;
      asm volatile("" : "+r"(size));
    }
    if (size > static_cast<size_t>(limit - at) || (kEvent && size / sizeof word > unread_words_))
        [[unlikely]] {
      if (!go_on(word)) break;
      continue;
    }
    // Run this call, and the calls directly behind it that have the same header.
    const FunctionStub stub = known.stub;
    const std::byte* const last = limit - size;
    do {
      call_.closure = {at + sizeof word, size - sizeof word};
      stub(call_);
      if ((static_cast<uint8_t>(call_.outcome) | uint8_t{call_.answered_later}) != 0) [[unlikely]] {
        if (!finish_slowly(nullptr)) {
          most = calls;  // ends the round
          break;
        }
        if (report_due_) most = calls + 1;  // ends the round behind this call
      }
      at += size;
      ++calls;
      if constexpr (kEvent) unread_words_ -= size / sizeof word;
    } while (!kEvent && at <= last && calls < most &&
             load_word(at, std::memory_order_acquire) == word);
  }
  last_size_ = size;
  if (const uint64_t consumed = consumed_before_ + static_cast<uint64_t>(at - first_);
      consumed != consumed_bytes_.load(std::memory_order_relaxed)) {
    consumed_before_ = consumed;
    consumed_bytes_.store(consumed, std::memory_order_relaxed);
  }
  if (!ended_) {
    position_ = at;
    limit_ = limit;
  }
  return calls;
}

// Handles a word at the cursor that the fast loop cannot: an unknown header, a flagged call, the
// end of a batch or of the announced words, or no call yet. Returns true if the round continues.
template <Arrival kArrival>
bool ChannelReceiver::step(uint64_t word, Cursor& cursor) {
  constexpr bool kEvent = kArrival == Arrival::kEvent;
  constexpr bool kTrailing = kArrival == Arrival::kTrailing;
  const CallHeader header = header_of(word);
  const size_t size = sizeof header + header.bytes();
  bool in_batch = cursor.limit != end_;
  if constexpr (kTrailing) {
    if (publication_ == nullptr && !open_publication(word, cursor)) return false;
    if (cursor.at == cursor.limit) {
      close_publication(cursor);
      return !traced_;
    }
    // Of a publication only the first word can be a batch word or an end marker.
    in_batch = cursor.at != publication_;
  } else if (in_batch && cursor.at == cursor.limit) {
    cursor.limit = end_;
    return !traced_;
  }
  const auto break_off_if = [&](bool wrong, std::string_view why) {
    if (wrong) break_off(why);
    return wrong;
  };
  const bool leaves = size > static_cast<size_t>(cursor.limit - cursor.at);
  // A batch contains only calls.
  if (!in_batch) {
    if (word == 0) {
      break_off_if(kEvent, "announced words contain no call");
      return false;
    }
    if (header.function == BatchWord::kFunction) {
      if (break_off_if(header.flags() != 0 || header.bytes() == 0 || leaves,
                       "a batch is malformed")) {
        return false;
      }
      if constexpr (kEvent) --unread_words_;
      cursor.limit = batch_end_ = cursor.at + size;
      cursor.at += sizeof header;
      return true;
    }
    if (header.function == EndMarker::kFunction) {
      consumed_before_ += static_cast<uint64_t>(cursor.at - first_);
      first_ = position_ = cursor.at;
      // If end_of_chunk() returns false, a later round reads the end marker and its trailing word
      // again, and checks them again: a faulty sender may have overwritten both.
      const auto read_again = [&] {
        if constexpr (kTrailing) {
          publication_ = nullptr;
          cursor.limit = cursor.at;
        }
      };
      const uint64_t ended = ring_.ended();
      try {
        if (!end_of_chunk(header)) {
          read_again();
          return false;
        }
      } catch (...) {
        if (ring_.ended() == ended) {  // no memory to take the chunks
          read_again();
          limit_ = cursor.limit;
        } else {  // the chunk has ended: a later round continues behind it
          if constexpr (kEvent) --unread_words_;
          first_ = position_;
        }
        throw;
      }
      if constexpr (kEvent) --unread_words_;
      if (ended_) return false;
      cursor.at = first_ = position_;
      cursor.limit = limit_;
      return !traced_;
    }
  }
  if (break_off_if(leaves, "a call is longer than its chunk or batch")) return false;
  // An event can announce a limited number of words: the rest of this call will be announced by a
  // later event.
  if (kEvent && size / sizeof header > unread_words_) return false;
  if (header.flags() == 0) {
    if (const FunctionStub stub = FunctionTable::resolve(header.id()); stub != nullptr) {
      known_[word % kKnownHeaders] = {word, size, stub};
      return true;
    }
    call_.outcome = CallOutcome::kUnknown;
    static_cast<void>(finish_slowly(nullptr));
  } else {
    if (!run_flagged(header, cursor.at + sizeof header)) return false;
  }
  if constexpr (kEvent) unread_words_ -= size / sizeof header;
  cursor.at += size;
  ++cursor.calls;
  return !report_due_;
}

// Returns false if the call is postponed or malformed.
bool ChannelReceiver::run_flagged(const CallHeader& header, std::byte* behind) {
  NotifyTarget notify;
  if ((header.flags() & ~(kCallNotify | kCallReturn)) != 0 || header.bytes() < sizeof notify) {
    break_off("a call has flags that do not exist, or no place for its notification");
    return false;
  }
  std::memcpy(&notify, behind, sizeof notify);
  call_.closure = {behind + sizeof notify, header.bytes() - sizeof notify};
  fetch(call_.closure);
  result_.clear();
  call_.result = (header.flags() & kCallReturn) != 0 ? &result_ : nullptr;
  call_.notify = &notify;
  run_call(header, call_);
  call_.result = nullptr;
  call_.notify = nullptr;
  return finish_slowly(&notify);
}

bool ChannelReceiver::finish_slowly(const NotifyTarget* notify) noexcept {
  postponed_ = std::exchange(call_.postponed, false);
  if (postponed_) {
    forget_call();
    return false;
  }
  report_due_ = true;
  report_answers_ = notify != nullptr;
  if (report_answers_) reported_to_ = *notify;
  try {
    report_call();
  } catch (...) {
    // The call has run. An exception that left the round would make its calls run again.
  }
  return true;
}

void ChannelReceiver::report_call() {
  backend_.finished(report_answers_ ? &reported_to_ : nullptr, call_, result_);
  report_due_ = false;
  forget_call();
}

void ChannelReceiver::forget_call() {
  call_.outcome = CallOutcome::kDone;
  call_.answered_later = false;
  call_.answer_to = kAnswerSource;
  call_.error_type.clear();
  call_.error_text.clear();
}

bool ChannelReceiver::open_publication(uint64_t word, Cursor& cursor) {
  if (word == 0) return false;
  const CallHeader header = header_of(word);
  const size_t size =
      sizeof header + (header.function == EndMarker::kFunction ? 0 : header.bytes());
  // If only some bytes of the first word have arrived, they are the low ones, so that the length is
  // at most the true one.
  if (size > static_cast<size_t>(end_ - cursor.at)) {
    break_off("a publication is longer than its chunk");
    return false;
  }
  // Acquire: a complete trailing word makes all of the publication visible, and the first word
  // below.
  const uint64_t trailing = load_word(cursor.at + size, std::memory_order_acquire);
  // `word` may have been incomplete, so that another word of the publication was taken for the
  // trailing word. That word arrived after the first word, which therefore is complete now.
  if (load_word(cursor.at, std::memory_order_relaxed) != word) return false;
  if (trailing != TrailingWord::of(word)) {
    if (TrailingWord::is_complete(trailing)) break_off("a publication's trailing word is wrong");
    return false;
  }
  // The next publication is read directly behind this one, so that its words must be in the chunk.
  if (header.function != EndMarker::kFunction &&
      size + sizeof trailing + sizeof word > static_cast<size_t>(end_ - cursor.at)) {
    break_off("a publication leaves no room for the end marker of its chunk");
    return false;
  }
  publication_ = cursor.at;
  cursor.limit = cursor.at + size;
  return true;
}

void ChannelReceiver::close_publication(Cursor& cursor) {
  std::byte* const end = cursor.limit + sizeof(CallHeader);
  std::memset(publication_, 0, static_cast<size_t>(end - publication_));
  publication_ = nullptr;
  cursor.at = cursor.limit = end;
}

bool ChannelReceiver::end_of_chunk(const CallHeader& header) {
  const uint32_t inserted = header.words_and_flags & CallHeader::kMaxWords;
  const uint8_t flags = header.flags();
  const bool replaced = flags == EndMarker::kReplaced;
  const size_t stay = replaced ? 0 : ring_.size();
  if ((flags != 0 && flags != EndMarker::kShutdown && !replaced) ||
      inserted > MessengerOptions::kMaxChunks - stay ||
      (replaced && (inserted == 0 || ring_.size() != 1))) {
    break_off("an end marker is malformed");
    return false;
  }
  std::vector<std::span<std::byte>> more;
  if (inserted != 0) {
    ring_.reserve(inserted);  // before the chunks are taken
    switch (backend_.take_chunks(inserted, more)) {
      case ReceiverBackend::Taken::kNotYet:
        return false;
      case ReceiverBackend::Taken::kMissing:
        break_off("an end marker names chunks that were not granted");
        return false;
      case ReceiverBackend::Taken::kTaken:
        break;
    }
  }
  const std::span<std::byte> chunk = ring_.current();
  if (replaced) {
    ring_.replace_chunk(more);
  } else {
    ring_.end_chunk(more);
  }
  if (arrival_ == Arrival::kTrailing) {
    Cursor cursor{position_, position_ + sizeof(CallHeader), 0};
    close_publication(cursor);
  } else {
    // Clear the first call header. The sender writes to this chunk again only after it knows that
    // the chunk was consumed; until then the receiver must not run the chunk's old first call
    // again.
    std::atomic_ref(*reinterpret_cast<uint64_t*>(chunk.data() + sizeof(ChunkHeader)))
        .store(0, std::memory_order_relaxed);
  }
  auto* const header_of_chunk = reinterpret_cast<ChunkHeader*>(chunk.data());
  std::atomic_ref(header_of_chunk->chunks).store(ring_.ended(), std::memory_order_release);
  ended_ = flags == EndMarker::kShutdown;
  if (!ended_) enter();
  // From here on the end has been applied: an exception below must not apply it again. The last
  // count is pushed with kPull, too: it tells the sender that the receiver will not write to the
  // sender's control memory again.
  push_due_ = consumption_ == Consumption::kPush || ended_;
  if (replaced) backend_.replaced(chunk);
  if (push_due_) push_consumed();
  return true;
}

void ChannelReceiver::push_consumed() {
  push_due_ = !backend_.push(broken_ ? ChannelControl::kBroken : ring_.ended());
}

void ChannelReceiver::break_off(std::string_view why) {
  ended_ = broken_ = push_due_ = true;
  backend_.broken(why);
  push_consumed();
}

}  // namespace cariama::internal
