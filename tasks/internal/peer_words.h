// Checks of words that peers write: to their own memory, from which this worker reads them, or to
// the memory of this worker. A worker checks the words of the protocols before it uses them as
// indices, sizes or addresses. The functions access no memory but their arguments.
//
// The contents of frames are not checked: they contain return addresses, and the workers of a job
// trust each other with code.
#ifndef CARIAMA_TASKS_INTERNAL_PEER_WORDS_H_
#define CARIAMA_TASKS_INTERNAL_PEER_WORDS_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "tasks/internal/split_deque.h"
#include "tasks/join_record.h"

namespace cariama::tasks {

// Returns true if [address, address + bytes) lies in [begin, begin + length).
[[nodiscard]] constexpr bool lies_within(uint64_t address, uint64_t bytes, uint64_t begin,
                                         uint64_t length) {
  return bytes <= length && address >= begin && address - begin <= length - bytes;
}

// Return true if a worker of a job of `workers` workers can have written the words.
[[nodiscard]] constexpr bool is_possible(Reference reference, int workers) {
  return reference.rank() < workers;
}
[[nodiscard]] constexpr bool is_possible(const PublicEntry& entry, int workers) {
  return entry.sp < entry.top && is_possible(Reference(entry.report), workers) &&
         is_possible(Reference(entry.record), workers);
}
// A task that waits in a join record.
[[nodiscard]] constexpr bool is_possible(const Suspended& task, int workers) {
  return task.frames != 0 && task.sp < task.top && is_possible(Reference(task.frames), workers) &&
         is_possible(Reference(task.report), workers);
}
// The result of a child that has ended.
[[nodiscard]] constexpr bool is_possible(const TaskResult& result, int workers) {
  switch (result.kind) {
    case TaskResultKind::kValue:
      return result.bytes <= TaskResult::kInlineBytes && result.block == 0;
    case TaskResultKind::kFar:
    case TaskResultKind::kFailed:
      return result.block != 0 && is_possible(Reference(result.block), workers);
    default:
      return false;
  }
}

// Returns INTERNAL: `what` of the worker `peer` is malformed.
[[nodiscard]] absl::Status malformed_words(int peer, std::string_view what);

}  // namespace cariama::tasks

#endif  // CARIAMA_TASKS_INTERNAL_PEER_WORDS_H_
