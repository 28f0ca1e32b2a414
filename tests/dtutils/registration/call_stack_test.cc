// The walk over the stack of a program that is compiled without frame pointers: the register of the
// frame pointer, and words of the stack, may contain anything.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <memory>

#include "dtutils/registration/policy.h"

namespace cariama {
namespace {

using ::testing::ElementsAre;

template <typename Pointer>
uintptr_t word_of(Pointer pointer) {
  return reinterpret_cast<uintptr_t>(pointer);
}

// Two frames: the program's call, and a frame of the caller with `word` as its return address.
// Without AddressSanitizer, which may place local variables in the heap.
__attribute__((no_sanitize("address"))) CallStack walk_from(uintptr_t word) {
  std::array<uintptr_t, 4> frames{0, word_of(&walk_from), 0, word};
  frames[0] = word_of(&frames[2]);
  CallStack stack{};
  capture_call_stack(stack, frames.data());
  return stack;
}

int global_data = 1;

TEST(CallStack, ContainsAddressesOfCodeOnly) {
  const auto heap = std::make_unique<int>(1);
  int local = 1;
  const uintptr_t call = word_of(&walk_from);
  // Twice: the second walk finds what the first one has checked.
  for (int round = 0; round < 2; ++round) {
    for (const uintptr_t data :
         {word_of(heap.get()), word_of(&local), word_of(&global_data), uintptr_t{1}, UINTPTR_MAX}) {
      EXPECT_THAT(walk_from(data), ElementsAre(call, 0, 0, 0, 0, 0, 0, 0)) << data;
    }
    // The program, and a library.
    for (const uintptr_t code : {word_of(&word_of<int*>), word_of(&std::abort)}) {
      EXPECT_THAT(walk_from(code), ElementsAre(call, code, 0, 0, 0, 0, 0, 0));
    }
  }
}

// A program may run its threads on stacks of its own (fibers): the thread's bounds do not contain
// them. The frame from which the walk starts exists there, too.
TEST(CallStack, ContainsTheFirstAddressOnAnyStack) {
  const uintptr_t call = word_of(&walk_from);
  auto elsewhere = std::make_unique<std::array<uintptr_t, 4>>();
  *elsewhere = {word_of(&(*elsewhere)[2]), call, 0, call};
  CallStack stack{};
  capture_call_stack(stack, elsewhere->data());
  EXPECT_THAT(stack, ElementsAre(call, 0, 0, 0, 0, 0, 0, 0));
}

}  // namespace
}  // namespace cariama
