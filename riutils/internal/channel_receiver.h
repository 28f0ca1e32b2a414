// The receiving end of a channel: runs the calls that a sender has put into our chunks (Seriema
// §4.4.1).
//
// It reads memory that a peer writes, so it believes nothing: every length is held against the
// chunk's end, every id against the function table, every count of inserted chunks against what was
// really granted. (A word is read once: what is checked is what is used.) What is malformed ends
// this channel, with a reason, and nothing else.
#ifndef CARIAMA_RIUTILS_INTERNAL_CHANNEL_RECEIVER_H_
#define CARIAMA_RIUTILS_INTERNAL_CHANNEL_RECEIVER_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dsfabric/call_encoding.h"
#include "riutils/chunk_ring.h"
#include "riutils/messenger_options.h"

namespace cariama::internal {

// What a receiver needs from the world around it. Called by whoever runs the channel.
class ReceiverBackend {
 public:
  enum class Taken : uint8_t {
    kTaken,
    kNotYet,   // they are on their way into the map
    kMissing,  // nobody granted them
  };

  virtual ~ReceiverBackend() = default;
  // Takes `count` more chunks of this channel out of the incoming memory map, in the order of
  // insertion.
  [[nodiscard]] virtual Taken take_chunks(uint32_t count, std::vector<std::byte*>& chunks) = 0;
  // Writes the number of consumed chunks (or kBroken) into the sender's ChannelControl.
  virtual void push(uint64_t consumed_chunks) = 0;
  // A call that wants an answer has been run, or it failed and somebody should know. `call.outcome`
  // says how it ended; `notify` is nullptr if nobody waits.
  virtual void finished(const NotifyTarget* notify, const IncomingCall& call,
                        const std::string& result) = 0;
  // The channel ends here because of what the peer wrote.
  virtual void broken(std::string_view why) = 0;
};

// One thread at a time, whichever has the worker's inbox.
class ChannelReceiver {
 public:
  // `chunks` are the first grant; each was prepare()d.
  ChannelReceiver(ReceiverBackend& backend, Arrival arrival, Consumption consumption,
                  uint64_t chunk_bytes, uint32_t source_thread, std::vector<std::byte*> chunks);

  // Makes memory a chunk that was never used: before the sender learns of it.
  static void prepare(std::byte* chunk);

  // Runs calls that have arrived, `most` at most. Returns how many.
  size_t run(size_t most);

  // Arrival::kEvent: so many more words may be read. Any thread, ordered by the queue pair's
  // completions.
  void announced(uint64_t words) { announced_.fetch_add(words, std::memory_order_acq_rel); }

  // The sender has shut the channel down, or broken it: nothing will be read any more.
  [[nodiscard]] bool ended() const { return ended_; }
  // Bytes of calls that have been run. Any thread.
  [[nodiscard]] uint64_t consumed_bytes() const {
    return consumed_bytes_.load(std::memory_order_relaxed);
  }
  [[nodiscard]] uint64_t consumed_chunks() const { return consumed_chunks_; }
  [[nodiscard]] const std::vector<std::byte*>& chunks() const { return chunks_; }

 private:
  // A header of a plain call, understood once. Calls of one function mostly have the same.
  struct KnownHeader {
    uint64_t word = 0;
    size_t size = 0;  // of the call
    FunctionStub stub = nullptr;
    uint64_t padding = 0;
  };
  static constexpr uint32_t kKnownHeaders = 32;
  // How far a round has come.
  struct Cursor {
    std::byte* at;
    std::byte* limit;  // end of the batch that `at` is in, or end_
    size_t calls;
  };
  template <bool kEvent>
  size_t run_calls(size_t most);
  template <bool kEvent>
  bool step(uint64_t word, Cursor& cursor);
  void run_flagged(const CallHeader& header, std::byte* behind);
  void finish_slowly(const NotifyTarget* notify);
  // The end of a chunk. False: run no more now.
  bool end_of_chunk(const CallHeader& header);
  void enter(uint32_t index);
  void break_off(std::string_view why);

  ReceiverBackend& backend_;
  const Arrival arrival_;
  const Consumption consumption_;
  const uint64_t chunk_bytes_;
  std::vector<std::byte*> chunks_;  // the ring, as the sender's
  uint32_t current_ = 0;
  std::byte* position_ = nullptr;
  size_t last_size_ = sizeof(CallHeader);
  std::byte* end_ = nullptr;    // the last place for an end marker
  std::byte* limit_ = nullptr;  // end of the batch that position_ is in, or end_
  std::array<KnownHeader, kKnownHeaders> known_;
  std::byte* first_ = nullptr;    // where this round, or its part in this chunk, began
  uint64_t consumed_before_ = 0;  // bytes, when this round or its part in this chunk began
  uint64_t consumed_chunks_ = 0;
  uint64_t unread_words_ = 0;  // announced and not consumed yet
  bool ended_ = false;
  IncomingCall call_;
  std::string result_;
  std::atomic<uint64_t> consumed_bytes_{0};
  alignas(64) std::atomic<uint64_t> announced_{0};
};

}  // namespace cariama::internal

#endif  // CARIAMA_RIUTILS_INTERNAL_CHANNEL_RECEIVER_H_
