// TaskOptions::check_closures: searches the closure of a child for pointers to locals of tasks.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "dtutils/error.h"
#include "tasks/context.h"
#include "tasks/internal/function_name.h"
#include "tasks/internal/must.h"
#include "tasks/internal/worker.h"

namespace cariama::tasks {

// The closure is read where the fork has it: in the parent's frame, or in two registers. The
// child's copy has the same bytes. A pointer of the closure to itself therefore points to the
// parent's frame, too. The frame of the function that forks begins above its saved context.
void Worker::check_closure(const FirstCall& child) {
  const uint64_t entry = fork_state().top[-1];
  const uint64_t sp = sp_of(entry);
  const uint64_t words[2] = {child.first, child.second};
  check_closure({child.bytes != 0 ? reinterpret_cast<const void*>(child.first) : words,
                 child.bytes != 0 ? child.bytes : sizeof words, entry & kClosureFlags,
                 sp + kContextBytes,
                 *reinterpret_cast<const uint64_t*>(sp + kReturnAddressOffset)});
}

void Worker::check_closure(const Closure& closure) {
  if (closure.flag == kClosureNotRead) return;
  const size_t count = closure.bytes / sizeof(uint64_t);
  const auto end = address_of(stack_end());
  for (size_t i = 0; i < count; ++i) {
    uint64_t word = 0;
    std::memcpy(&word, static_cast<const std::byte*>(closure.at) + i * sizeof word, sizeof word);
    // A word that points below the frame of the function is no pointer to a local: functions that
    // have returned left it behind.
    if (word >= closure.frame && word < end) return refuse_closure(closure);
  }
}

// Not inlined into check_closure(), whose frame lies below each fork.
[[gnu::cold, gnu::noinline]] void Worker::refuse_closure(const Closure& closure) {
  const bool sure = closure.flag == kClosureOfValues;
  if (!sure && !reported_closures_.insert(closure.code).second) return;
  const absl::Status error = make_error(
      absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
      absl::StrFormat("%s spawned a task with a pointer or reference to a local of a task%s",
                      function_at(closure.code), sure ? "" : ", or with bytes that were never set"),
      "pass values: the local may be in another process when the child uses it "
      "(TaskOptions::check_closures)");
  if (sure) end_job(error);
  std::fprintf(stderr, "cariama tasks: rank %d: %s\n", rank(),
               std::string(error.message()).c_str());
}

[[gnu::noinline]] void check_value(const void* value, size_t bytes, uint64_t flag) {
  if (this_worker == nullptr || !this_worker->in_task() || !this_worker->checks_closures()) return;
  this_worker->check_closure({value, bytes, flag, address_of(__builtin_frame_address(0)),
                              address_of(__builtin_return_address(0))});
}

}  // namespace cariama::tasks
