// The receiving end of a channel: runs the calls that a sender has written into the chunks of this
// process (Seriema §4.4.1).
//
// The receiver reads memory that a peer writes, and trusts none of it. It checks every length
// against the chunk's end, every function id against the function table, and every count of
// inserted chunks against the chunks that were really granted. A word that it reads again is
// checked again. A malformed chunk ends this channel, with a reason, and affects no other channel:
// the chunks of the ended channel are not granted again, because its sender may still write to
// them. A call with an unknown function or a malformed closure is only rejected.
#ifndef CARIAMA_RIUTILS_INTERNAL_CHANNEL_RECEIVER_H_
#define CARIAMA_RIUTILS_INTERNAL_CHANNEL_RECEIVER_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dsfabric/call_encoding.h"
#include "riutils/internal/chunk_ring.h"
#include "riutils/messenger_options.h"

namespace cariama::internal {

// The interface by which a ChannelReceiver uses its environment. Called by the thread that runs the
// channel.
class ReceiverBackend {
 public:
  enum class Taken : uint8_t {
    kTaken,
    kNotYet,   // an insertion into the map is in progress; retry later
    kMissing,  // the chunks were not granted
  };

  virtual ~ReceiverBackend() = default;
  // Takes `count` more chunks of this channel out of the incoming memory map, in the order of
  // insertion.
  [[nodiscard]] virtual Taken take_chunks(uint32_t count,
                                          std::vector<std::span<std::byte>>& chunks) = 0;
  // Called when the calls of `chunk` have run and other chunks have replaced it: neither end
  // accesses the chunk any more.
  virtual void replaced(std::span<std::byte> chunk) = 0;
  // Writes the number of consumed chunks (or kBroken) into the sender's ChannelControl. Returns
  // false if the WRITE could not be posted while the sender's process lives: the next run()
  // repeats it. The backend then makes the thread call run() again.
  [[nodiscard]] virtual bool push(uint64_t consumed_chunks) = 0;
  // Called when a call that requested an answer has run, and for every call that has failed or will
  // be answered later. `call.outcome` is its outcome; `notify` is nullptr if no answer was
  // requested. If this function throws, it is called again for the same call later.
  virtual void finished(const NotifyTarget* notify, const IncomingCall& call,
                        const std::string& result) = 0;
  // Called when the channel ends because the peer wrote malformed data.
  virtual void broken(std::string_view why) = 0;
  // See ChannelLink::trace_stream().
  [[nodiscard]] virtual uint64_t trace_stream() const { return 0; }
  // Returns the call source that the channel belongs to, or nullptr.
  [[nodiscard]] virtual CallSource* source() { return nullptr; }
};

// Thread-compatible: used by the thread that currently runs the worker's calls, except announced()
// and consumed_bytes().
class ChannelReceiver {
 public:
  // `chunks` are the first grant; each was prepare()d.
  ChannelReceiver(ReceiverBackend& backend, Arrival arrival, Consumption consumption,
                  uint32_t source_thread, std::vector<std::span<std::byte>> chunks);

  // Initializes memory as an unused chunk. Must be called before the sender learns of the chunk.
  static void prepare(std::span<std::byte> chunk, Arrival arrival);

  // Runs at most `most` calls that have arrived. Never blocks. Returns the number of calls that
  // ran. After an exception (no memory) no call that has run runs again.
  size_t run(size_t most);

  // Arrival::kEvent: `words` more words have arrived and may be read. Thread-safe; the queue pair's
  // completions order the events of one channel.
  void announced(uint64_t words) { announced_.fetch_add(words, std::memory_order_acq_rel); }

  // Returns true if the sender has shut down the channel or has written malformed data: the
  // receiver does not read the channel any more.
  [[nodiscard]] bool ended() const { return ended_; }
  // Returns true if malformed data has ended the channel.
  [[nodiscard]] bool is_broken() const { return broken_; }
  // Returns true if the next run() repeats a push of the number of consumed chunks.
  [[nodiscard]] bool has_to_push() const { return push_due_; }
  // Returns true if the last run() ended at a call that was postponed (IncomingCall::postponed).
  [[nodiscard]] bool is_postponed() const { return postponed_; }
  // Returns the number of bytes of calls that have been run. Thread-safe.
  [[nodiscard]] uint64_t consumed_bytes() const {
    return consumed_bytes_.load(std::memory_order_relaxed);
  }
  [[nodiscard]] uint64_t consumed_chunks() const { return ring_.ended(); }
  [[nodiscard]] const std::vector<std::span<std::byte>>& chunks() const { return ring_.chunks(); }

