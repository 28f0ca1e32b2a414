#include "riutils/broadcast.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "dsfabric/buffer_pull.h"
#include "dsfabric/internal/call_failures.h"
#include "dsfabric/internal/call_source.h"
#include "dsfabric/send_call.h"
#include "dtutils/error.h"
#include "dtutils/internal/peer_remedy.h"
#include "dtutils/trace.h"
#include "riutils/channel_sender.h"
#include "riutils/internal/broadcast_tree.h"
#include "riutils/internal/broadcast_wire.h"
#include "riutils/internal/runtime.h"
#include "riutils/messenger_options.h"

namespace cariama::internal {
namespace {

using Buffer = BroadcastPart::Buffer;

void receive_broadcast(const BroadcastPart& part, std::string payload, BroadcastRoute* route);

// Bytes of a message besides the payload: the headers of the message and of the call, the part, the
// length of the payload.
constexpr size_t kAroundPayload = sizeof(BroadcastPart) + 64;

// Bytes of an answer besides the text of an error.
constexpr size_t kAroundText = 128;

[[nodiscard]] absl::Status lost_parent(const Fabric& fabric, uint32_t parent,
                                       std::string_view what) {
  return make_error(absl::StatusCode::kUnavailable, ErrorScope::kPeer,
                    "the " + std::string(what) + " of a broadcast could not be READ from " +
                        fabric.label(parent) + ", the parent in the tree",
                    peer_remedy(PeerRemedy::kEnded));
}

// READs memory of the process that sent the running call; `function` runs on it in a thread of the
// fabric, or is destroyed if the memory cannot be READ.
void pull(const RemoteMemoryLocator& source, std::unique_ptr<PulledFunction> function) {
  if (!can_be_pulled(source)) return;
  IncomingCall call;
  try {
    pull_and_run(call, source, Pulling::kAsync, std::move(function));
  } catch (const std::exception&) {
    // The destructor of `function` reports the error.
  }
}

// Reports the end of a process's part to its parent.
void answer_parent(Fabric& fabric, uint32_t parent, uint64_t handle, const absl::Status& status) {
  const NotifyTarget target{handle, 0, parent, 0};
  const size_t room = fabric.options().receive_unit_bytes - kAroundText;
  answer_call(fabric, parent, &target, {},
              encode_broadcast_answer(status, std::min(kMaxErrorText, room)));
}

// One process's part of a broadcast. Destroyed when the process's threads have run the call and its
// children have answered; the destructor reports the end.
class Node : public std::enable_shared_from_this<Node> {
 public:
  // `targets`: locators of the process's subtree, by place in the tree, or empty.
  Node(Fabric& fabric, const BroadcastPart& part, std::string function,
       std::vector<RemoteMemoryLocator> targets)
      : fabric_(fabric),
        part_(part),
        tree_(part.root, fabric.size()),
        place_(tree_.place_of(fabric.rank())),
        function_(std::move(function)),
        targets_(std::move(targets)) {}
  ~Node() {
    if (copy_.get_buffer() != nullptr) fabric_.memory().free_or_keep(std::move(copy_));
    for (RDMAMemory& payload : payloads_) {
      fabric_.memory().free_or_keep(std::move(payload));
    }
    if (ended_) ended_(status_);
  }

  void on_end(std::function<void(const absl::Status&)> ended) { ended_ = std::move(ended); }
  // Sets the buffer: `at` is passed to the threads of this process, `memory` at `offset` is the
  // source for the children.
  void set_buffer(void* at, RDMAMemory* memory, uint64_t offset) {
    buffer_ = at;
    memory_ = memory;
    offset_ = offset;
  }
  // Copies fetched bytes into registered memory, which lives as long as this node. Returns false if
  // there is none: the node then reports the error, and must not be started.
  [[nodiscard]] bool keep(const void* bytes, uint64_t size) {
    auto memory = fabric_.memory().allocate(std::max<uint64_t>(size, 1));
    if (!memory.ok()) {
      fail(memory.status());
      return false;
    }
    copy_ = *std::move(memory);
    if (size != 0) std::memcpy(copy_.get_buffer(), bytes, size);
    set_buffer(copy_.get_buffer(), &copy_, 0);
    return true;
  }
  // Uses the target memory that the parent has written as the buffer. The children are served from
  // a registered copy of it. Returns false if there is no registered memory, as keep() does.
  [[nodiscard]] bool adopt_target() {
    const RemoteMemoryLocator& own = targets_.front();
    if (const absl::Status can_be = check_target(fabric_.rank(), own, part_.size); !can_be.ok()) {
      fail(can_be);
      return false;
    }
    void* const place = reinterpret_cast<void*>(own.address);
    if (!tree_.children(place_).empty() && !keep(place, part_.size)) return false;
    buffer_ = place;
    return true;
  }
  // Returns the first error of this part so far.
  [[nodiscard]] absl::Status status() {
    const std::lock_guard lock(mutex_);
    return status_;
  }
  // Stores the first error of this part. Ignores OK.
  void fail(const absl::Status& status) {
    const std::lock_guard lock(mutex_);
    if (status_.ok()) status_ = status;
  }

