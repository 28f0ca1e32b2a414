#include "riutils/broadcast.h"

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "dsfabric/buffer_pull.h"
#include "dsfabric/call_source.h"
#include "dsfabric/send_call.h"
#include "dtutils/error.h"

namespace cariama::internal {
namespace {

// The header of a broadcast; travels together with the function's bytes.
struct Plan {
  uint32_t root = 0;
  FunctionId id;
  uint64_t handle = 0;  // the parent's handle for this process's answer
  uint64_t size = 0;    // of the buffer
  enum class Buffer : uint8_t { kNone, kPull, kPlaced } buffer = Buffer::kNone;
  RemoteMemoryLocator source;  // kPull: the parent's copy
};
static_assert(std::is_trivially_copyable_v<Plan>);

// One process's part of a broadcast. Destroyed when the process's threads have run the call and its
// children have answered; the destructor reports the end.
class Node : public std::enable_shared_from_this<Node> {
 public:
  Node(Fabric& fabric, const Plan& plan, std::string function, std::string targets)
      : fabric_(fabric),
        plan_(plan),
        function_(std::move(function)),
        targets_(std::move(targets)) {}
  ~Node() {
    if (copy_.get_buffer() != nullptr) static_cast<void>(fabric_.memory().free(copy_));
    ended_(status_);
  }

  void on_end(std::function<void(const absl::Status&)> ended) { ended_ = std::move(ended); }
  // Sets the buffer: `at` is passed to the threads of this process, `memory` at `offset` is the
  // source for the children.
  void set_buffer(void* at, RDMAMemory* memory, uint64_t offset) {
    buffer_ = at;
    memory_ = memory;
    offset_ = offset;
  }
  // Copies fetched bytes into registered memory, which lives as long as this node.
  void keep(const void* bytes, uint64_t size) {
    auto memory = fabric_.memory().allocate(size);
    if (!memory.ok()) return fail(memory.status());
    copy_ = *memory;
    std::memcpy(copy_.get_buffer(), bytes, size);
    set_buffer(copy_.get_buffer(), &copy_, 0);
  }
  // Uses the target memory that the parent has written as the buffer. The children are served from
  // a registered copy of it.
  void adopt_target() {
    void* const place = reinterpret_cast<void*>(target(fabric_.rank()).address);
    if (plan_.size > target(fabric_.rank()).length) {
      return fail(make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                             "the target of a broadcast is too short"));
    }
    if (!children().empty()) keep(place, plan_.size);
    buffer_ = place;
  }
  void fail(const absl::Status& status) {
    const std::lock_guard lock(mutex_);
    if (status_.ok()) status_ = status;
  }

  // Forwards the broadcast to the children, then sends the call to each thread of this process.
  void start() {
    forward();
    const uint32_t first = fabric_.rank() * fabric_.threads();
    for (uint32_t i = 0; i < fabric_.threads(); ++i) {
      // The call owns a reference to this node. It never leaves this process.
      auto* const self = new std::shared_ptr<Node>(shared_from_this());
      if (absl::Status sent = call(fabric_, first + i,
                                   [self] {
                                     const std::unique_ptr<std::shared_ptr<Node>> node(self);
                                     (*node)->run_here();
                                   });
          !sent.ok()) {
        fail(sent);
        delete self;
      }
    }
  }

 private:
  [[nodiscard]] RemoteMemoryLocator target(uint32_t rank) const {
    RemoteMemoryLocator locator;
    std::memcpy(&locator, targets_.data() + rank * sizeof locator, sizeof locator);
    return locator;
  }

  void forward() {
    for (const uint32_t child : children()) send(child);
  }

  // Binomial tree. With ranks counted from the root, process v has the children v + 2^i for all 2^i
  // below the lowest set bit of v (for the root: below the number of processes). The child with the
  // largest subtree comes first.
  [[nodiscard]] std::vector<uint32_t> children() const {
    std::vector<uint32_t> ranks;
    const uint64_t size = fabric_.size();
    const uint64_t self = (fabric_.rank() + size - plan_.root) % size;
    uint64_t bit = 1;
    while (bit < size && (self & bit) == 0) bit <<= 1;
    for (bit >>= 1; bit != 0; bit >>= 1) {
      if (self + bit < size) {
        ranks.push_back(static_cast<uint32_t>((self + bit + plan_.root) % size));
      }
    }
    return ranks;
  }

  void send(uint32_t child);

  void run_here() {
    std::vector<uint64_t> closure;
    if (plan_.buffer != Plan::Buffer::kNone) {
      closure = {reinterpret_cast<uint64_t>(buffer_), plan_.size};
    }
    const size_t front = closure.size();
    closure.resize(front + (function_.size() + 7) / 8);
    if (!function_.empty()) std::memcpy(&closure[front], function_.data(), function_.size());
    IncomingCall incoming;
    incoming.closure = std::as_writable_bytes(std::span(closure));
    run_call(CallHeader::make(plan_.id, incoming.closure.size(), 0), incoming);
    if (incoming.outcome == CallOutcome::kDone) return;
    fail(make_error(absl::StatusCode::kInternal, ErrorScope::kOperation,
                    incoming.outcome == CallOutcome::kThrew
                        ? "a broadcast call threw " + incoming.error_type + " at " +
                              fabric_.label(fabric_.rank()) + ": " + incoming.error_text
                        : "a broadcast call is malformed"));
  }

