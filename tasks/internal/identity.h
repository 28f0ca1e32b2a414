// Identity: the properties of a process that must be equal in all workers, so that a stack of one
// worker can run in another, and the options with which workers steal and join.
//
// A stack contains return addresses, pointers to functions, vtables and constants, and the canary
// of the stack protector. Compilers keep addresses of thread_local variables in registers. All of
// them must be valid in every worker. Processes forked from one process satisfy this, and so do
// processes that start_workers() has started (start.h). On x86-64 the canary is switched together
// with the stack (context.h) and need not be equal. On AArch64 return addresses may be signed
// (pointer authentication) with keys that a process gets when it executes a program.
#ifndef CARIAMA_TASKS_INTERNAL_IDENTITY_H_
#define CARIAMA_TASKS_INTERNAL_IDENTITY_H_

#include <cstdint>
#include <string>

#include "tasks/runtime.h"

namespace cariama::tasks {

// Plain data, exchanged between workers.
struct Identity {
  uint64_t code = 0;         // address of a function of this library
  uint64_t libraries = 0;    // digest of the addresses of all libraries loaded at program start
  uint64_t builds = 0;       // digest of the build ids of the program and these libraries
  uint64_t program = 0;      // address of the program's entry point
  uint64_t c_library = 0;    // address of a function of the C library
  uint64_t cpp_runtime = 0;  // address of a vtable of the C++ runtime
  uint64_t canary = 0;       // canary of the stack protector
  uint64_t keys = 0;         // digest of signatures of pointer authentication; 0 on x86-64
  uint64_t thread = 0;       // thread pointer
  uint64_t stack_bytes = 0;  // TaskOptions::stack_bytes
  uint64_t scheme = 0;       // TaskOptions::scheme; with kIso, iso_stack_bytes
  uint64_t deque = 0;        // TaskOptions::deque
  uint64_t atomics = 0;      // TaskOptions::atomics
};

[[nodiscard]] Identity this_identity(const TaskOptions& options);

// Returns "" if a stack can move between the two processes. Otherwise returns a text that names the
// first difference and the remedy.
[[nodiscard]] std::string difference(const Identity& mine, const Identity& theirs);

}  // namespace cariama::tasks

#endif  // CARIAMA_TASKS_INTERNAL_IDENTITY_H_
