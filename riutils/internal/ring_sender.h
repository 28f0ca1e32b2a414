// The sending end of a channel behind its fast path (channel_sender.h): its chunks
// (sender_chunks.h), a writer for the arrival mode (chunk_writer.h), and a backlog of deferred
// calls (backlog.h).
//
// The sender decides which chunk is filled, when further chunks are requested, and where the
// receiver inserts them into its ring. The receiver reports only the number of chunks that it has
// consumed.
//
// Calls that do not fit now may be deferred (RetryAsync, ovfl): they are encoded once, in
// registered memory, in the order of issue. While calls are deferred, the window is closed, so that
// no call overtakes them. The owner and the process's drain thread move deferred calls into
// chunks; both hold mutex_.
//
// While the window is open, no other thread accesses the chunk, and the owner fills it without
// mutex_. With mapped arrival and no fence, a call leaves the window, so that the owner locks
// mutex_, only in these cases: the chunk is full; batched and single calls alternate; the batched
// call has a completion object; flush_age is set (every batched call); a trace is recorded.
//
// No thread waits while it holds mutex_, neither for the receiver nor for the answer to a request
// nor for the completion of a transfer (a post may wait for a free slot of the send queue). Every
// step either does its work or returns why it cannot (Progress); the owner waits outside, and the
// drain thread retries.
#ifndef CARIAMA_RIUTILS_INTERNAL_RING_SENDER_H_
#define CARIAMA_RIUTILS_INTERNAL_RING_SENDER_H_

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtutils/transmitter.h"
#include "riutils/channel_sender.h"
#include "riutils/internal/backlog.h"
#include "riutils/internal/channel_link.h"
#include "riutils/internal/chunk_writer.h"
#include "riutils/internal/sender_chunks.h"
#include "riutils/messenger_options.h"

namespace cariama::internal {

// The state of a channel at its sending end.
enum class ChannelState : uint8_t {
  kUnopened,    // nothing was requested from the receiver's process
  kOpening,     // the path or the first grant is missing; calls may be deferred
  kOpen,        // no call is deferred: the owner may open the window
  kBacklogged,  // calls are deferred; the window is closed
  kClosing,     // the channel is to end; deferred calls or the end marker are still to be sent
  kClosed,      // the end of the channel was published, or the channel was never opened
  kFailed,      // no call can be sent any more
};

// The transitions. Every other pair is a defect.
//   kUnopened    → kOpening     a chunk is wanted
//   kOpening     → kOpen        the first grant came, and no call is deferred
//                → kBacklogged  the first grant came, and calls are deferred
//   kOpen        → kBacklogged  a call was deferred
//   kBacklogged  → kOpen        the last deferred call was published
//   any of these → kClosing     shutdown()
//   kClosing     → kClosed      the end of the channel was published, or nothing has to be ended
//   any but kClosed and kFailed → kFailed  an error of a request or a transfer, malformed data at
//                                          the receiver, the peer's failure, close(), destruction
[[nodiscard]] constexpr bool may_follow(ChannelState from, ChannelState to) {
  using S = ChannelState;
  switch (from) {
    case S::kUnopened:
      return to == S::kOpening || to == S::kClosing || to == S::kFailed;
    case S::kOpening:
      return to == S::kOpen || to == S::kBacklogged || to == S::kClosing || to == S::kFailed;
    case S::kOpen:
      return to == S::kBacklogged || to == S::kClosing || to == S::kFailed;
    case S::kBacklogged:
      return to == S::kOpen || to == S::kClosing || to == S::kFailed;
    case S::kClosing:
      return to == S::kClosed || to == S::kFailed;
    case S::kClosed:
    case S::kFailed:
      return false;
  }
  return false;
}

// Only the owner may use it, with these exceptions: any thread may call drain(), state(),
// failure(), arrival(), statistics(), accepted_bytes(), is_released(), peer_died() and close().
// `link` must outlive it.
class RingSender final : public ChannelSender {
 public:
  // `peer` names the destination in error texts.
  RingSender(ChannelLink& link, const MessengerOptions& options, std::string peer);
  // Unless the channel has ended: discards calls that are not published, and the completions of
  // calls that have not ended fail with CANCELLED. Blocks until a READ in flight has ended.
  ~RingSender();

  // ---- ChannelSender
  [[nodiscard]] absl::Status setup() override;
  [[nodiscard]] CallResult send_slowly(const OutgoingCall& call, WhenNoRoom when, bool batch,
                                       EventReceiver& transmitted) override;
  [[nodiscard]] absl::Status flush() override;
  [[nodiscard]] bool batch_is_old() const override;

