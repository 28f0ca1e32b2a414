// An outgoing channel of a fabric: the ChannelLink through which its RingSender uses the fabric.
#ifndef CARIAMA_RIUTILS_INTERNAL_FABRIC_CHANNEL_H_
#define CARIAMA_RIUTILS_INTERNAL_FABRIC_CHANNEL_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "dsfabric/internal/question.h"
#include "riutils/call_interface.h"
#include "riutils/internal/channel_link.h"
#include "riutils/internal/ring_sender.h"
#include "riutils/internal/runtime.h"

namespace cariama::internal {

// Only the sending thread (its ChannelUser) may use it, except send_pending() (any thread) and the
// functions of RingSender that other threads may call.
class FabricChannel final : public OutgoingChannel,
                            public ChannelLink,
                            public std::enable_shared_from_this<FabricChannel> {
 public:
  // A channel of worker `index` of this process. `follows`: the serial number of the channel whose
  // calls the destination runs before those of this one, or 0. That channel's end was published.
  FabricChannel(Runtime& runtime, ThreadIndex index, ThreadId destination,
                const MessengerOptions& options, ChannelUser user = ChannelUser::kWorker,
                uint64_t follows = 0);
  ~FabricChannel() override;

  // ---- OutgoingChannel
  [[nodiscard]] RingSender& sender() override { return sender_; }
  [[nodiscard]] Fabric& fabric() override { return fabric_; }
  [[nodiscard]] ThreadId destination() const override { return destination_; }
  [[nodiscard]] Rank rank() const override { return rank_; }
  [[nodiscard]] absl::Status write_ahead(RDMAMemory& source, uint64_t offset, uint64_t bytes,
                                         const RemoteMemoryLocator& target, bool complete) override;

  // ---- ChannelLink
  [[nodiscard]] std::optional<absl::StatusOr<Path>> open() override;
  [[nodiscard]] std::optional<absl::StatusOr<std::vector<Chunk>>> obtain(uint32_t count,
                                                                         uint64_t bytes) override;
  [[nodiscard]] absl::Status unmapped() const override { return unmapped_; }
  void announce(uint64_t words) override;
  void ring() override;
  [[nodiscard]] absl::Status status() const override;
  [[nodiscard]] bool inside_call() const override;
  [[nodiscard]] bool wait(const std::function<bool()>& condition, Deadline deadline) override;
  [[nodiscard]] std::chrono::milliseconds retry_timeout() const override {
    return fabric_.options().retry_timeout;
  }
  void drain_later() override;
  void tell_waiters() override;
  void carries(uint64_t awaited) override;
  void lost(const absl::Status& why) override;
  void failed() override;
  [[nodiscard]] uint64_t trace_stream() const override {
    return trace_stream_of(fabric_.rank(), serial_);
  }
  [[nodiscard]] absl::StatusOr<RDMAMemory> allocate(size_t bytes) override;
  void free(RDMAMemory&& memory) override;

  // Retries the deferred calls, announcements and wake-ups that could not be sent immediately.
  // Returns true if all were sent. Blocks at most for a connection to the destination's process.
  bool send_pending(const std::function<Transmitter*()>& transmitter_of);

  // Wakes the thread that runs the calls of this channel's worker as soon as no call is deferred.
  // For ChannelUser::kForwarder, after a call was refused.
  void wake_when_drained() {
    if (!wake_worker_.exchange(true, std::memory_order_acq_rel)) runtime_.drain_later(this);
  }

  [[nodiscard]] uint32_t index() const { return index_; }
  [[nodiscard]] uint64_t serial() const { return serial_; }
  [[nodiscard]] const MessengerOptions& options() const { return options_; }
  [[nodiscard]] Runtime& runtime() { return runtime_; }

 private:
  [[nodiscard]] absl::StatusOr<Path> path_to(const PeerProperties& peer);
  // Sends the request for chunks unless it is in flight, and returns the answer, or nullopt until
  // it has come.
  [[nodiscard]] std::optional<absl::StatusOr<ChunkAnswer>> ask();
  // Returns the granted chunks, mapped if calls arrive so. Errors: RESOURCE_EXHAUSTED (this process
  // cannot map one of them), UNAVAILABLE (the peer).
  [[nodiscard]] absl::StatusOr<std::vector<Chunk>> recorded(const ChunkAnswer& answer);
  [[nodiscard]] std::byte* map(const RemoteMemoryLocator& remote);
  bool post_announcements();
  bool wake();

  Runtime& runtime_;
  Fabric& fabric_;
  const ThreadId destination_;
  const Rank rank_;        // of the destination's process
  const uint32_t worker_;  // the destination within it
  const uint32_t index_;   // of the sending worker
  const ChannelUser user_;
  const uint64_t serial_;
  const uint64_t follows_;
  const MessengerOptions options_;
  Arrival arrival_ = Arrival::kAuto;
  Consumption consumption_ = Consumption::kPull;  // of the path
  RDMAMemory control_;
  RemoteMemoryLocator control_name_;
  std::byte* doorbells_ = nullptr;  // those of the destination's process, if they are mapped
  // Requests that are not answered yet.
  std::unique_ptr<Question<PeerProperties>> properties_request_;
  std::unique_ptr<Question<ChunkAnswer>> asked_;
  uint32_t asked_count_ = 0;  // the number of chunks in the last request, and the bytes of each
  uint64_t asked_bytes_ = 0;
  // A grant that is not recorded yet: memory or descriptors were exhausted.
  std::optional<ChunkAnswer> received_;
  absl::Status unmapped_;  // the reason why a chunk of received_ could not be mapped
  std::chrono::steady_clock::time_point map_again_{};
  uint32_t number_ = 0;
  bool granted_ = false;
  std::atomic<uint64_t> unannounced_{0};
  std::atomic<bool> wake_wanted_{false};
  std::atomic<bool> wake_worker_{false};  // wake_when_drained()
  std::mutex announcing_;
  RingSender sender_;
};

}  // namespace cariama::internal

#endif  // CARIAMA_RIUTILS_INTERNAL_FABRIC_CHANNEL_H_
