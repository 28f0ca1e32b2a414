// The incoming channels of one worker, and the CallSource that runs their calls.
#ifndef CARIAMA_RIUTILS_INTERNAL_INCOMING_CALLS_H_
#define CARIAMA_RIUTILS_INTERNAL_INCOMING_CALLS_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dsfabric/call_result.h"
#include "dsfabric/internal/call_source.h"
#include "dtutils/allocators/general_allocator.h"
#include "dtutils/allocators/memory_budget.h"
#include "dtutils/remote_doorbell.h"
#include "dtutils/statistics.h"
#include "dtutils/synchronizer.h"
#include "dtutils/transmitter.h"
#include "riutils/internal/channel_receiver.h"
#include "riutils/internal/chunk_ring.h"
#include "riutils/internal/forwarder.h"
#include "riutils/internal/incoming_map.h"
#include "riutils/internal/service_forms.h"

namespace cariama::internal {

class IncomingCalls;

// One incoming channel.
class IncomingChannel final : public ReceiverBackend, public RemoteSleeper {
 public:
  IncomingChannel(IncomingCalls& calls, uint32_t rank, const ChunkRequest& request, uint32_t number,
                  uint64_t key, std::vector<std::span<std::byte>> chunks);

  // ---- ReceiverBackend
  Taken take_chunks(uint32_t count, std::vector<std::span<std::byte>>& chunks) override;
  void replaced(std::span<std::byte> chunk) override;
  [[nodiscard]] bool push(uint64_t consumed_chunks) override;
  void finished(const NotifyTarget* notify, const IncomingCall& call,
                const std::string& result) override;
  void broken(std::string_view why) override;
  [[nodiscard]] uint64_t trace_stream() const override {
    return trace_stream_of(rank, request.serial);
  }
  [[nodiscard]] CallSource* source() override;

  IncomingCalls& calls;
  const uint32_t rank;
  const ChunkRequest request;
  const uint32_t number;
  const uint64_t key;  // identifies the channel in the incoming memory map
  // Local registered words, zero at first, which grant() sets: the pushed counts, the scratch of
  // RemoteSleeper.
  RDMAMemory words;
  // Counted down when the WRITE of the last count has ended, which reads `words`.
  std::unique_ptr<Synchronizer> last_push = std::make_unique<Synchronizer>(0);
  // Used by the thread that runs the calls: ChunkRequest::follows, until that channel has ended.
  uint64_t follows;
  ChannelReceiver receiver;

 private:
  // ---- RemoteSleeper, of the sender's doorbell (Arrival::kPolled and kTrailing)
  absl::StatusOr<Transmitter*> path() override;
  RDMAMemory& scratch() override { return words; }
  uint64_t scratch_offset() const override { return sizeof(uint64_t); }
  uint64_t consumed() const override {
    return receiver.consumed_bytes() + receiver.consumed_chunks() * sizeof(CallHeader);
  }
};

// Service threads call grant() and announced(). The thread that currently runs the worker's calls
// calls the functions of CallSource.
class IncomingCalls final : public CallSource {
 public:
  // Tells process `rank` that this process has stopped reading its channel `serial`, and has run
  // `consumed` bytes of calls.
  using ReportBroken = CallResult (*)(Fabric& fabric, Rank rank, uint64_t serial,
                                      uint64_t consumed);
  // `budget` is the limit of the chunks of all threads of the process.
  IncomingCalls(Fabric& fabric, uint32_t index, MemoryBudget& budget, ReportBroken report_broken);
  ~IncomingCalls() override;

  // Grants chunks to a sender: allocates them, prepares them, and inserts them into the incoming
  // memory map. Thread-safe. If memory is exhausted, the answer is a refusal, and nothing has
  // changed.
  [[nodiscard]] ChunkAnswer grant(uint32_t rank, const ChunkRequest& request);
  // Arrival::kEvent: `words` more words have arrived in the channel `number` of process `rank`.
  void announced(uint32_t rank, uint32_t number, uint64_t words);
  // Called when process `rank` has failed. The worker's thread runs the calls that the process has
  // published; then the chunks are freed.
  void peer_died(uint32_t rank);
  // Called when a channel of the forwarder has lost calls. Never blocks.
  void forwarding_failed();
  [[nodiscard]] uint64_t consumed_bytes(uint32_t rank);
  // Destroys the objects that refer to connections. No thread runs calls any more.
  void disconnect() {
    forwarder_.disconnect();
    transmitters_.clear();
  }