  // Moves deferred calls into chunks as far as there is room, continues the requests for the chunks
  // of chunks_per_request that these calls began, and ends the channel if shutdown() could not.
  // Returns true if nothing is left to do. Called by the drain thread: `transmitter_of`
  // returns a Transmitter of the calling thread; it is called only when the path is known. Blocks
  // at most for a connection to the receiver's process.
  bool drain(const std::function<Transmitter*()>& transmitter_of);

  // Flushes, waits until no call is deferred, and writes the end of the channel for the receiver,
  // which frees the chunks when it has run all calls. Later calls return FAILED_PRECONDITION.
  // Errors: DEADLINE_EXCEEDED (the receiver did not make room in time; a drain thread continues,
  // and shutdown() may be called again), UNAVAILABLE, INTERNAL (the receiver found malformed data).
  // If the first chunks were requested and no call needs them, returns OK; when they are granted, a
  // drain thread ends the channel.
  [[nodiscard]] absl::Status shutdown(Deadline deadline);
  // As shutdown(), if that needs no waiting: the channel is open, no call is deferred, no grant is
  // outstanding, and no function of the owner waits. Returns true if the end was published.
  // Otherwise the channel continues; the batch may be published, a grant taken, or a chunk opened.
  // After an error of a transfer it has failed.
  [[nodiscard]] bool end_if_quiet();
  // Returns true if the peer does not access the channel's control memory any more: shutdown() has
  // ended the channel and the receiver has consumed all of it, or the channel has failed or was
  // never opened.
  [[nodiscard]] bool is_released() const;
  // Returns true if the receiver may have stopped before the end of the channel: the channel has
  // failed, or the receiver has found malformed data.
  [[nodiscard]] bool may_have_lost_calls() const;

  [[nodiscard]] ChannelState state() const;
  // Returns the reason why the channel has failed, or OK.
  [[nodiscard]] absl::Status failure() const;
  // kAuto until the path to the receiver is known.
  [[nodiscard]] Arrival arrival() const;
  // Returns the number of bytes of calls accepted so far, including deferred calls.
  [[nodiscard]] uint64_t accepted_bytes() const;
  [[nodiscard]] MessengerStatistics statistics() const;

  // Makes the next publication of a mapped channel detect that the receiver's process has failed.
  void peer_died();
  // Closes the channel when the fabric has ended: unpublished calls are lost, and later calls
  // return `why`. Calls that the owner issues or batches at the same time may be accepted and
  // not run.
  void close(const absl::Status& why);

 private:
  using Lock = std::unique_lock<std::mutex>;
  // Wakes the threads that wait for objects of transmitted_, and ends lost calls. Declare it before
  // the lock: its destructor then runs after the mutex is unlocked.
  class TellWaiters {
   public:
    explicit TellWaiters(RingSender& sender) : sender_(sender) {}
    ~TellWaiters() {
      if (sender_.must_tell_waiters_.load(std::memory_order_relaxed)) sender_.tell_waiters();
    }
    TellWaiters(const TellWaiters&) = delete;
    TellWaiters& operator=(const TellWaiters&) = delete;

   private:
    RingSender& sender_;
  };
  enum class Progress : uint8_t {
    kDone,
    kGrant,      // no chunk is free, but further chunks may be granted
    kFull,       // no chunk is free; the receiver has to consume one first
    kTransfers,  // transfers of this process have to complete first
    kFailed,     // failure_ contains the reason
  };
  static constexpr ptrdiff_t kBatchWord = sizeof(CallHeader);

  // The following functions require that mutex_ is held and the window is closed, unless stated
  // otherwise. `transmitter` belongs to the calling thread. Functions with a parameter `lock`
  // unlock it while they wait or call the link, and lock it again before they return.

  // Calls `body`, which waits, without mutex_, and counts it as a wait of the owner meanwhile.
  template <typename Body>
  bool unlocked(Lock& lock, Body&& body) {
    ++waits_;
    lock.unlock();
    // Also after an exception: otherwise the channel would never count as quiet again.
    const struct Ended {
      ~Ended() {
        lock.lock();
        --waits;
      }
      Lock& lock;
      uint32_t& waits;
    } ended{lock, waits_};
    return body();
  }

  void enter(ChannelState to);
  void fail(absl::Status status);
  // Completes the objects of transmitted_ if the channel has failed. Called by the owner, or with
  // the window closed.
  void fail_transmitted();
  // Returns the reason why no call is accepted any more, or OK.
  [[nodiscard]] absl::Status refusal() const;
  // Returns the error of a call that is refused before the first chunks were granted.
  [[nodiscard]] absl::Status not_set_up() const;

