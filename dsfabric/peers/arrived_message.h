// Messages of the send-based path, as their receiver has them.
#ifndef CARIAMA_DSFABRIC_PEERS_ARRIVED_MESSAGE_H_
#define CARIAMA_DSFABRIC_PEERS_ARRIVED_MESSAGE_H_

#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "dsfabric/call_encoding.h"
#include "dsfabric/peers/inbox.h"

namespace cariama::internal {

class Connection;

// Precedes the call in a send-based message.
struct MessageHeader {
  uint32_t destination;  // index of a worker of the receiver, or kService
  uint32_t source;       // global id of the calling thread, or kNoThread
};
static_assert(sizeof(MessageHeader) == 8);

// A call that has arrived, in its receive unit or buffered in its own memory. After it has run, its
// receive unit is posted again, or its memory is freed.
struct ArrivedMessage : InboxNode {
  Connection* connection = nullptr;  // owner of the unit; nullptr: buffered in own memory
  std::byte* bytes = nullptr;        // MessageHeader and call
  uint32_t size = 0;
  uint32_t rank = 0;   // of the sending process
  bool waits = false;  // for its destination thread (Connection::mark_waiting)
  uint64_t arrow = 0;  // id of the message's arrow in a trace, or 0
  // If set: the call has run, and this outcome is still to be sent (Dispatch::answer_again).
  std::optional<CallOutcome> unanswered{};
  // If set: not a call, but a coroutine of this process to resume.
  std::coroutine_handle<> resume{};
};

// A message in its own memory: a call within the process, or a buffered one.
struct OwnMessage : ArrivedMessage {
  OwnMessage(size_t bytes_of_it, uint32_t from)
      : storage(std::make_unique<uint64_t[]>((bytes_of_it + 7) / 8)) {
    bytes = reinterpret_cast<std::byte*>(storage.get());
    size = static_cast<uint32_t>(bytes_of_it);
    rank = from;
  }
  std::unique_ptr<uint64_t[]> storage;
};

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_PEERS_ARRIVED_MESSAGE_H_