  // ---- CallSource
  size_t run(size_t most) override;

  [[nodiscard]] Fabric& fabric() { return fabric_; }
  [[nodiscard]] absl::StatusOr<Transmitter*> transmitter(uint32_t rank);
  // Forwards the routed calls that arrive at the worker.
  [[nodiscard]] Forwarder& forwarder() { return forwarder_; }

 private:
  friend class IncomingChannel;
  struct Entry {
    IncomingChannel* channel = nullptr;  // a new channel
    std::span<std::byte> chunk{};        // or one more chunk
  };
  // The service threads' record of a channel; exists until the channel has ended.
  struct Account {
    std::unique_ptr<IncomingChannel> channel;
    std::vector<RDMAMemory> memory;  // its chunks
  };

  // Words of an ended channel, whose last count is still being transferred to process `rank`.
  struct EndedChannel {
    uint32_t rank;
    RDMAMemory words;
    std::unique_ptr<Synchronizer> sent;
    // If malformed data has ended the channel: its number, and the bytes of calls that have run,
    // for the report to the sender's process. Else 0.
    uint64_t broken_serial = 0;
    uint64_t consumed_bytes = 0;
  };

  struct Pieces;

  // grant(), without the wake-up of the worker's thread. Throws std::bad_alloc.
  [[nodiscard]] ChunkAnswer try_grant(uint32_t rank, const ChunkRequest& request);
  // Returns true if the calls of the channel may run: the channel that it follows has ended.
  [[nodiscard]] bool may_run(IncomingChannel& channel);
  // Requires that mutex_ is held. Errors: RESOURCE_EXHAUSTED (the budget, or no memory).
  [[nodiscard]] absl::StatusOr<RDMAMemory> allocate_chunk(const ChunkRequest& request);
  void close(IncomingChannel* channel);
  // Frees a chunk of the channel that other chunks have replaced.
  void free_chunk(const IncomingChannel& channel, const std::byte* chunk);
  // Frees a chunk, and counts it as freed. Requires that mutex_ is held.
  void free_memory(RDMAMemory&& chunk);
  // Frees a chunk that was never granted. Requires that mutex_ is held.
  void free_unused(RDMAMemory&& chunk);
  void free_ended_channels();
  // Tells the sender's process that this process has stopped reading its channel. Returns false if
  // that has to be repeated.
  [[nodiscard]] bool report_broken(const EndedChannel& channel);
  // Makes the thread that runs the worker's calls call run() once more before it sleeps.
  void run_again();
  void absorb();

  Fabric& fabric_;
  const uint32_t index_;
  MemoryBudget& budget_;
  const ReportBroken report_broken_;

  std::mutex mutex_;  // taken by service threads, and by the consumer when a channel ends
  std::unique_ptr<GeneralAllocator> memory_;
  std::vector<RDMAMemory> withheld_;  // chunks that a sender may still write to
  std::map<std::pair<uint32_t, uint64_t>, Account> accounts_;  // by rank and ChunkRequest::serial
  std::map<uint32_t, std::map<uint32_t, IncomingChannel*>> by_number_;  // rank → number → channel
  uint64_t last_key_ = 0;                                               // IncomingChannel::key
  std::map<uint32_t, uint64_t> consumed_before_;  // rank → bytes of ended channels
  std::map<uint32_t, bool> dead_;
  std::atomic<bool> any_dead_{false};
  std::atomic<bool> new_failures_{false};  // of processes or forwarding channels, since run()

  IncomingMap<Entry> map_;
  // Used only by the thread that runs the worker's calls.
  std::vector<uint64_t> fresh_;  // keys absorbed since the last run()
  std::vector<IncomingChannel*> channels_;
  size_t first_ = 0;
  std::vector<EndedChannel> ended_channels_;
  std::map<uint32_t, std::unique_ptr<Transmitter>> transmitters_;
  Forwarder forwarder_;

  Counter calls_run_;
  Counter bytes_run_;                        // of these calls, and of batch words
  std::atomic<uint64_t> chunks_granted_{0};  // by service threads
  std::atomic<uint64_t> chunks_freed_{0};
  std::atomic<uint64_t> chunk_bytes_granted_{0};
  std::atomic<uint64_t> chunk_bytes_freed_{0};
  CounterSet counters_;  // last: reads the members above
};

}  // namespace cariama::internal

#endif  // CARIAMA_RIUTILS_INTERNAL_INCOMING_CALLS_H_