 private:
  // Calls run_calls() for the channel's arrival mode.
  size_t run_arrived(size_t most);
  // run() while a trace is recorded: runs one publication at a time, and records each with the end
  // of its arrow.
  size_t run_traced(size_t most);
  // Returns true if a word has arrived at position_, or is announced.
  [[nodiscard]] bool has_word() const;
  // Returns true if position_ is inside a publication of several calls. Leaves a publication whose
  // calls have all been run.
  bool is_inside_publication();
  // A cached, already checked header of a call without flags. Calls of one function mostly have
  // equal headers.
  struct KnownHeader {
    uint64_t word = 0;
    size_t size = 0;  // of the call
    FunctionStub stub = nullptr;
    uint64_t padding = 0;
  };
  static constexpr uint32_t kKnownHeaders = 32;
  // The progress of a polling round.
  struct Cursor {
    std::byte* at;
    std::byte* limit;  // end of the batch that `at` is in, or end_
    size_t calls;
  };
  template <Arrival kArrival>
  size_t run_calls(size_t most);
  template <Arrival kArrival>
  bool step(uint64_t word, Cursor& cursor);
  // Arrival::kTrailing. Begins to read the publication at the cursor, whose first word is `word`.
  // Returns false if it has not arrived completely, or is malformed.
  bool open_publication(uint64_t word, Cursor& cursor);
  // Arrival::kTrailing. Ends the publication, all of whose calls were run, and clears it: the
  // sender will write to its place again.
  void close_publication(Cursor& cursor);
  [[nodiscard]] bool run_flagged(const CallHeader& header, std::byte* behind);
  // Ends a call with another outcome than kDone, with an answer that follows later, or with a
  // notification. Returns false if the call was postponed: it remains the next call. If
  // report_due_ is set then, the call has run, and the round has to end behind it.
  [[nodiscard]] bool finish_slowly(const NotifyTarget* notify) noexcept;
  // Reports the end of the call in call_. Throws if there is no memory; run() repeats it.
  void report_call();
  // Prepares call_ for the next call.
  void forget_call();
  // Processes an end marker. Returns false if the round must stop.
  bool end_of_chunk(const CallHeader& header);
  // Begins to read the current chunk.
  void enter();
  void break_off(std::string_view why);
  // Pushes the number of consumed chunks, or kBroken. If that fails or throws (no memory), the next
  // run() repeats it: the sender may wait for the count.
  void push_consumed();

  ReceiverBackend& backend_;
  const Arrival arrival_;
  const Consumption consumption_;
  ChunkRing<std::span<std::byte>> ring_;
  std::byte* position_ = nullptr;
  size_t last_size_ = sizeof(CallHeader);
  std::byte* end_ = nullptr;        // the last position for an end marker
  std::byte* limit_ = nullptr;      // end of the batch that position_ is in, or end_
  std::byte* batch_end_ = nullptr;  // of the last batch in this chunk, which may be end_
  // Arrival::kTrailing: the publication that position_ is in, or nullptr; limit_ is then position_.
  std::byte* publication_ = nullptr;
  std::array<KnownHeader, kKnownHeaders> known_;
  std::byte* first_ = nullptr;    // position at which this round, or its part in this chunk, began
  uint64_t consumed_before_ = 0;  // consumed bytes at that position
  uint64_t unread_words_ = 0;     // words announced and not consumed yet
  bool ended_ = false;
  bool broken_ = false;
  bool push_due_ = false;  // a count is to be pushed
  // The end of the last call, which has run, is to be reported: call_ and result_ describe it.
  bool report_due_ = false;
  bool report_answers_ = false;  // the report goes to reported_to_
  NotifyTarget reported_to_;
  bool postponed_ = false;  // the last round ended at a call that was postponed
  bool traced_ = false;     // a round ends with its publication, and with its chunk
  IncomingCall call_;
  std::string result_;
  std::atomic<uint64_t> consumed_bytes_{0};
  alignas(64) std::atomic<uint64_t> announced_{0};
};

}  // namespace cariama::internal

#endif  // CARIAMA_RIUTILS_INTERNAL_CHANNEL_RECEIVER_H_
