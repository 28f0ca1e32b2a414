#include "tests/riutils/testing/channel_rig.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <thread>
#include <utility>

#include "dtutils/shm/shm_device.h"
#include "dtutils/sim/sim_fabric.h"
#include "tests/dtutils/contract/harness.h"

namespace cariama::testing {
namespace {

using internal::ChannelControl;
using internal::chunk_capacity;
constexpr uint64_t kChannel = 42;
constexpr uint32_t kReceives = 64;

ArrivalOrder order_of(RigTransport transport) {
  switch (transport) {
    case RigTransport::kTornSim:
      return ArrivalOrder::kNone;
    case RigTransport::kBytesSim:
      return ArrivalOrder::kBytes;
    case RigTransport::kWithinSim:
      return ArrivalOrder::kWithinWrite;
    case RigTransport::kBlockSim:
      return ArrivalOrder::kWithinBlocks;
    default:
      return ArrivalOrder::kWrites;
  }
}

}  // namespace

std::string rig_name(const RigOptions& rig) {
  static constexpr std::array<const char*, 9> kNames = {"shm",        "sim",       "torn_sim",
                                                        "writes_sim", "bytes_sim", "within_sim",
                                                        "block_sim",  "fault_shm", "fault_sim"};
  return std::string(kNames[static_cast<size_t>(rig.transport)]) + "_" +
         std::string(arrival_name(rig.arrival)) + "_" + std::to_string(rig.seed);
}

std::vector<RigOptions> every_rig() {
  return {{RigTransport::kShm, 1, Arrival::kMapped},
          {RigTransport::kShm, 1, Arrival::kPolled},
          {RigTransport::kShm, 1, Arrival::kEvent},
          {RigTransport::kSim, 1, Arrival::kPolled},
          {RigTransport::kSim, 1, Arrival::kEvent},
          {RigTransport::kTornSim, 1, Arrival::kEvent},
          {RigTransport::kWritesSim, 1, Arrival::kPolled},
          {RigTransport::kBytesSim, 1, Arrival::kPolled},
          {RigTransport::kBytesSim, 1, Arrival::kTrailing},
          {RigTransport::kWithinSim, 1, Arrival::kTrailing},
          {RigTransport::kWithinSim, 1, Arrival::kEvent},
          {RigTransport::kBlockSim, 1, Arrival::kEvent},
          {RigTransport::kFaultShm, 1, Arrival::kPolled},
          {RigTransport::kFaultShm, 1, Arrival::kEvent},
          {RigTransport::kFaultSim, 1, Arrival::kPolled},
          {RigTransport::kFaultSim, 1, Arrival::kEvent}};
}

ChannelRig::End ChannelRig::make_end(std::shared_ptr<Device> device) {
  End end;
  end.device = std::move(device);
  end.domain = must(end.device->create_domain());
  end.receives = must(end.domain->create_completion_queue({.depth = 4 * kReceives}));
  end.allocator = must(RDMAAllocator::create({end.domain}, kAnyNode, {.chunk_bytes = 64u << 10}));
  end.memory = must(GeneralAllocator::create(end.allocator, {}));
  end.queue = must(TransmitQueue::create(
      *end.domain,
      {.receive_completions = end.receives, .send_depth = 64, .receive_depth = kReceives}));
  for (uint32_t i = 0; i < kReceives; ++i) {
    if (!end.queue->queue_pair().post_receive(ReceiveRequest{}).ok()) ADD_FAILURE();
  }
  end.transmitter = std::make_unique<Transmitter>(must(Transmitter::create(*end.queue)));
  return end;
}

ChannelRig::ChannelRig(const RigOptions& rig, const MessengerOptions& options)
    : rig_(rig), options_(options) {
  must(FunctionTable::build());
  std::shared_ptr<Device> near_device;
  std::shared_ptr<Device> far_device;
  if (rig.transport == RigTransport::kShm || rig.transport == RigTransport::kFaultShm) {
    near_device = must(open_device({.transport = Transport::kShm}));
    far_device = must(open_device({.transport = Transport::kShm}));
  } else {
    auto fabric = std::make_shared<SimFabric>(SimOptions{
        .seed = rig.seed,
        .jitter = std::chrono::nanoseconds(500),
        .write_order = order_of(rig.transport),
        .torn_spread = std::chrono::nanoseconds(rig.transport == RigTransport::kSim ||
                                                        rig.transport == RigTransport::kFaultSim
                                                    ? 0
                                                    : 2000)});
    near_device = fabric->create_endpoint();
    far_device = fabric->create_endpoint();
    fabric_ = fabric;
  }
  if (rig.transport == RigTransport::kFaultShm || rig.transport == RigTransport::kFaultSim) {
    faults = std::make_shared<FaultControl>();
    near_device = make_fault_device(near_device, FaultOptions::benign(rig.seed), faults);
    far_device = make_fault_device(far_device, FaultOptions::benign(rig.seed + 1000), faults);
  }
  near_ = make_end(std::move(near_device));
  far_ = make_end(std::move(far_device));
  must(near_.queue->queue_pair().connect(far_.queue->queue_pair().address(), {.peer = "far"}));
  must(far_.queue->queue_pair().connect(near_.queue->queue_pair().address(), {.peer = "near"}));
  drain_transmitter_ = std::make_unique<Transmitter>(must(Transmitter::create(*near_.queue)));
  control_ = must(near_.memory->allocate(2 * sizeof(ChannelControl)));
  std::memset(control_.get_buffer(), 0, control_.size());
  push_word_ = must(far_.memory->allocate(sizeof(uint64_t)));
  sender_ = std::make_unique<internal::RingSender>(*this, options, "far");
}

ChannelRig::~ChannelRig() {
  sender_.reset();
  for (int i = 0; i < 100; ++i) {
    near_.queue->progress();
    far_.queue->progress();
  }
  for (const std::span<std::byte> chunk : replaced_) {
    const auto behind = chunk.subspan(sizeof(uint64_t));
    EXPECT_TRUE(std::all_of(behind.begin(), behind.end(), [](std::byte byte) {
      return byte == std::byte{0xa5};
    })) << "the sender has written to a chunk that was replaced";
  }
  receiver_.reset();
  drain_transmitter_.reset();
  for (End* end : {&near_, &far_}) {
    end->transmitter.reset();
    end->queue.reset();
  }
}

Consumption ChannelRig::consumption() const {
  return orders_writes(near_.queue->queue_pair().write_order()) ? options_.consumption
                                                                : Consumption::kPull;
}

void ChannelRig::poll() {
  near_.queue->progress();
  far_.queue->progress();
  std::array<Completion, 16> batch;
  const size_t count = far_.receives->poll(batch);
  for (size_t i = 0; i < count; ++i) {
    EXPECT_EQ(batch[i].status, CompletionStatus::kSuccess);
    receiver_->announced(batch[i].immediate);
    ++seen_;
    EXPECT_TRUE(far_.queue->queue_pair().post_receive(ReceiveRequest{}).ok());
  }
}

size_t ChannelRig::receive(size_t most) {
  poll();
  return receiver_ != nullptr ? receiver_->run(most) : 0;
}

bool ChannelRig::receive_all() {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (std::chrono::steady_clock::now() < deadline) {
    if (drain_wanted) drain();
    receive();
    if (receiver_ != nullptr && receiver_->consumed_bytes() == sender_->accepted_bytes()) {
      return true;
    }
    if (receiver_ != nullptr && receiver_->ended()) break;
    std::this_thread::yield();
  }
  ADD_FAILURE() << "the receiver has run "
                << (receiver_ != nullptr ? receiver_->consumed_bytes() : 0) << " bytes of "
                << sender_->accepted_bytes() << (breaks.empty() ? "" : ": " + breaks.back());
  return false;
}

size_t ChannelRig::calls_per_chunk(size_t bytes) const {
  const size_t trailing = rig_.arrival == Arrival::kTrailing ? sizeof(uint64_t) : 0;
  return (chunk_capacity(options_.chunk_bytes) - trailing) / (bytes + trailing);
}

void ChannelRig::drain() {
  const bool inside = std::exchange(in_call, false);  // the drain thread is never inside a call
  drain_wanted = !sender_->drain([this] { return drain_transmitter_.get(); });
  in_call = inside;
}

std::optional<absl::StatusOr<internal::ChannelLink::Path>> ChannelRig::open() {
  Path path;
  path.arrival = rig_.arrival;
  path.transmitter = near_.transmitter.get();
  path.doorbell = rig_.arrival == Arrival::kMapped ? &doorbell : nullptr;
  path.allocator = near_.allocator;
  path.control = &control_;
  path.consumption = consumption();
  return path;
}

std::optional<absl::StatusOr<std::vector<internal::ChannelLink::Chunk>>> ChannelRig::obtain(
    uint32_t count, uint64_t bytes) {
  if (on_obtain) on_obtain();
  if (grants_late) return std::nullopt;
  if (!link_status.ok()) return link_status;
  if (grants_left == 0) return absl::ResourceExhaustedError("the rig grants no more");
  count = static_cast<uint32_t>(std::min<uint64_t>({count, most_per_grant, grants_left}));
  grants_left -= count;
  ++grants;
  granted += count;
  std::vector<Chunk> chunks;
  std::vector<std::span<std::byte>> first;
  for (uint32_t i = 0; i < count; ++i) {
    const RDMAMemory memory = must(far_.memory->allocate(bytes));
    const std::span<std::byte> chunk(memory.get_buffer(), bytes);
    chunk_bytes.push_back(bytes);
    // Chunks are never cleared as a whole: their old content must not matter.
    std::memset(memory.get_buffer(), 0x5a, memory.size());
    internal::ChannelReceiver::prepare(chunk, rig_.arrival);
    const RemoteMemoryLocator locator = memory.locator(far_.domain.get()).slice(0, bytes);
    std::byte* mapped = nullptr;
    if (rig_.arrival == Arrival::kMapped) {
      mapped = near_.queue->queue_pair().direct_access(locator);
      EXPECT_NE(mapped, nullptr);
    }
    chunks.push_back({locator, mapped});
    if (receiver_ == nullptr) {
      first.push_back(chunk);
    } else {
      map_.insert(map_.prepare(kChannel, chunk));
    }
  }
  if (receiver_ == nullptr) {
    receiver_ =
        std::make_unique<internal::ChannelReceiver>(*this, rig_.arrival, consumption(), 0, first);
  }
  return chunks;
}

void ChannelRig::announce(uint64_t words) {
  while (words != 0) {
    const auto part = static_cast<uint32_t>(std::min<uint64_t>(words, 100));
    // Like the credits of a fabric: never more events in flight than posted receives.
    while (announcements - seen_ >= kReceives / 2) poll();
    EXPECT_TRUE(near_.transmitter->notify(part).ok());
    ++announcements;
    words -= part;
  }
}

bool ChannelRig::wait(const std::function<bool()>& condition, Deadline deadline) {
  ++waits;
  const Deadline patience = std::min(deadline, deadline_after(kPatience));
  while (!condition()) {
    if (std::chrono::steady_clock::now() >= patience) {
      if (deadline == kForever) ADD_FAILURE() << "the sender's wait does not end";
      return false;
    }
    poll();
    if (const auto once = std::exchange(on_wait, nullptr)) once();
    if (!polls_while_waiting) continue;
    if (receiver_ != nullptr) receiver_->run(3);
    if (drain_wanted) drain();
  }
  return true;
}

absl::StatusOr<RDMAMemory> ChannelRig::allocate(size_t bytes) {
  return near_.memory->allocate(bytes);
}
void ChannelRig::free(RDMAMemory&& memory) { must(near_.memory->free(std::move(memory))); }

internal::ReceiverBackend::Taken ChannelRig::take_chunks(
    uint32_t count, std::vector<std::span<std::byte>>& chunks) {
  map_.absorb();
  if (map_.count(kChannel) < count) return map_.is_absorbed() ? Taken::kMissing : Taken::kNotYet;
  for (uint32_t i = 0; i < count; ++i) chunks.push_back(map_.extract(kChannel));
  return Taken::kTaken;
}

// The next channel may use the chunk: a READ that is still in flight would get another count.
void ChannelRig::replaced(std::span<std::byte> chunk) {
  ++replacements;
  std::memset(chunk.data(), 0xa5, chunk.size());
  const uint64_t count = receiver_->consumed_chunks() + 1;
  std::memcpy(chunk.data(), &count, sizeof count);
  replaced_.push_back(chunk);
}

bool ChannelRig::push(uint64_t consumed_chunks) {
  if (on_push) on_push();
  if (pushes_to_fail != 0) {
    --pushes_to_fail;
    return false;
  }
  ++pushes;
  last_push = consumed_chunks;
  std::memcpy(push_word_.get_buffer(), &consumed_chunks, sizeof consumed_chunks);
  const RemoteMemoryLocator control = control_.locator(near_.domain.get());
  EXPECT_TRUE(
      far_.transmitter
          ->write(push_word_, 0, sizeof consumed_chunks, control.slice(0, sizeof consumed_chunks))
          .ok());
  return true;
}

void ChannelRig::finished(const NotifyTarget*, const IncomingCall& call, const std::string&) {
  if (on_finished) on_finished();
  outcomes.push_back(call.outcome);
}

void ChannelRig::broken(std::string_view why) { breaks.emplace_back(why); }

}  // namespace cariama::testing
