// Contexts on x86-64 (System V ABI). See context.h for what each function does.
//
// Where a stack pointer is loaded from elsewhere, the new stack shows the same eight words as the
// old one did, so that the unwind information needs no change there.
#if defined(__x86_64__)

#include <cstddef>
#include <cstdint>

#include "tasks/context.h"

namespace cariama::tasks {

static_assert(offsetof(ForkState, top) == 0 && offsetof(ForkState, attention) == 16 &&
              offsetof(ForkState, scheduler_sp) == 24 && offsetof(ForkState, task_canary) == 32 &&
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
    subq $8, %rsp                # so that calls from here are aligned
    .cfi_adjust_cfa_offset 8
.endm

.macro CARIAMA_RESTORE
    addq $8, %rsp
    .cfi_adjust_cfa_offset -8
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

    .text
    .p2align 5
    .globl cariama_fork
    .type cariama_fork, @function
cariama_fork:
    .cfi_startproc
    CARIAMA_SAVE
    movq cariama_fork_state@GOTPCREL(%rip), %r8
    movq (%r8), %r10             # top
    movq 16(%r8), %r9            # attention
    addq %rsp, %rcx
    movq %rcx, (%r10)
    leaq 8(%r10), %rcx
    movq %rcx, (%r8)
    cmpq $0, (%r9)
    jne 2f
1:  movq %rdx, %rax
    movq %r8, %rdx
    movq %r10, %rcx
    call *%rax
    addq $56, %rsp               # the child kept the callee-saved registers, as any function does
    .cfi_remember_state
    .cfi_adjust_cfa_offset -56
    .cfi_restore %rbp
    .cfi_restore %rbx
    .cfi_restore %r12
    .cfi_restore %r13
    .cfi_restore %r14
    .cfi_restore %r15
    ret
2:  .cfi_restore_state
    pushq %rdi
    .cfi_adjust_cfa_offset 8
    pushq %rsi
    .cfi_adjust_cfa_offset 8
    pushq %rdx
    .cfi_adjust_cfa_offset 8
    pushq %r10
    .cfi_adjust_cfa_offset 8
    call cariama_fork_attention@PLT
    popq %r10
    .cfi_adjust_cfa_offset -8
    popq %rdx
    .cfi_adjust_cfa_offset -8
    popq %rsi
    .cfi_adjust_cfa_offset -8
    popq %rdi
    .cfi_adjust_cfa_offset -8
    movq cariama_fork_state@GOTPCREL(%rip), %r8
    jmp 1b
    .cfi_endproc
    .size cariama_fork, . - cariama_fork

    .p2align 4
    .globl cariama_run
    .hidden cariama_run
    .type cariama_run, @function
cariama_run:
    .cfi_startproc
    CARIAMA_SAVE
    movq cariama_fork_state@GOTPCREL(%rip), %r8
    movq %rsp, 24(%r8)
    movq %fs:40, %rax            # the canaries of the stack protector
    movq %rax, 40(%r8)
    movq 32(%r8), %rax
    movq %rax, %fs:40
    movq %rdi, %rsp
    movq %rsi, %rdx
    xorl %eax, %eax
    CARIAMA_RESTORE
    ret
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
    ret
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
    .cfi_def_cfa %rsp, 64
    .cfi_rel_offset %rbp, 48
    .cfi_rel_offset %rbx, 40
    .cfi_rel_offset %r12, 32
    .cfi_rel_offset %r13, 24
    .cfi_rel_offset %r14, 16
    .cfi_rel_offset %r15, 8
    CARIAMA_RESTORE
    ret
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
  // The entry is reached by ret: the stack pointer is then 16-byte aligned, as before a call.
  auto* words = static_cast<uint64_t*>(stack_top) - kContextBytes / sizeof(uint64_t);
  for (size_t i = 0; i < kContextBytes / sizeof(uint64_t); ++i) words[i] = 0;
  words[4] = reinterpret_cast<uint64_t>(argument);  // r12
  words[5] = reinterpret_cast<uint64_t>(entry);     // rbx
  words[7] = reinterpret_cast<uint64_t>(&cariama_context_entry);
  return words;
}

}  // namespace cariama::tasks

#endif  // defined(__x86_64__)