  // Forwards the broadcast to the children, then sends the call to each thread of this process.
  // Returns the first error of these sends.
  absl::Status start(BroadcastRoute* route) {
    absl::Status first;
    for (const uint64_t child : tree_.children(place_)) first.Update(send(child, route));
    for (uint32_t i = 0; i < fabric_.threads(); ++i) {
      // The call owns a reference to this node. It never leaves this process.
      auto* const self = new std::shared_ptr<Node>(shared_from_this());
      absl::Status sent = call(fabric_, fabric_.thread_of(fabric_.rank(), i), [self] {
        const std::unique_ptr<std::shared_ptr<Node>> node(self);
        (*node)->run_here();
      });
      if (sent.ok()) continue;
      delete self;
      first.Update(sent);
    }
    if (!first.ok()) fail(first);
    return first;
  }

 private:
  // child: a place in the tree.
  [[nodiscard]] absl::Status send(uint64_t child, BroadcastRoute* route);
  [[nodiscard]] absl::Status send_part(uint32_t rank, BroadcastPart& part,
                                       const std::string& payload, BroadcastRoute* route);
  // Places the payload in registered memory that lives as long as this node.
  [[nodiscard]] absl::StatusOr<RemoteMemoryLocator> place(uint32_t rank,
                                                          const std::string& payload);

  void run_here() {
    std::vector<uint64_t> closure;
    if (part_.buffer != Buffer::kNone) {
      closure = {reinterpret_cast<uint64_t>(buffer_), part_.size};
    }
    const size_t front = closure.size();
    closure.resize(front + (function_.size() + 7) / 8);
    if (!function_.empty()) std::memcpy(&closure[front], function_.data(), function_.size());
    IncomingCall incoming;
    incoming.closure = std::as_writable_bytes(std::span(closure));
    run_call(CallHeader::make(part_.id, incoming.closure.size(), 0), incoming);
    if (incoming.outcome == CallOutcome::kDone) return;
    fail(make_error(absl::StatusCode::kInternal, ErrorScope::kOperation,
                    incoming.outcome == CallOutcome::kThrew
                        ? "a broadcast call threw at " + fabric_.label(fabric_.rank()) + ": " +
                              describe_exception(incoming.error_type, incoming.error_text)
                        : fabric_.label(fabric_.rank()) + " found a broadcast call malformed"));
  }

