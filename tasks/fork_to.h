// fork_to<child, flags, bytes>(first, second) forks a child. It saves the caller's context, pushes
// its stack pointer + flags to the deque, and calls child(first, second, &cariama_fork_state,
// entry). It returns the result of the child or, if the caller was stolen, returns in the thief
// (ForkResult in context.h has both cases). `bytes` is the size of the closure that `first` points
// to, or 0 if `first` is a value. Not for users; they call spawn() of task.h.
//
// On x86-64 each child function has its own instance of the fork, so that all calls in it are
// direct. An indirect call (through the table of a shared library, or to a function given as an
// argument) costs as much as the rest of a fork (docs/tasks.md has figures). On other processors
// fork_to() calls cariama_fork(), which gets the child function as an argument.
#ifndef CARIAMA_TASKS_FORK_TO_H_
#define CARIAMA_TASKS_FORK_TO_H_

#include <cstddef>
#include <cstdint>

#include "tasks/context.h"

namespace cariama::tasks {

#if defined(__x86_64__)

static_assert(offsetof(ForkState, top) == 0 && offsetof(ForkState, floor) == 8 &&
              offsetof(ForkState, steal_request) == 16);

// Saves the registers in the layout that context_x86_64.cc restores.
template <ChildFunction kChild, uint64_t kFlags, uint64_t kBytes>
#if defined(__clang__)
[[gnu::naked, gnu::noinline, gnu::no_instrument_function, gnu::aligned(32)]]
#else
// noipa: g++ does not analyse the assembly, and must not assume that a call preserves registers
// that the body does not name.
[[gnu::naked, gnu::noipa, gnu::no_instrument_function, gnu::aligned(32)]]
#endif
ForkResult
fork_to(uint64_t /*first*/, uint64_t /*second*/) {
  asm volatile(R"(
    pushq %%rbp
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset %%rbp, 0
    pushq %%rbx
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset %%rbx, 0
    pushq %%r12
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset %%r12, 0
    pushq %%r13
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset %%r13, 0
    pushq %%r14
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset %%r14, 0
    pushq %%r15
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset %%r15, 0
    movq cariama_fork_state@GOTPCREL(%%rip), %%rdx
    movq (%%rdx), %%rcx             # top
    movq 16(%%rdx), %%r9            # steal_request
    leaq %c[flags](%%rsp), %%r8
    movq %%r8, (%%rcx)
    leaq 8(%%rcx), %%r8
    movq %%r8, (%%rdx)
    pushq %%rcx                    # the address of the entry; the stack is now aligned for calls
    .cfi_adjust_cfa_offset 8
    cmpq $0, (%%r9)
    jne 2f
1:  call %P[child]
    movq cariama_fork_state@GOTPCREL(%%rip), %%r8
    movq (%%rsp), %%rcx
    cmpq 8(%%r8), %%rcx             # floor
    jb 3f
    movq %%rcx, (%%r8)
4:  addq $56, %%rsp                # the child has preserved the callee-saved registers
    .cfi_remember_state
    .cfi_adjust_cfa_offset -56
    .cfi_restore %%rbp
    .cfi_restore %%rbx
    .cfi_restore %%r12
    .cfi_restore %%r13
    .cfi_restore %%r14
    .cfi_restore %%r15
    ret
3:  .cfi_restore_state
    pushq %%rax
    .cfi_adjust_cfa_offset 8
    pushq %%rdx
    .cfi_adjust_cfa_offset 8
    movq %%rax, %%rdi
    call *cariama_fork_end@GOTPCREL(%%rip)
    popq %%rdx
    .cfi_adjust_cfa_offset -8
    popq %%rax
    .cfi_adjust_cfa_offset -8
    jmp 4b
2:  pushq %%rdi
    .cfi_adjust_cfa_offset 8
    pushq %%rsi
    .cfi_adjust_cfa_offset 8
    movl $%c[bytes], %%edx
    movq %c[child]@GOTPCREL(%%rip), %%rcx
    call *cariama_fork_steal_request@GOTPCREL(%%rip)
    popq %%rsi
    .cfi_adjust_cfa_offset -8
    popq %%rdi
    .cfi_adjust_cfa_offset -8
    movq cariama_fork_state@GOTPCREL(%%rip), %%rdx
    movq (%%rsp), %%rcx
    jmp 1b
)"
               :
               : [child] "i"(kChild), [flags] "i"(kFlags), [bytes] "i"(kBytes)
               : "memory", "cc", "rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11");
}
#else

template <ChildFunction kChild, uint64_t kFlags, uint64_t kBytes>
[[gnu::always_inline]] inline ForkResult fork_to(uint64_t first, uint64_t second) {
  return cariama_fork(first, second, kChild, kFlags, kBytes);
}

#endif

}  // namespace cariama::tasks

#endif  // CARIAMA_TASKS_FORK_TO_H_
