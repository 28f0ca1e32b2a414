// Two connected queue pairs. The control segment of one of them is overwritten between operations,
// as a hostile peer or a stray store of an honest peer may do: before the other end reads it in
// connect(), while the other end takes receives from it, and before the owner reads back what
// arrived.
//
// For any stores, these conditions must hold: nothing outside of the owner's registered memory is
// written, every send completes, and every receive completes at most once and with no more bytes
// than its capacity. (Key tables are not overwritten: within one process they are trusted, and
// between processes the descriptor determines the mapped memory.)
//
// Longest input: 128 bytes.
#include <sys/mman.h>

#include <array>
#include <bit>
#include <chrono>
#include <map>
#include <memory>
#include <vector>

#include "dtutils/device.h"
#include "dtutils/shm/address.h"
#include "dtutils/shm/control_segment.h"
#include "tests/fuzz/fuzz_input.h"

namespace cariama::shm {
namespace {

constexpr size_t kPage = 4096;
constexpr uint32_t kDepth = 4;
constexpr uint32_t kSegments = 2;

// Four pages: a guard page, a registered page, a guard page, and a read-only page that is
// registered for remote reads.
class Memory {
 public:
  Memory()
      : base_(static_cast<std::byte*>(
            mmap(nullptr, 4 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
    require(mprotect(base_ + 3 * kPage, kPage, PROT_READ) == 0);
  }
  [[nodiscard]] MemorySource writable() const { return {base_ + kPage, kPage}; }
  [[nodiscard]] MemorySource read_only() const { return {base_ + 3 * kPage, kPage}; }
  void check_guards() const {
    for (size_t i = 0; i < kPage; ++i) {
      require(base_[i] == std::byte{0} && base_[2 * kPage + i] == std::byte{0});
    }
  }

 private:
  std::byte* base_;
};

struct Node {
  Node()
      : device(*open_device({.transport = Transport::kShm})),
        domain(*device->create_domain()),
        region(*domain->register_memory(memory.writable(), Access::kAll)),
        read_only(*domain->register_memory(memory.read_only(), Access::kRemoteRead)) {}

  [[nodiscard]] Segment segment(size_t offset, uint32_t length) const {
    return {region->address() + offset, length, region->local_key()};
  }

  Memory memory;
  std::shared_ptr<Device> device;
  std::shared_ptr<ProtectionDomain> domain;
  std::shared_ptr<MemoryRegion> region;
  std::shared_ptr<MemoryRegion> read_only;
};

// One end of the connection.
struct End {
  explicit End(const Node& node)
      : completions(*node.domain->create_completion_queue({.depth = 64})) {
    QueuePairOptions options;
    options.send_completions = options.receive_completions = completions;
    options.send_depth = options.receive_depth = kDepth;
    options.max_receive_segments = kSegments;
    queue_pair = *node.domain->create_queue_pair(options);
  }
  std::shared_ptr<CompletionQueue> completions;
  std::unique_ptr<QueuePair> queue_pair;
};

// Keeps the link of a device to a peer, so that not each input maps and unmaps its tables. The peer
// is honest: the link to the other device has a table for each domain that its hostile words name,
// and ends with its input.
class LastingLink {
 public:
  LastingLink(const Node& of, const Node& to) : of_(of), to_(to) {
    require(of_.queue_pair->connect(to_.queue_pair->address(), {.peer = "fuzz"}).ok());
  }

 private:
  End of_;
  End to_;
};

class Scene {
 public:
  Scene() : near_(node(0)), far_(node(1)), address_(*decode(far_.queue_pair->address())) {
    [[maybe_unused]] static const LastingLink* const lasting = new LastingLink(node(1), node(0));
    control_ = find_local_segment(address_.device)->base();
    header_ = &queue_pair_table(control_)[address_.index];
    // Read now, because later stores may change these offsets.
    areas_ = {{reinterpret_cast<std::byte*>(header_), sizeof *header_},
              {control_ + header_->receive_queue,
               receive_queue_bytes(std::bit_ceil(kDepth), kDepth, kSegments)},
              {control_ + header_->receive_ring, header_->ring_entries * sizeof(ReceiveRingEntry)},
              {control_ + header_->completion_queue, sizeof(SharedCompletionQueue)}};
  }

  void connect(FuzzInput& input) {
    const ConnectOptions options{.peer = "fuzz",
                                 .retry_count = 0,
                                 .ack_timeout = std::chrono::milliseconds(0),
                                 .receiver_retry_count = 0};
    Address address = address_;
    if (const auto change = input.take<uint8_t>(); change % 8 == 7) {
      address.index = input.take<uint32_t>();
      address.serial = input.take<uint32_t>();
    }
    static_cast<void>(near_.queue_pair->connect(encode(address), options));
    static_cast<void>(far_.queue_pair->connect(near_.queue_pair->address(), options));
  }

  void store(FuzzInput& input) {
    const auto [at, bytes] = areas_[input.take<uint8_t>() % areas_.size()];
    const size_t word = input.take<uint8_t>() % (bytes / sizeof(uint64_t));
    const auto form = input.take<uint8_t>();
    auto value = input.take<uint64_t>();
    if (form % 8 == 1) value = node(1).read_only->remote_key().value;
    if (form % 8 == 2) value = node(1).region->remote_key().value;
    if (form % 8 == 3) value = reinterpret_cast<uint64_t>(node(1).region->address()) + value % 8192;
    if (form % 8 == 4) {
      value = reinterpret_cast<uint64_t>(node(1).read_only->address()) + value % 8192;
    }
    if (form % 8 == 5) value %= 256;
    std::memcpy(at + word * sizeof value, &value, sizeof value);
  }

  void post_receive(uint32_t length) {
    std::array<Segment, kSegments> segments = {node(1).segment(0, length % 64),
                                               node(1).segment(2048, length)};
    const ReceiveRequest request{
        .id = next_id_, .segments = segments.data(), .segment_count = kSegments};
    if (far_.queue_pair->post_receive(request).ok()) {
      receives_.emplace(next_id_++, length % 64 + length);
    }
  }

  void post_send(Opcode opcode, uint32_t length) {
    const Segment segment = node(0).segment(0, length % 1024);
    const WorkRequest request{.id = ++next_send_,
                              .opcode = opcode,
                              .flags = kSignaled,
                              .segment_count = 1,
                              .segments = &segment,
                              .remote_address = node(1).region->locator().address,
                              .remote_key = node(1).region->remote_key()};
    if (near_.queue_pair->post_send(request).ok()) ++sends_;
  }

  void poll() {
    std::array<Completion, 8> done;
    const size_t sent = near_.completions->poll(done);
    for (size_t i = 0; i < sent; ++i) {
      require(done[i].id > last_send_ && sends_-- > 0);
      last_send_ = done[i].id;
    }
    const size_t received = far_.completions->poll(done);
    for (size_t i = 0; i < received; ++i) {
      const auto it = receives_.find(done[i].id);
      require(it != receives_.end());
      if (done[i].status == CompletionStatus::kSuccess && done[i].kind == CompletionKind::kReceive)
        require(done[i].bytes <= it->second);
      require(done[i].status <= CompletionStatus::kUnknown);
      receives_.erase(it);
    }
  }

  void finish() {
    near_.queue_pair->fail();
    for (int i = 0; i < 8 && sends_ > 0; ++i) poll();
    require(sends_ == 0);
    node(0).memory.check_guards();
    node(1).memory.check_guards();
  }

 private:
  struct Area {
    std::byte* at;
    size_t bytes;
  };

  static const Node& node(size_t index) {
    static const auto* const nodes = new std::array<Node, 2>;
    return (*nodes)[index];
  }

  End near_;
  End far_;
  Address address_;
  std::byte* control_;
  QueuePairHeader* header_;
  std::vector<Area> areas_;
  std::map<uint64_t, uint64_t> receives_;  // posted receives: id → capacity
  uint64_t next_id_ = 1;
  uint64_t next_send_ = 0;
  uint64_t last_send_ = 0;
  int sends_ = 0;
};

}  // namespace
}  // namespace cariama::shm

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using cariama::Opcode;
  cariama::FuzzInput input(data, size);
  cariama::shm::Scene scene;
  for (int stores = input.take<uint8_t>() % 4; stores > 0; --stores) scene.store(input);
  scene.connect(input);
  while (!input.empty()) {
    const auto step = input.take<uint8_t>();
    switch (step % 8) {
      case 0:
      case 1:
        scene.post_receive(input.take<uint16_t>() % 1024);
        break;
      case 2:
      case 3:
        scene.post_send(Opcode::kSend, input.take<uint16_t>());
        break;
      case 4:
        scene.post_send(Opcode::kWriteImmediate, input.take<uint16_t>());
        break;
      case 5:
        scene.poll();
        break;
      default:
        scene.store(input);
    }
  }
  scene.finish();
  return 0;
}