  Fabric& fabric_;
  const BroadcastPart part_;
  const BroadcastTree tree_;
  const uint64_t place_;  // of this process
  const std::string function_;
  const std::vector<RemoteMemoryLocator> targets_;
  void* buffer_ = nullptr;
  RDMAMemory* memory_ = nullptr;
  uint64_t offset_ = 0;
  RDMAMemory copy_;
  std::vector<RDMAMemory> payloads_;
  std::mutex mutex_;
  absl::Status status_;
  std::function<void(const absl::Status&)> ended_;
};

absl::StatusOr<RemoteMemoryLocator> Node::place(uint32_t rank, const std::string& payload) {
  auto memory = fabric_.memory().allocate(payload.size());
  if (!memory.ok()) return memory.status();
  std::memcpy(memory->get_buffer(), payload.data(), payload.size());
  payloads_.push_back(*std::move(memory));
  return locate_for(fabric_, rank, payloads_.back(), 0, payload.size());
}

absl::Status Node::send_part(uint32_t rank, BroadcastPart& part, const std::string& payload,
                             BroadcastRoute* route) {
  const auto forward = [&](const std::string& inlined) {
    if (route != nullptr) return route->forward(rank, part, inlined);
    return service_call(
               fabric_, rank,
               [part](std::string bytes) { receive_broadcast(part, std::move(bytes), nullptr); },
               inlined)
        .status();
  };
  if (payload.size() + kAroundPayload <= fabric_.options().receive_unit_bytes) {
    absl::Status sent = forward(payload);
    if (!absl::IsInvalidArgument(sent) || payload.empty()) return sent;
  }
  auto placed = place(rank, payload);
  if (!placed.ok()) return placed.status();
  part.payload = *placed;
  return forward({});
}

absl::Status Node::send(uint64_t child, BroadcastRoute* route) {
  const Rank rank = tree_.rank_of(child);
  const TraceScope trace("riutils", "broadcast: send to child", "rank", rank);
  BroadcastPart part = part_;
  part.payload = {};
  part.function_bytes = function_.size();
  std::string payload = function_;
  if (part.buffer == Buffer::kPull) {
    auto named = locate_for(fabric_, rank, *memory_, offset_, part.size);
    if (!named.ok()) return named.status();
    part.source = *named;
  } else if (part.buffer == Buffer::kPlaced) {
    const auto subtree = std::span(targets_).subspan(child - place_, tree_.subtree_size(child));
    // A route may store the call into mapped memory, which no queue pair orders after the data, and
    // may store it later. So the WRITE has to be complete before.
    absl::Status written = write_ahead(fabric_, rank, *memory_, offset_, part.size, subtree.front(),
                                       /*complete=*/route != nullptr);
    if (!written.ok()) return written;
    payload.append(reinterpret_cast<const char*>(subtree.data()), subtree.size_bytes());
  }
  // The callback owns a reference to this node until the child has answered.
  part.handle = expect_answer(
      fabric_, rank,
      [self = shared_from_this()](const absl::Status& ended, std::span<const std::byte> result) {
        self->fail(ended.ok() ? decode_broadcast_answer(result) : ended);
      });
  // A route may store into the memory of a failed process, whose failure ends the expected answers
  // once: look only after the answer is expected.
  absl::Status sent = fabric_.peer_status(rank);
  if (sent.ok()) sent = send_part(rank, part, payload, route);
  if (!sent.ok()) static_cast<void>(forget_answer(fabric_, rank, part.handle));
  return sent;
}

// Starts the part of a process that has received its payload. Requires: is_possible().
void start_part(const BroadcastPart& part, std::string payload, uint32_t parent,
                BroadcastRoute* route) {
  Fabric& fabric = *running_fabric();
  std::vector<RemoteMemoryLocator> targets = take_targets(part, payload);
  auto node = std::make_shared<Node>(fabric, part, std::move(payload), std::move(targets));
  node->on_end([&fabric, parent, handle = part.handle](const absl::Status& status) {
    answer_parent(fabric, parent, handle, status);
  });
  if (part.buffer == Buffer::kPull) {
    // The READ is asynchronous: the service thread must not wait.
    class StartWithBuffer final : public PulledFunction {
     public:
      StartWithBuffer(const Fabric& fabric, uint32_t parent, std::shared_ptr<Node> node)
          : fabric_(fabric), parent_(parent), node_(std::move(node)) {}
      ~StartWithBuffer() override {
        if (!ran_) node_->fail(lost_parent(fabric_, parent_, "buffer"));
      }
      void run(void* buffer, uint64_t size) override {
        ran_ = true;
        if (!node_->keep(buffer, size)) return;
        static_cast<void>(node_->start(nullptr));  // the node reports the error
      }

     private:
      const Fabric& fabric_;
      const uint32_t parent_;
      std::shared_ptr<Node> node_;
      bool ran_ = false;
    };
    return pull(part.source, std::make_unique<StartWithBuffer>(fabric, parent, node));
  }
  if (part.buffer == Buffer::kPlaced && !node->adopt_target()) return;
  static_cast<void>(node->start(route));  // the node reports the error
}

// Receives a part. Children are served through `route`, or by service calls if it is nullptr.
void receive_broadcast(const BroadcastPart& part, std::string payload, BroadcastRoute* route) {
  const uint32_t parent = running_source();
  Fabric& fabric = *running_fabric();
  const bool inlined = part.payload.length == 0;
  if (!is_possible(part, inlined ? payload.size() : part.payload.length, fabric.rank(), parent,
                   fabric.size())) {
    reject_call(fabric, parent, "a broadcast is malformed");
    return answer_parent(fabric, parent, part.handle,
                         make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                                    fabric.label(fabric.rank()) + " found a broadcast malformed"));
  }
  if (inlined) return start_part(part, std::move(payload), parent, route);
  class StartWithPayload final : public PulledFunction {
   public:
    StartWithPayload(Fabric& fabric, const BroadcastPart& part, uint32_t parent)
        : fabric_(fabric), part_(part), parent_(parent) {}
    ~StartWithPayload() override {
      if (!ran_)
        answer_parent(fabric_, parent_, part_.handle, lost_parent(fabric_, parent_, "function"));
    }
    void run(void* buffer, uint64_t size) override {
      ran_ = true;
      start_part(part_, std::string(static_cast<const char*>(buffer), size), parent_, nullptr);
    }