  // ---- The window.
  void close_window();
  // Returns true with mapped arrival, if no fence is needed and batches do not age.
  [[nodiscard]] bool may_publish_by_store() const {
    return path_->arrival == Arrival::kMapped && !path_->fence && options_.flush_age.count() == 0;
  }
  // Opens the window if the state is kOpen. With `batch`, begins a batch if none is begun: the
  // owner's next call will join it. While a trace is recorded, the window takes only calls that
  // join a batch, and every publication takes flush_batch(), which records it.
  void open_window(bool batch = false);

  // ---- Chunks.
  // Returns kDone if the chunk to be opened next is free, else kFull, kTransfers or kFailed.
  [[nodiscard]] Progress find_free_chunk(Transmitter* transmitter);
  // Updates consumed_. Returns kDone, kTransfers or kFailed.
  [[nodiscard]] Progress count_consumed(Transmitter* transmitter);
  // Ends the current chunk, if one is open, and opens the next one. Returns kDone if it is open.
  // After kFull and kTransfers the current chunk may have been ended. `bytes`: length of the call
  // that needs room.
  [[nodiscard]] Progress advance(Transmitter* transmitter, uint64_t bytes);
  // Called by the owner: advances unless the open chunk has room for `bytes`. Waits for transfers.
  // Returns kTransfers only if meanwhile calls were deferred or the channel was shut down.
  [[nodiscard]] Progress make_room(Lock& lock, uint64_t bytes);
  [[nodiscard]] absl::Status end_chunk(Transmitter* transmitter, uint8_t flags);
  [[nodiscard]] bool has_room(uint64_t bytes) const {
    return chunks_.is_open() && chunk_end() - closed_at_ >= static_cast<ptrdiff_t>(bytes);
  }

  // ---- Requests for the path and for chunks. The window may be open.
  // SenderChunks::want(). The channel opens if it is unopened.
  void want_chunks(uint64_t bytes);
  // Sends or continues the requests until the wanted chunks are granted and no answer is
  // outstanding. Never waits for an answer.
  // Returns true if the chunks are granted, or if the limit was lowered to the present number,
  // which has a chunk for a call of `bytes` bytes. Returns false if an answer is outstanding, or if
  // another thread is inside the link. After an error, no more chunks are wanted.
  [[nodiscard]] absl::StatusOr<bool> poll_requests(Lock& lock, uint64_t bytes);
  // No more chunks can be had now: lets the channel continue with those that it has, for a while.
  void grow_later();
  [[nodiscard]] absl::Status take_path(const ChannelLink::Path& path);
  void take_grant(std::vector<ChannelLink::Chunk> grant);
  // Called by the owner: wants chunks and polls for them once. Result and errors: poll_requests().
  // After UNAVAILABLE the channel has failed.
  [[nodiscard]] absl::StatusOr<bool> ask_for_chunks(Lock& lock, uint64_t bytes);
  // Called by the owner: requests chunks and waits for them, at most options_.timeout. `bytes`:
  // length of the call that needs room, or 0.
  [[nodiscard]] absl::Status await_chunks(Lock& lock, uint64_t bytes);

  // ---- Calls.
  // Writes the call at closed_at_. Returns true if it has to be published now, with the batch.
  [[nodiscard]] bool build(const OutgoingCall& call, bool batch);
  // `cause` names the publication in a trace, unless it is that of a single call.
  [[nodiscard]] absl::Status flush_batch(Transmitter* transmitter, const char* cause);
  // Returns the name in a trace for a batch that has reached flush_age, or `cause`.
  [[nodiscard]] const char* cause_unless_old(const char* cause) const;
  // While a trace is recorded: begins the arrow of the publication at `at`. For a run of deferred
  // calls, begins one arrow per call, because the receiver runs them one by one.
  void begin_arrow(const std::byte* at) const;
  void begin_arrows(const Backlog::Run& run, const std::byte* at) const;
  [[nodiscard]] absl::Status defer(const OutgoingCall& call, EventReceiver& transmitted);
  // Moves deferred calls into chunks and publishes them. Returns kDone if none are left.
  [[nodiscard]] Progress drain_backlog(Transmitter* transmitter);
  // kClosing: publishes the remaining calls and the end of the channel. Returns kDone in state
  // kClosed.
  [[nodiscard]] Progress finish(Transmitter* transmitter);
  void wake_drain_thread();
  // Called without mutex_.
  void tell_waiters();
  // Called by the owner before it sends a call for whose end a pending call waits, without mutex_.
  void note_awaited(uint64_t awaited);
  // If the channel has failed: ends the calls of this process that wait for the end of a call that
  // the channel has taken, published or not. Called without mutex_: an ended call may send others.
  void fail_lost_calls();
  // The condition on which send_slowly() waits. Locks mutex_. Returns true if there may be room
  // now, or if the channel has failed or ended. Moves deferred calls into chunks.
  // `deferred_before`: bytes of deferred calls when the wait began.
  [[nodiscard]] bool look_for_room(uint64_t deferred_before);
  // The condition on which shutdown() waits. Locks mutex_. Returns true if the channel has ended,
  // or if only a first grant that no call needs is missing.
  [[nodiscard]] bool look_for_end();

