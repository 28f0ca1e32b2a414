// Whether processes are alike enough for a stack of one to run in another.
//
// A stack holds return addresses, pointers to functions, vtables and constants, and the canary of
// the stack protector; compilers keep addresses of thread_local variables in registers. All must
// mean the same in every worker. Processes forked from one have that, and so have those that
// start_workers() has started (start.h). The canary of the stack protector is switched together
// with the stack on x86-64 (context.h): there it need not be equal.
#ifndef CARIAMA_TASKS_INTERNAL_IDENTITY_H_
#define CARIAMA_TASKS_INTERNAL_IDENTITY_H_

#include <cstdint>
#include <string>

#include "tasks/runtime.h"

namespace cariama::tasks {

// Plain data, exchanged between workers.
struct Identity {
  uint64_t code = 0;         // of a function of this library
  uint64_t libraries = 0;    // a digest of where each one lies that the program was linked with
  uint64_t program = 0;      // where the program was loaded
  uint64_t c_library = 0;    // of a function of it
  uint64_t cpp_runtime = 0;  // of a vtable of it
  uint64_t canary = 0;       // of the stack protector
  uint64_t thread = 0;       // the thread pointer
  uint64_t stack_bytes = 0;  // TaskOptions
  uint64_t scheme = 0;       // TaskOptions; kIso: iso_stack_bytes
};

[[nodiscard]] Identity this_identity(const TaskOptions& options);

// "" if a stack may move between the two; else what differs, and what helps.
[[nodiscard]] std::string difference(const Identity& mine, const Identity& theirs);

}  // namespace cariama::tasks

#endif  // CARIAMA_TASKS_INTERNAL_IDENTITY_H_