   private:
    Fabric& fabric_;
    const BroadcastPart part_;
    const uint32_t parent_;
    bool ran_ = false;
  };
  pull(part.payload, std::make_unique<StartWithPayload>(fabric, part, parent));
}

}  // namespace

absl::Status BroadcastRoute::forward(Rank rank, const BroadcastPart& part,
                                     const std::string& payload) {
  const auto call = make_call(
      [part, kind = kind_](std::string bytes) {
        // The route of the worker to which this call was sent, if the worker itself runs it.
        Fabric& fabric = *running_fabric();
        const ThreadContext* const thread = fabric.this_thread();
        BroadcastRoute* const route =
            thread == nullptr ? nullptr
                              : Runtime::of(fabric).broadcast_routes()->find(thread->index(), kind);
        receive_broadcast(part, std::move(bytes), route);
      },
      payload);
  const auto& owning = owned(call);
  OutgoingCall outgoing = OutgoingCall::of(owning);
  outgoing.awaited = part.handle;
  return send(rank, outgoing).status();
}

std::shared_ptr<void> add_broadcast_route(ThreadContext& thread, BroadcastRoute& route) {
  std::shared_ptr<BroadcastRoutes> routes = Runtime::of(thread.fabric()).broadcast_routes();
  routes->add(thread.index(), route.kind(), route);
  return {&route, [routes](BroadcastRoute* gone) { routes->remove(*gone); }};
}

absl::Status start_broadcast(Fabric& fabric, BroadcastRoute* route,
                             const BroadcastFunction& function, const BroadcastBuffer* buffer,
                             const EventReceiver& transmitted, const EventReceiver& consumed) {
  if (fabric.finalized()) {
    return make_error(absl::StatusCode::kUnavailable, ErrorScope::kProcess,
                      "the fabric was finalized");
  }
  BroadcastPart part;
  part.root = fabric.rank();
  part.id = function.id;
  std::vector<RemoteMemoryLocator> targets;
  if (function.id.value == 0) {
    return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kOperation,
                      "the function of this broadcast is in a library that was loaded after the "
                      "fabric was created",
                      "load the library first");
  }
  const MemoryRange* range = nullptr;
  std::span<const std::byte> bytes;
  if (buffer != nullptr) {
    range = std::get_if<MemoryRange>(&buffer->source);
    if (range == nullptr) bytes = std::get<std::span<const std::byte>>(buffer->source);
    if ((range != nullptr && !check_range(range->memory, range->offset, range->size).ok()) ||
        (!buffer->targets.empty() && buffer->targets.size() != fabric.size())) {
      return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                        range != nullptr && range->memory == nullptr
                            ? "the memory passed to broadcast_buffer is nullptr"
                            : "the range passed to broadcast_buffer exceeds its memory, or there "
                              "is not one target per process",
                        "check source, offset, size and targets");
    }
    part.size = range != nullptr ? range->size : bytes.size();
    part.buffer = buffer->targets.empty() ? Buffer::kPull : Buffer::kPlaced;
    for (size_t i = 0; i < buffer->targets.size(); ++i) {
      targets.push_back(buffer->targets[(part.root + i) % buffer->targets.size()]);
    }
  }
  auto node = std::make_shared<Node>(fabric, part, function.bytes, std::move(targets));
  if (range != nullptr) {
    node->set_buffer(range->memory->get_buffer() + range->offset, range->memory, range->offset);
  } else if (buffer != nullptr && !node->keep(bytes.data(), bytes.size())) {
    return node->status();
  }
  node->on_end([consumed, &fabric](const absl::Status& status) {
    if (consumed || status.ok()) return consumed.complete(status);
    std::fprintf(stderr, "cariama: rank %u: a broadcast failed: %s\n", fabric.rank().value(),
                 std::string(status.message()).c_str());
  });
  absl::Status sent = node->start(route);
  if (consumed) {  // `consumed` reports the error
    transmitted.complete(sent);
    return absl::OkStatus();
  }
  if (!sent.ok()) {
    node->on_end({});  // the caller gets the error
    return sent;
  }
  transmitted.complete(absl::OkStatus());
  return absl::OkStatus();
}

}  // namespace cariama::internal