  Fabric& fabric_;
  const Plan plan_;
  const std::string function_;
  const std::string targets_;
  void* buffer_ = nullptr;
  RDMAMemory* memory_ = nullptr;
  uint64_t offset_ = 0;
  RDMAMemory copy_;
  std::mutex mutex_;
  absl::Status status_;
  std::function<void(const absl::Status&)> ended_;
};

// Starts this process's part of a broadcast, which has arrived from its parent.
void receive(Plan plan, std::string function, std::string targets) {
  Fabric& fabric = *running_fabric();
  const uint32_t parent = running_source();
  if (plan.root >= fabric.size() ||
      (!targets.empty() && targets.size() != fabric.size() * sizeof(RemoteMemoryLocator))) {
    return reject_call(fabric, parent, "a broadcast is malformed");
  }
  auto node = std::make_shared<Node>(fabric, plan, std::move(function), std::move(targets));
  node->on_end([&fabric, parent, handle = plan.handle](const absl::Status& status) {
    const NotifyTarget target{handle, 0, parent, 0};
    IncomingCall call;
    if (!status.ok()) {
      call.outcome = CallOutcome::kThrew;
      call.error_type = "cariama::BroadcastFailed";
      call.error_text = std::string(status.message()).substr(0, kMaxErrorText);
    }
    answer_call(fabric, parent, &target, call, "");
  });
  if (plan.buffer == Plan::Buffer::kPull) {
    // The READ is asynchronous: the service thread must not wait.
    class Fetched final : public PulledFunction {
     public:
      explicit Fetched(std::shared_ptr<Node> node) : node_(std::move(node)) {}
      void run(void* buffer, uint64_t size) override {
        node_->keep(buffer, size);
        node_->start();
      }

     private:
      std::shared_ptr<Node> node_;
    };
    IncomingCall call;
    try {
      pull_and_run(call, plan.source, Pulling::kAsync, std::make_unique<Fetched>(node));
    } catch (const std::exception& error) {
      node->fail(make_error(absl::StatusCode::kUnavailable, ErrorScope::kPeer, error.what()));
    }
    return;
  }
  if (plan.buffer == Plan::Buffer::kPlaced) node->adopt_target();
  node->start();
}

void Node::send(uint32_t child) {
  Plan plan = plan_;
  absl::Status status;
  if (plan.buffer == Plan::Buffer::kPull) {
    auto named = locate_for(fabric_, child, *memory_, offset_, plan.size);
    if (named.ok()) {
      plan.source = *named;
    } else {
      status = named.status();
    }
  } else if (plan.buffer == Plan::Buffer::kPlaced) {
    status = write_ahead(fabric_, child, *memory_, offset_, plan.size, target(child));
  }
  if (status.ok()) {
    // The callback owns a reference to this node until the child has answered.
    plan.handle =
        expect_answer(fabric_, child, [self = shared_from_this()](const absl::Status& ended) {
          if (!ended.ok()) self->fail(ended);
        });
    status = service_call(
        fabric_, child,
        [plan](std::string function, std::string targets) {
          receive(plan, std::move(function), std::move(targets));
        },
        nullptr, function_, targets_);
    if (!status.ok()) static_cast<void>(forget_answer(fabric_, child, plan.handle));
  }
  if (!status.ok()) fail(status);
}

}  // namespace

absl::Status start_broadcast(Fabric& fabric, const BroadcastFunction& function,
                             const BroadcastBuffer& buffer, Synchronizer* transmitted,
                             Synchronizer* consumed) {
  if (fabric.finalized()) {
    return make_error(absl::StatusCode::kUnavailable, ErrorScope::kProcess,
                      "the fabric was finalized");
  }
  Plan plan;
  plan.root = fabric.rank();
  plan.id = function.id;
  std::string targets;
  if (function.id.value == 0) {
    return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kOperation,
                      "the function of this broadcast is in a library that was loaded after the "
                      "fabric was created",
                      "load the library first");
  }
  if (buffer.memory != nullptr) {
    if (buffer.offset > buffer.memory->size() ||
        buffer.size > buffer.memory->size() - buffer.offset ||
        (!buffer.targets.empty() && buffer.targets.size() != fabric.size())) {
      return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                        "the range passed to broadcast_buffer exceeds its memory, or there is not "
                        "one target per process",
                        "check offset, size and targets");
    }
    plan.size = buffer.size;
    plan.buffer = buffer.targets.empty() ? Plan::Buffer::kPull : Plan::Buffer::kPlaced;
    if (!buffer.targets.empty()) {
      targets.assign(reinterpret_cast<const char*>(buffer.targets.data()),
                     buffer.targets.size_bytes());
    }
  }
  auto node = std::make_shared<Node>(fabric, plan, function.bytes, std::move(targets));
  if (buffer.memory != nullptr) {
    node->set_buffer(buffer.memory->get_buffer() + buffer.offset, buffer.memory, buffer.offset);
  }
  node->on_end([consumed](const absl::Status& status) {
    if (consumed == nullptr) return;
    if (status.ok()) {
      consumed->decrease();
    } else {
      consumed->fail(status);
    }
  });
  node->start();
  if (transmitted != nullptr) transmitted->decrease();
  return absl::OkStatus();
}

}  // namespace cariama::internal
