// The answer of a process to its parent in the tree of a broadcast: the status of its subtree.
#ifndef CARIAMA_RIUTILS_INTERNAL_BROADCAST_WIRE_H_
#define CARIAMA_RIUTILS_INTERNAL_BROADCAST_WIRE_H_

#include <cstddef>
#include <span>
#include <string>

#include "absl/status/status.h"

namespace cariama::internal {

// Returns the bytes of an answer. OK is no bytes. An error is its code, its scope and at most
// `most_text` bytes of its text, so that it is the same at the root as where it occurred.
[[nodiscard]] std::string encode_broadcast_answer(const absl::Status& status, size_t most_text);
// Returns the status in an answer. DATA_LOSS: the bytes are no answer.
[[nodiscard]] absl::Status decode_broadcast_answer(std::span<const std::byte> bytes);

}  // namespace cariama::internal

#endif  // CARIAMA_RIUTILS_INTERNAL_BROADCAST_WIRE_H_
