// The incoming channels of one worker, and the CallSource that runs their calls.
#ifndef CARIAMA_RIUTILS_INTERNAL_INCOMING_CALLS_H_
#define CARIAMA_RIUTILS_INTERNAL_INCOMING_CALLS_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dsfabric/call_source.h"
#include "dtutils/allocators/general_allocator.h"
#include "dtutils/synchronizer.h"
#include "dtutils/transmitter.h"
#include "riutils/chunk_ring.h"
#include "riutils/internal/channel_receiver.h"
#include "riutils/internal/incoming_map.h"
#include "riutils/internal/service_forms.h"

namespace cariama::internal {

class IncomingCalls;

// One incoming channel.
class IncomingChannel final : public ReceiverBackend {
 public:
  IncomingChannel(IncomingCalls& calls, uint32_t rank, const ChunkRequest& request, uint32_t number,
                  uint64_t key, std::vector<std::byte*> chunks, const RDMAMemory& words);

  // ---- ReceiverBackend
  Taken take_chunks(uint32_t count, std::vector<std::byte*>& chunks) override;
  void push(uint64_t consumed_chunks) override;
  void finished(const NotifyTarget* notify, const IncomingCall& call,
                const std::string& result) override;
  void broken(std::string_view why) override;

  // Arrival::kPolled: posts the receiver's part of the sleep protocol (dtutils/sleep_protocol.h): a
  // WRITE that sets `asleep` in the sender's memory, then a READ of the sender's published count.
  void begin_to_sleep();
  // Blocks until the READ posted by begin_to_sleep(), if any, has completed.
  void end_asking();
  // Completes begin_to_sleep(). Returns true if the worker must not sleep: the sender has published
  // more than was consumed, or the sender was not told.
  [[nodiscard]] bool sender_has_published_more();

  IncomingCalls& calls;
  const uint32_t rank;
  const ChunkRequest request;
  const uint32_t number;
  const uint64_t key;  // identifies the channel in the incoming memory map
  RDMAMemory words;    // local registered words: the pushed count, the two of the sleep protocol
  ChannelReceiver receiver;
  Synchronizer told{0};
  bool asked = false;
  bool announced = false;  // begin_to_sleep() was called since the last sender_has_published_more()
};

// Service threads call grant() and announced(). The thread that currently runs the worker's calls
// calls the functions of CallSource.
class IncomingCalls final : public CallSource {
 public:
  IncomingCalls(Fabric& fabric, uint32_t index) : fabric_(fabric), index_(index) {}
  ~IncomingCalls() override;

  // Grants chunks to a sender: allocates them, prepares them, and inserts them into the incoming
  // memory map. Thread-safe.
  [[nodiscard]] ChunkReply grant(uint32_t rank, const ChunkRequest& request);
  // Arrival::kEvent: `words` more words have arrived in the channel `number` of process `rank`.
  void announced(uint32_t rank, uint32_t number, uint64_t words);
  // Process `rank` has failed: the calls that it has published are run, then its chunks are freed.
  void peer_died(uint32_t rank);
  [[nodiscard]] uint64_t consumed_bytes(uint32_t rank);
  // Destroys the objects that refer to connections.
  void stop() { transmitters_.clear(); }

  // ---- CallSource
  size_t run(size_t most) override;
  void announce_sleep() override;
  [[nodiscard]] bool may_sleep() override;

  void set_sleeping(SleepingWord* word, bool has_barrier) {
    sleeping_ = word;
    has_barrier_ = has_barrier;
  }
  [[nodiscard]] Fabric& fabric() { return fabric_; }
  [[nodiscard]] Transmitter* transmitter(uint32_t rank);

 private:
  friend class IncomingChannel;
  struct Entry {
    IncomingChannel* channel = nullptr;  // a new channel
    std::byte* chunk = nullptr;          // or one more chunk
  };
  // The service threads' record of a channel; exists until the channel has ended.
  struct Account {
    std::unique_ptr<IncomingChannel> channel;
    std::vector<RDMAMemory> memory;  // its chunks, and IncomingChannel::words
  };

  void close(IncomingChannel* channel);
  void absorb();

  Fabric& fabric_;
  const uint32_t index_;
  SleepingWord* sleeping_ = nullptr;
  bool has_barrier_ = false;

  std::mutex mutex_;  // taken by service threads, and by the consumer when a channel ends
  std::unique_ptr<GeneralAllocator> memory_;
  std::map<std::pair<uint32_t, uint64_t>, Account> accounts_;  // by rank and ChunkRequest::serial
  std::map<uint32_t, std::map<uint32_t, IncomingChannel*>> by_number_;  // rank → number → channel
  uint64_t last_key_ = 0;                                               // IncomingChannel::key
  std::map<uint32_t, uint64_t> consumed_before_;  // rank → bytes of ended channels
  std::map<uint32_t, bool> dead_;
  std::atomic<bool> any_dead_{false};

  IncomingMap<Entry> map_;
  // Used only by the thread that runs the worker's calls.
  std::vector<uint64_t> fresh_;  // keys absorbed since the last run()
  std::vector<IncomingChannel*> channels_;
  size_t first_ = 0;
  std::map<uint32_t, std::unique_ptr<Transmitter>> transmitters_;
};

}  // namespace cariama::internal

#endif  // CARIAMA_RIUTILS_INTERNAL_INCOMING_CALLS_H_
