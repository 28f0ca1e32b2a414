// The writer of a channel: writes calls into the receiver's chunks. There is one implementation per
// arrival mode, chosen when the channel is set up.
//
//   mapped    Calls are built in the receiver's chunk, which this process maps. Storing the
//             publishing word (a call's header, or a batch word) with release order publishes them.
//   trailing  Calls are built in an image of the chunk (staging memory). One WRITE transfers them,
//             from the publishing word to the trailing word.
//   polled    Calls are built in an image. Everything behind the publishing word is WRITTEN first,
//             then the publishing word.
//   event     Calls are built in an image and transferred by one WRITE; an event then announces the
//             number of words.
//
// The steps of a chunk: begin(), then any number of publish() and publish_copy(),
// then end(). Each publication also notifies the receiver: with event always, with the
// other modes if it sleeps.
#ifndef CARIAMA_RIUTILS_INTERNAL_CHUNK_WRITER_H_
#define CARIAMA_RIUTILS_INTERNAL_CHUNK_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtutils/transmitter.h"
#include "riutils/channel_sender.h"
#include "riutils/internal/backlog.h"
#include "riutils/internal/channel_link.h"
#include "riutils/internal/chunk_ring.h"

namespace cariama::internal {

// Thread-compatible; the channel's mutex guards it, except that the owner calls publish() without
// the mutex while the window is open. A `transmitter` belongs to the calling thread; the mapped
// writer does not use it. The queue pair orders the transfers of a channel, whichever thread posts
// them. A post may wait for a free slot of the send queue.
class ChunkWriter {
 public:
  // Chooses the writer for the path. `link` and `path` must outlive it; `peer` names the receiver
  // in error texts. Errors: those of CircularAllocator::create.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<ChunkWriter>> create(
      ChannelLink& link, const ChannelLink::Path& path, uint64_t chunk_bytes,
      const std::string& peer);
  virtual ~ChunkWriter() = default;

  // Begins a chunk: base() is then the address at which it is built. Never blocks. Returns false if
  // transfers of earlier chunks have to complete first.
  [[nodiscard]] virtual absl::StatusOr<bool> begin(Transmitter* transmitter,
                                                   const ChannelLink::Chunk& chunk) = 0;
  // Publishes the calls in [first, next). Requires: they are complete, the publishing word at
  // `first` included, and the word at `next` is 0. `produced` is the offset of `next` in the
  // stream, end markers included.
  [[nodiscard]] virtual absl::Status publish(Transmitter* transmitter, std::byte* first,
                                             std::byte* next, uint64_t produced) = 0;
  // Publishes calls that are encoded in other registered memory, at `at` + copy_front().
  // `produced` is the offset of the end of the calls.
  [[nodiscard]] virtual absl::Status publish_copy(Transmitter* transmitter,
                                                  const Backlog::Run& calls, std::byte* at,
                                                  uint64_t produced) = 0;
  // Publishes the end marker at `at`. As publish() and publish_copy(), has published nothing if it
  // throws (no memory), and may be called again.
  [[nodiscard]] virtual absl::Status end(Transmitter* transmitter, CallHeader marker, std::byte* at,
                                         uint64_t produced) = 0;
  // Returns the position of the next call after a publication that ended at `next`; may advance
  // base(). Requires the mutex.
  [[nodiscard]] virtual std::byte* resume(std::byte* next) { return next; }
  // Returns true if resume() always returns its argument, so that the caller need not call it.
  [[nodiscard]] virtual bool resumes_in_place() const { return true; }
  // Called when the receiver's process has failed, so that the next publication returns this error.
  virtual void peer_died() {}

  // Return the number of bytes that a publication takes in the chunk besides its calls: in front of
  // the calls of publish_copy(), and behind the calls of every publication.
  [[nodiscard]] ptrdiff_t copy_front() const { return copy_front_; }
  [[nodiscard]] ptrdiff_t tail() const { return tail_; }
  // Returns the address of the chunk's first byte; nullptr before the first begin(). For the image
  // of a polled chunk: the address from which offsets in the chunk count.
  [[nodiscard]] std::byte* base() const { return base_; }
  [[nodiscard]] uint64_t wakes() const { return wakes_; }
  [[nodiscard]] uint64_t events() const { return events_; }

 protected:
  std::byte* base_ = nullptr;
  ptrdiff_t copy_front_ = 0;
  ptrdiff_t tail_ = 0;
  Relaxed<uint64_t> wakes_;   // wake-ups of a sleeping receiver
  Relaxed<uint64_t> events_;  // events that announced a publication
};

}  // namespace cariama::internal

#endif  // CARIAMA_RIUTILS_INTERNAL_CHUNK_WRITER_H_
