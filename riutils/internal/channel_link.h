// The interface by which the sending end of a channel uses its environment to reach the receiver.
// Implemented by FabricChannel and by tests.
#ifndef CARIAMA_RIUTILS_INTERNAL_CHANNEL_LINK_H_
#define CARIAMA_RIUTILS_INTERNAL_CHANNEL_LINK_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtutils/allocators/rdma_allocator.h"
#include "dtutils/memory.h"
#include "dtutils/transmitter.h"
#include "dtutils/wait.h"
#include "riutils/internal/chunk_ring.h"
#include "riutils/messenger_options.h"

namespace cariama::internal {

class ChannelLink {
 public:
  // Properties of the path to the receiver, known after open().
  struct Path {
    Arrival arrival = Arrival::kMapped;  // never kAuto
    Transmitter* transmitter = nullptr;  // the owner's; unused if arrival is kMapped
    Doorbell* doorbell = nullptr;        // the receiver's, if arrival is kMapped
    // True if the receiver cannot make this process execute a memory barrier (register_ringers()):
    // the sender must execute one between the publishing store and the load of the doorbell.
    bool fence = false;
    // kPull if the transport does not order successive WRITEs: a count that the receiver pushed
    // earlier could replace a later one.
    Consumption consumption = Consumption::kPush;
    std::shared_ptr<RDMAAllocator> allocator{};  // for staging memory, if not mapped
    // Registered, with write access for the peer: two cache lines of ChannelControl, then two of
    // scratch memory. Belongs to the link. Never nullptr.
    RDMAMemory* control = nullptr;
  };
  struct Chunk {
    [[nodiscard]] uint64_t bytes() const { return remote.length; }

    RemoteMemoryLocator remote;
    std::byte* mapped = nullptr;  // the chunk in this address space, if Path::arrival is kMapped
  };

  virtual ~ChannelLink() = default;

  // open() and obtain() each send a request to the receiver's process unless one is in flight, and
  // return its answer, or nullopt until it has come. They never wait for the answer. They may wait
  // for a connection to the process, and then run incoming calls. Called by one thread at a time.

  // Exchanges properties with the peer and returns the path. Must succeed once before obtain() is
  // called.
  [[nodiscard]] virtual std::optional<absl::StatusOr<Path>> open() = 0;
  // Requests one grant: the receiver's process allocates at least one and at most `count` more
  // chunks of `bytes` bytes, and inserts them into the receiver's incoming memory map in the
  // returned order. The receiver's ring begins with the chunks of the first grant. Later grants
  // become members by the end markers that report them, so the caller must report chunks in the
  // order of granting. The receiving thread itself is not involved. While a request is in flight,
  // both arguments are ignored: the answer to that request is returned. Errors: RESOURCE_EXHAUSTED
  // (no memory for a single chunk), UNAVAILABLE. After an error no chunk was inserted.
  [[nodiscard]] virtual std::optional<absl::StatusOr<std::vector<Chunk>>> obtain(
      uint32_t count, uint64_t bytes) = 0;

  // Returns the reason why obtain() returned nullopt although the chunks were granted, or OK: this
  // process cannot map them now. obtain() tries again.
  [[nodiscard]] virtual absl::Status unmapped() const { return absl::OkStatus(); }

  // Arrival::kEvent: sends an event behind all transfers posted so far; it reports to the receiver
  // that `words` more 8-byte words have arrived. Never blocks. Without memory the event is sent
  // later.
  virtual void announce(uint64_t words) = 0;
  // Rings the doorbell of the receiver, which is armed. Never blocks: an event for a receiver whose
  // doorbell is not mapped may be sent later, but it is not lost.
  virtual void ring() = 0;
  // Returns OK, or the reason why the receiver cannot be reached any more.
  [[nodiscard]] virtual absl::Status status() const = 0;
  // Returns true if the calling thread is running a call, so that it must not wait for peers.
  [[nodiscard]] virtual bool inside_call() const = 0;
  // Blocks until the condition holds or the deadline has passed; runs incoming calls meanwhile.
  // Returns true if the condition holds.
  [[nodiscard]] virtual bool wait(const std::function<bool()>& condition, Deadline deadline) = 0;
  // Returns the limit of the time for which a call with Retry waits for room, or 0
  // (FabricOptions::retry_timeout).
  [[nodiscard]] virtual std::chrono::milliseconds retry_timeout() const { return {}; }
  // Makes a drain thread call RingSender::drain() repeatedly until it returns true.
  virtual void drain_later() = 0;
  // Returns the number of the channel in a trace, which its receiver knows too
  // (ReceiverBackend::trace_stream()). This number and the offset of a publication determine the id
  // of the publication's arrow.
  [[nodiscard]] virtual uint64_t trace_stream() const { return 0; }
  // Wakes threads that sleep until calls are transmitted. May resume coroutines of the calling
  // thread, which may send further calls: call it without a lock.
  virtual void tell_waiters() {}
  // The channel is about to take a call for whose end the pending call `awaited` of this process
  // waits (OutgoingCall::awaited, not 0).
  virtual void carries(uint64_t awaited) { static_cast<void>(awaited); }
  // The channel has failed: ends the pending calls of carries(), unless they have ended, with the
  // error. Their calls may have run. Called without a lock.
  virtual void lost(const absl::Status& why) { static_cast<void>(why); }
  // The channel has failed after it was opened, so that calls may be lost. Called with the
  // channel's mutex locked.
  virtual void failed() {}
  // Allocates registered memory for deferred calls.
  [[nodiscard]] virtual absl::StatusOr<RDMAMemory> allocate(size_t bytes) = 0;
  virtual void free(RDMAMemory&& memory) = 0;
};

}  // namespace cariama::internal

#endif  // CARIAMA_RIUTILS_INTERNAL_CHANNEL_LINK_H_
