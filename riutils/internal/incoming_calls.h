// All channels that end in one worker: what runs its one-sided calls.
#ifndef CARIAMA_RIUTILS_INTERNAL_INCOMING_CALLS_H_
#define CARIAMA_RIUTILS_INTERNAL_INCOMING_CALLS_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
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

// One channel that arrives here.
class IncomingChannel final : public ReceiverBackend {
 public:
  IncomingChannel(IncomingCalls& calls, uint32_t rank, const ChunkRequest& request, uint32_t number,
                  std::vector<std::byte*> chunks, const RDMAMemory& words);

  // ---- ReceiverBackend
  Taken take_chunks(uint32_t count, std::vector<std::byte*>& chunks) override;
  void push(uint64_t consumed_chunks) override;
  void finished(const NotifyTarget* notify, const IncomingCall& call,
                const std::string& result) override;
  void broken(std::string_view why) override;

  // Arrival::kPolled: says in the sender's memory that we sleep, and looks how far it has come
  // (dtutils/sleep_protocol.h).
  void begin_to_sleep();
  // Waits until no answer is under way to our words.
  void end_asking();
  [[nodiscard]] bool sender_has_published_more();

  IncomingCalls& calls;
  const uint32_t rank;
  const ChunkRequest request;
  const uint32_t number;
  const uint64_t key;
  RDMAMemory words;  // of our own: what is pushed; the two words of the sleep protocol
  ChannelReceiver receiver;
  Synchronizer told{0};
  bool asked = false;
  bool announced = false;  // begin_to_sleep() was called since sender_has_published_more()
};

// grant() and announced() by service threads; CallSource by who runs the worker's calls.
class IncomingCalls final : public CallSource {
 public:
  IncomingCalls(Fabric& fabric, uint32_t index) : fabric_(fabric), index_(index) {}
  ~IncomingCalls() override;

  // Gives a sender chunks: allocates, prepares, and puts them into the map. `sleeping` is this
  // worker's.
  [[nodiscard]] ChunkReply grant(uint32_t rank, const ChunkRequest& request);
  // Words have arrived in the event-driven channel of that number.
  void announced(uint32_t rank, uint32_t number, uint64_t words);
  // The process is dead: what it had published is run, then its chunks are returned.
  void peer_died(uint32_t rank);
  [[nodiscard]] uint64_t consumed_bytes(uint32_t rank);
  // Lets go of what belongs to connections.
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
  // What service threads know of a channel, until it has ended.
  struct Account {
    std::unique_ptr<IncomingChannel> channel;
    std::vector<RDMAMemory> memory;  // its chunks, and words
  };

  void close(IncomingChannel* channel);
  void absorb();

  Fabric& fabric_;
  const uint32_t index_;
  SleepingWord* sleeping_ = nullptr;
  bool has_barrier_ = false;

  std::mutex mutex_;  // service threads, and channels that end
  std::unique_ptr<GeneralAllocator> memory_;
  std::map<uint64_t, Account> accounts_;                        // by key
  std::map<uint64_t, std::map<uint32_t, uint64_t>> by_number_;  // rank → number → key
  std::map<uint32_t, uint64_t> consumed_before_;                // by channels that have ended
  std::map<uint32_t, bool> dead_;
  std::atomic<bool> any_dead_{false};

  IncomingMap<Entry> map_;
  // The runner's alone.
  std::vector<uint64_t> fresh_;  // keys that were absorbed since the last run()
  std::vector<IncomingChannel*> channels_;
  size_t first_ = 0;
  std::map<uint32_t, std::unique_ptr<Transmitter>> transmitters_;
};

}  // namespace cariama::internal

#endif  // CARIAMA_RIUTILS_INTERNAL_INCOMING_CALLS_H_