  // The following functions are called by the owner with the window open, without mutex_.

  [[nodiscard]] CallResult batch_slowly(const OutgoingCall& call, WhenNoRoom when) override;
  [[nodiscard]] CallResult published_slowly(std::byte* first, std::byte* next) override;
  [[nodiscard]] CallResult publish_batch(std::byte* next);
  [[nodiscard]] CallResult send_in_window(const OutgoingCall& call, bool batch,
                                          const EventReceiver& transmitted);
  void fetch_next(std::byte* next, size_t bytes) const;
  // Requires: no call is batched. Begins an empty batch at `at` if there is room for one.
  void begin_batch(std::byte* at);
  void set_batch_end();
  [[nodiscard]] bool batch_is_empty() const {
    return batch_ == nullptr || position_ - batch_ <= kBatchWord;
  }

  // The following functions are called with the window open (by the owner) or closed.

  // Returns the position where the last call must end: an end marker fits behind it, with the
  // trailing words of both. A closed window may be beyond it by one trailing word.
  [[nodiscard]] std::byte* chunk_end() const {
    return writer_->base() + open_bytes_ - sizeof(CallHeader) - 2 * writer_->tail();
  }
  // Returns the offset of `at` in the channel's stream of calls.
  [[nodiscard]] uint64_t offset_of(const std::byte* at) const {
    return chunk_first_ + static_cast<uint64_t>(at - writer_->base()) - sizeof(ChunkHeader);
  }
  // Returns the offset of `at` in the stream of calls and end markers.
  [[nodiscard]] uint64_t produced_at(const std::byte* at) const {
    return offset_of(at) + chunks_.ring().ended() * sizeof(CallHeader);
  }

  // Window open: the batch word of the batch that was begun, or nullptr. Window closed: the first
  // word that is not published.
  Relaxed<std::byte*> batch_;
  Relaxed<uint64_t> publications_;  // counted without mutex_
  // Written under mutex_; the owner reads both without.
  uint64_t open_bytes_ = 0;  // of the chunk that was opened last
  bool window_open_ = false;
  // Two stores publish a batch: may_publish_by_store(), and no trace was recorded when the window
  // was opened.
  bool publishes_by_store_ = false;

  alignas(64) mutable std::mutex mutex_;
  ChannelState state_ = ChannelState::kUnopened;
  absl::Status failure_;             // in kFailed; does not change any more
  std::atomic<bool> failed_{false};  // kFailed; the owner reads it without mutex_
  ChannelLink& link_;
  const MessengerOptions options_;
  const std::string peer_;
  const absl::Status no_room_;
  std::optional<ChannelLink::Path> path_;
  std::unique_ptr<ChunkWriter> writer_;

  SenderChunks chunks_;
  ConsumedCount consumed_;
  bool in_link_ = false;      // a thread is inside link_.open() or link_.obtain(), without mutex_
  bool chunk_asked_ = false;  // the answer to a link_.obtain() is outstanding
  uint32_t waits_ = 0;        // waits of the owner for room, a grant or transfers, without mutex_
  uint64_t chunk_first_ = 0;  // stream offset of the first call in this chunk
  std::byte* closed_at_ = nullptr;  // window closed: the channel's current position
  uint64_t single_ = 0;             // header of the call at batch_ if it has no batch word, else 0

  Backlog backlog_;
  bool drain_requested_ = false;            // the drain thread will call drain()
  bool carries_awaited_ = false;            // link_.carries() was called; written by the owner
  std::vector<EventReceiver> transmitted_;  // completed when the batch is published
  // An object of transmitted_ or of a deferred call was completed: threads that wait for it must be
  // woken. Or the channel has failed: the calls that wait for lost ones must be ended.
  std::atomic<bool> must_tell_waiters_{false};
  std::chrono::steady_clock::time_point batch_since_{};
  MessengerStatistics counts_;
};

}  // namespace cariama::internal

#endif  // CARIAMA_RIUTILS_INTERNAL_RING_SENDER_H_
