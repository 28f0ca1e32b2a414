// Contexts on x86-64 (System V ABI). See context.h for what each function does; forks are in
// fork_to.h.
//
// Where a function switches stacks, the seven words at the new stack pointer have the same layout
// as those at the old one, so the unwind information needs no change there.
#if defined(__x86_64__)

#include <cstddef>
#include <cstdint>

#include "tasks/context.h"

namespace cariama::tasks {

static_assert(offsetof(ForkState, scheduler_sp) == 24 && offsetof(ForkState, task_canary) == 32 &&
              offsetof(ForkState, scheduler_canary) == 40);

asm(R"(
.macro CARIAMA_SAVE
    pushq %rbp
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset %rbp, 0
    pushq %rbx
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset %rbx, 0
    pushq %r12
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset %r12, 0
    pushq %r13
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset %r13, 0
    pushq %r14
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset %r14, 0
    pushq %r15
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset %r15, 0
.endm

.macro CARIAMA_RESTORE
    popq %r15
    .cfi_adjust_cfa_offset -8
    .cfi_restore %r15
    popq %r14
    .cfi_adjust_cfa_offset -8
    .cfi_restore %r14
    popq %r13
    .cfi_adjust_cfa_offset -8
    .cfi_restore %r13
    popq %r12
    .cfi_adjust_cfa_offset -8
    .cfi_restore %r12
    popq %rbx
    .cfi_adjust_cfa_offset -8
    .cfi_restore %rbx
    popq %rbp
    .cfi_adjust_cfa_offset -8
    .cfi_restore %rbp
.endm

# Used instead of ret, which the processor would mispredict: it predicts the return address of the
# last call, which is on the other stack.
.macro CARIAMA_GO
    popq %rcx
    .cfi_adjust_cfa_offset -8
    .cfi_register %rip, %rcx
    jmpq *%rcx
.endm

    .text
    .p2align 4
    .globl cariama_run
    .hidden cariama_run
    .type cariama_run, @function
cariama_run:
    .cfi_startproc
    CARIAMA_SAVE
    movq cariama_fork_state@GOTPCREL(%rip), %r8
    movq %rsp, 24(%r8)
    movq %fs:40, %rax            # save the scheduler's canary, set the tasks' canary
    movq %rax, 40(%r8)
    movq 32(%r8), %rax
    movq %rax, %fs:40
    movq %rdi, %rsp
    movq %rsi, %rdx
    xorl %eax, %eax
    CARIAMA_RESTORE
    CARIAMA_GO
    .cfi_endproc
    .size cariama_run, . - cariama_run

    .p2align 4
    .globl cariama_suspend
    .hidden cariama_suspend
    .type cariama_suspend, @function
cariama_suspend:
    .cfi_startproc
    CARIAMA_SAVE
    movq %rsp, (%rdi)
    movq cariama_fork_state@GOTPCREL(%rip), %r8
    movq 40(%r8), %rax
    movq %rax, %fs:40
    movq 24(%r8), %rsp
    CARIAMA_RESTORE
    CARIAMA_GO
    .cfi_endproc
    .size cariama_suspend, . - cariama_suspend

    .p2align 4
    .globl cariama_leave
    .hidden cariama_leave
    .type cariama_leave, @function
cariama_leave:
    .cfi_startproc
    movq cariama_fork_state@GOTPCREL(%rip), %r8
    movq 40(%r8), %rax
    movq %rax, %fs:40
    movq 24(%r8), %rsp
    .cfi_def_cfa %rsp, 56
    .cfi_rel_offset %rbp, 40
    .cfi_rel_offset %rbx, 32
    .cfi_rel_offset %r12, 24
    .cfi_rel_offset %r13, 16
    .cfi_rel_offset %r14, 8
    .cfi_rel_offset %r15, 0
    CARIAMA_RESTORE
    CARIAMA_GO
    .cfi_endproc
    .size cariama_leave, . - cariama_leave

    .p2align 4
    .type cariama_context_entry, @function
    .hidden cariama_context_entry
    .globl cariama_context_entry
cariama_context_entry:
    .cfi_startproc
    .cfi_undefined %rip
    movq %r12, %rdi
    call *%rbx
    hlt
    .cfi_endproc
    .size cariama_context_entry, . - cariama_context_entry
)");

extern "C" void cariama_context_entry();

void* make_context(void* stack_top, void (*entry)(void*), void* argument) {
  // When the context is continued, the stack pointer at cariama_context_entry is `stack_top`, which
  // is 16-byte aligned as the ABI requires before a call.
  auto* words = static_cast<uint64_t*>(stack_top) - kContextBytes / sizeof(uint64_t);
  for (size_t i = 0; i < kContextBytes / sizeof(uint64_t); ++i) words[i] = 0;
  words[3] = reinterpret_cast<uint64_t>(argument);  // r12
  words[4] = reinterpret_cast<uint64_t>(entry);     // rbx
  words[6] = reinterpret_cast<uint64_t>(&cariama_context_entry);
  return words;
}

}  // namespace cariama::tasks

#endif  // defined(__x86_64__)
