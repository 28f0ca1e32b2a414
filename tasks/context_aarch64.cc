// Contexts on AArch64 (AAPCS64). See context.h for what each function does.
//
// Where a function switches stacks, the words at the new stack pointer have the same layout as
// those at the old one, so the unwind information needs no change there.
#if defined(__aarch64__)

#include <cstddef>
#include <cstdint>

#include "tasks/context.h"

namespace cariama::tasks {

static_assert(offsetof(ForkState, top) == 0 && offsetof(ForkState, floor) == 8 &&
              offsetof(ForkState, steal_request) == 16 && offsetof(ForkState, scheduler_sp) == 24);

asm(R"(
.macro CARIAMA_AT_SP
    .cfi_def_cfa sp, 160
    .cfi_offset x29, -160
    .cfi_offset x30, -152
    .cfi_offset x19, -144
    .cfi_offset x20, -136
    .cfi_offset x21, -128
    .cfi_offset x22, -120
    .cfi_offset x23, -112
    .cfi_offset x24, -104
    .cfi_offset x25, -96
    .cfi_offset x26, -88
    .cfi_offset x27, -80
    .cfi_offset x28, -72
    .cfi_offset d8, -64
    .cfi_offset d9, -56
    .cfi_offset d10, -48
    .cfi_offset d11, -40
    .cfi_offset d12, -32
    .cfi_offset d13, -24
    .cfi_offset d14, -16
    .cfi_offset d15, -8
.endm

.macro CARIAMA_SAVE
    stp x29, x30, [sp, #-160]!
    stp x19, x20, [sp, #16]
    stp x21, x22, [sp, #32]
    stp x23, x24, [sp, #48]
    stp x25, x26, [sp, #64]
    stp x27, x28, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    CARIAMA_AT_SP
.endm

.macro CARIAMA_RESTORE
    ldp x19, x20, [sp, #16]
    ldp x21, x22, [sp, #32]
    ldp x23, x24, [sp, #48]
    ldp x25, x26, [sp, #64]
    ldp x27, x28, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    ldp x29, x30, [sp], #160
    .cfi_def_cfa sp, 0
    .cfi_restore x29
    .cfi_restore x30
    .cfi_restore x19
    .cfi_restore x20
    .cfi_restore x21
    .cfi_restore x22
    .cfi_restore x23
    .cfi_restore x24
    .cfi_restore x25
    .cfi_restore x26
    .cfi_restore x27
    .cfi_restore x28
    .cfi_restore d8
    .cfi_restore d9
    .cfi_restore d10
    .cfi_restore d11
    .cfi_restore d12
    .cfi_restore d13
    .cfi_restore d14
    .cfi_restore d15
.endm

.macro CARIAMA_STATE register
    adrp \register, :got:cariama_fork_state
    ldr \register, [\register, :got_lo12:cariama_fork_state]
.endm

    .text
    .p2align 5
    .globl cariama_fork
    .type cariama_fork, %function
cariama_fork:
    .cfi_startproc
    CARIAMA_SAVE
    CARIAMA_STATE x8
    ldr x9, [x8]                 // top
    ldr x10, [x8, #16]           // steal_request
    mov x11, sp
    add x11, x11, x3
    str x11, [x9]
    add x11, x9, #8
    str x11, [x8]
    ldr x10, [x10]
    cbnz x10, 2f
1:  sub sp, sp, #16
    .cfi_adjust_cfa_offset 16
    str x9, [sp, #8]             // the child's word: the address of the entry
    mov x10, x2
    mov x2, x8
    mov x3, x9
    blr x10
    CARIAMA_STATE x8
    ldr x9, [sp, #8]
    ldr x10, [x8, #8]            // floor
    cmp x9, x10
    b.lo 3f
    str x9, [x8]
4:  add sp, sp, #16
    .cfi_remember_state
    .cfi_adjust_cfa_offset -16
    // The child has preserved the callee-saved registers; the link register must be restored.
    ldp x29, x30, [sp], #160
    .cfi_def_cfa sp, 0
    .cfi_restore x29
    .cfi_restore x30
    ret
3:  .cfi_restore_state
    stp x0, x1, [sp, #-16]!
    .cfi_adjust_cfa_offset 16
    bl cariama_fork_end
    ldp x0, x1, [sp], #16
    .cfi_adjust_cfa_offset -16
    b 4b
2:  .cfi_adjust_cfa_offset -16   // the child's word has not been pushed here
    stp x0, x1, [sp, #-32]!
    .cfi_adjust_cfa_offset 32
    stp x2, x9, [sp, #16]
    mov x3, x2
    mov x2, x4
    bl cariama_fork_steal_request
    ldp x2, x9, [sp, #16]
    ldp x0, x1, [sp], #32
    .cfi_adjust_cfa_offset -32
    CARIAMA_STATE x8
    b 1b
    .cfi_endproc
    .size cariama_fork, . - cariama_fork

    .p2align 4
    .globl cariama_run
    .hidden cariama_run
    .type cariama_run, %function
cariama_run:
    .cfi_startproc
    CARIAMA_SAVE
    CARIAMA_STATE x8
    mov x9, sp
    str x9, [x8, #24]
    mov sp, x0
    mov x0, xzr
    CARIAMA_RESTORE
    ret
    .cfi_endproc
    .size cariama_run, . - cariama_run

    .p2align 4
    .globl cariama_suspend
    .hidden cariama_suspend
    .type cariama_suspend, %function
cariama_suspend:
    .cfi_startproc
    CARIAMA_SAVE
    CARIAMA_STATE x8
    mov x9, sp
    str x9, [x0]
    ldr x9, [x8, #24]
    mov sp, x9
    CARIAMA_RESTORE
    ret
    .cfi_endproc
    .size cariama_suspend, . - cariama_suspend

    .p2align 4
    .globl cariama_leave
    .hidden cariama_leave
    .type cariama_leave, %function
cariama_leave:
    .cfi_startproc
    CARIAMA_STATE x8
    ldr x9, [x8, #24]
    mov sp, x9
    CARIAMA_AT_SP
    CARIAMA_RESTORE
    ret
    .cfi_endproc
    .size cariama_leave, . - cariama_leave

    .p2align 4
    .globl cariama_context_entry
    .hidden cariama_context_entry
    .type cariama_context_entry, %function
cariama_context_entry:
    .cfi_startproc
    .cfi_undefined x30
    mov x29, xzr
    mov x0, x20
    blr x19
    brk #1
    .cfi_endproc
    .size cariama_context_entry, . - cariama_context_entry
)");

extern "C" void cariama_context_entry();

void* make_context(void* stack_top, void (*entry)(void*), void* argument) {
  auto* words = static_cast<uint64_t*>(stack_top) - kContextBytes / sizeof(uint64_t);
  for (size_t i = 0; i < kContextBytes / sizeof(uint64_t); ++i) words[i] = 0;
  words[1] = reinterpret_cast<uint64_t>(&cariama_context_entry);  // x30
  words[2] = reinterpret_cast<uint64_t>(entry);                   // x19
  words[3] = reinterpret_cast<uint64_t>(argument);                // x20
  return words;
}

}  // namespace cariama::tasks

#endif  // defined(__aarch64__)
