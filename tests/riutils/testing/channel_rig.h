// A channel without a fabric: a RingSender and a ChannelReceiver over two connected devices. One
// test thread executes both ends and so determines the schedule.
//
//   ChannelRig rig({.transport = RigTransport::kSim, .seed = 7}, options);
//   rig.sender().send<false>(make_call([] { ... }), when);
//   rig.receive();                 // delivers transfers and runs calls
#ifndef CARIAMA_TESTS_RIUTILS_TESTING_CHANNEL_RIG_H_
#define CARIAMA_TESTS_RIUTILS_TESTING_CHANNEL_RIG_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "dtutils/allocators/general_allocator.h"
#include "dtutils/fault/fault_device.h"
#include "dtutils/transmitter.h"
#include "gtest/gtest.h"
#include "riutils/internal/channel_link.h"
#include "riutils/internal/channel_receiver.h"
#include "riutils/internal/incoming_map.h"
#include "riutils/internal/ring_sender.h"

namespace cariama::testing {

enum class RigTransport : uint8_t {
  kShm,
  kSim,
  // Simulated: WRITEs become visible in pieces, in any order that the ArrivalOrder behind each name
  // permits.
  kTornSim,    // kNone
  kWritesSim,  // kWrites
  kBytesSim,   // kBytes
  kWithinSim,  // kWithinWrite
  kBlockSim,   // kWithinBlocks
  kFaultShm,
  kFaultSim,
};

struct RigOptions {
  RigTransport transport = RigTransport::kSim;
  uint64_t seed = 1;
  Arrival arrival = Arrival::kPolled;
};
[[nodiscard]] std::string rig_name(const RigOptions& rig);
inline void PrintTo(const RigOptions& rig, std::ostream* out) { *out << rig_name(rig); }
// Returns every combination of a transport and an arrival mode that it supports.
[[nodiscard]] std::vector<RigOptions> every_rig();

class ChannelRig final : public internal::ChannelLink, public internal::ReceiverBackend {
 public:
  ChannelRig(const RigOptions& rig, const MessengerOptions& options);
  ~ChannelRig() override;

  [[nodiscard]] internal::RingSender& sender() { return *sender_; }
  // Returns nullptr before the first chunks are granted.
  [[nodiscard]] internal::ChannelReceiver* receiver() { return receiver_.get(); }

  // Delivers transfers, and runs at most `most` calls. Returns the number of calls that ran.
  size_t receive(size_t most = SIZE_MAX);
  // Receives until all accepted calls have been run. Returns false, and fails the test, if that
  // takes longer than kPatience or the channel breaks.
  [[nodiscard]] bool receive_all();
  // Delivers transfers without running calls.
  void deliver() { poll(); }
  // Returns the number of calls of `bytes` bytes, header included, that are published one by one in
  // a chunk.
  [[nodiscard]] size_t calls_per_chunk(size_t bytes) const;
  // Returns how the sender gets the number of consumed chunks: as MessengerOptions state, on an
  // ordered transport.
  [[nodiscard]] Consumption consumption() const;
  // Executes one round of the drain thread: drains deferred calls.
  void drain();

  // Recorded events.
  uint64_t granted = 0;
  uint64_t grants = 0;
  std::vector<uint64_t> chunk_bytes;  // of the granted chunks, in the order of granting
  uint64_t replacements = 0;
  uint64_t pushes = 0;
  uint64_t last_push = 0;
  uint64_t wakes = 0;
  uint64_t told = 0;  // number of times that waiters were woken for transmitted calls
  std::vector<uint64_t> lost_calls;  // the pending calls that the failed channel has ended
  uint64_t announcements = 0;
  uint64_t waits = 0;  // of the sender
  std::vector<std::string> breaks;
  std::vector<CallOutcome> outcomes;  // of all calls that finished() reported
  bool drain_wanted = false;

  // Answers of the ChannelLink.
  bool in_call = false;
  bool polls_while_waiting = true;  // whether the receiver runs calls while the sender waits
  absl::Status link_status;
  uint64_t grants_left = UINT64_MAX;  // number of chunks that the receiver still grants
  uint32_t most_per_grant = UINT32_MAX;
  std::function<void()> on_obtain;       // called while the sender obtains chunks
  std::function<void()> on_wait;         // called once, while the sender waits
  std::function<void()> on_push;         // called when the receiver pushes a count
  uint64_t pushes_to_fail = 0;           // of the next pushes
  std::function<void()> on_drain_later;  // called when the sender asks for the drain thread
  std::function<void()> on_finished;     // called when the receiver reports the end of a call
  bool grants_late = false;              // requests for chunks are not answered while this is set

  // ---- ChannelLink
  std::optional<absl::StatusOr<Path>> open() override;
  std::optional<absl::StatusOr<std::vector<Chunk>>> obtain(uint32_t count, uint64_t bytes) override;
  void announce(uint64_t words) override;
  void ring() override {
    ++wakes;
    doorbell.ring();
  }
  [[nodiscard]] absl::Status status() const override { return link_status; }
  [[nodiscard]] bool inside_call() const override { return in_call; }
  [[nodiscard]] bool wait(const std::function<bool()>& condition, Deadline deadline) override;
  void drain_later() override {
    if (on_drain_later) on_drain_later();
    drain_wanted = true;
  }
  void tell_waiters() override { ++told; }
  void carries(uint64_t awaited) override { carried_.push_back(awaited); }
  void lost(const absl::Status& why) override {
    EXPECT_FALSE(why.ok());
    lost_calls.insert(lost_calls.end(), carried_.begin(), carried_.end());
    carried_.clear();
  }
  absl::StatusOr<RDMAMemory> allocate(size_t bytes) override;
  void free(RDMAMemory&& memory) override;

  // ---- ReceiverBackend
  Taken take_chunks(uint32_t count, std::vector<std::span<std::byte>>& chunks) override;
  void replaced(std::span<std::byte> chunk) override;
  [[nodiscard]] bool push(uint64_t consumed_chunks) override;
  void finished(const NotifyTarget* notify, const IncomingCall& call,
                const std::string& result) override;
  void broken(std::string_view why) override;

  // The receiver's, if it is mapped.
  Doorbell doorbell;
  // Of both ends; nullptr unless the transport is kFaultShm or kFaultSim.
  std::shared_ptr<FaultControl> faults;

 private:
  struct End {
    std::shared_ptr<Device> device;
    std::shared_ptr<ProtectionDomain> domain;
    std::shared_ptr<CompletionQueue> receives;
    std::shared_ptr<RDMAAllocator> allocator;
    std::unique_ptr<GeneralAllocator> memory;
    std::unique_ptr<TransmitQueue> queue;
    std::unique_ptr<Transmitter> transmitter;
  };
  [[nodiscard]] static End make_end(std::shared_ptr<Device> device);
  void poll();

  uint64_t seen_ = 0;  // number of announcements received
  std::vector<uint64_t> carried_;
  const RigOptions rig_;
  const MessengerOptions options_;
  std::shared_ptr<void> fabric_;
  End near_;
  End far_;
  RDMAMemory control_;
  RDMAMemory push_word_;
  internal::IncomingMap<std::span<std::byte>> map_;
  std::vector<std::span<std::byte>> replaced_;
  std::unique_ptr<internal::RingSender> sender_;
  std::unique_ptr<internal::ChannelReceiver> receiver_;
  std::unique_ptr<Transmitter> drain_transmitter_;
};

}  // namespace cariama::testing

#endif  // CARIAMA_TESTS_RIUTILS_TESTING_CHANNEL_RIG_H_
