// What processes send each other along the tree of a broadcast: to a child its part and payload, to
// the parent the status of the subtree.
#ifndef CARIAMA_RIUTILS_INTERNAL_BROADCAST_WIRE_H_
#define CARIAMA_RIUTILS_INTERNAL_BROADCAST_WIRE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "dsfabric/function_table.h"
#include "dtutils/memory.h"

namespace cariama::internal {

// The part of a broadcast that a process receives from its parent in the tree, beside the payload:
// the function's bytes, then the targets of the process's subtree.
struct BroadcastPart {
  uint32_t root = 0;
  FunctionId id;
  uint64_t handle = 0;  // the parent's handle for this process's answer
  uint64_t size = 0;    // of the buffer
  uint64_t function_bytes = 0;
  enum class Buffer : uint8_t { kNone, kPull, kPlaced } buffer = Buffer::kNone;
  RemoteMemoryLocator source;   // kPull: the parent's copy
  RemoteMemoryLocator payload;  // where the payload is READ; length 0: it came with the part
};
static_assert(std::is_trivially_copyable_v<BroadcastPart>);

// Returns true if process `parent` can have sent this part, with a payload of `bytes` bytes, to
// process `rank` of a job of `processes`: `parent` is the parent in the tree; the payload has the
// function and, for Buffer::kPlaced, one target for each process of the subtree; the buffer's
// locator has the buffer's size. The function and the targets are not checked: run_call() and
// check_target() do that.
[[nodiscard]] bool is_possible(const BroadcastPart& part, uint64_t bytes, uint32_t rank,
                               uint32_t parent, uint32_t processes);
// Removes the targets of the subtree from a payload, which then is the function. Returns them by
// place: the first is the process's own. Requires: is_possible(part, payload.size(), ...).
[[nodiscard]] std::vector<RemoteMemoryLocator> take_targets(const BroadcastPart& part,
                                                            std::string& payload);

// Returns the bytes of an answer. OK is no bytes. An error is its code, its scope and at most
// `most_text` bytes of its text, so that it is the same at the root as where it occurred.
[[nodiscard]] std::string encode_broadcast_answer(const absl::Status& status, size_t most_text);
// Returns the status in an answer. DATA_LOSS: the bytes are no answer.
[[nodiscard]] absl::Status decode_broadcast_answer(std::span<const std::byte> bytes);

}  // namespace cariama::internal

#endif  // CARIAMA_RIUTILS_INTERNAL_BROADCAST_WIRE_H_
