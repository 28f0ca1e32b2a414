// Takes answers from slots whose words a misbehaving peer writes between any two steps.
//
// Each call of this process ends at most once, an answer names a call that is open or none, and no
// answer is longer than a slot. A slot that the peer has left alone gives no answer.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "dsfabric/peers/answer_slots.h"
#include "tests/fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using cariama::require;
  using namespace cariama::internal;  // NOLINT(google-build-using-namespace)
  cariama::FuzzInput input(data, size);
  std::array<AnswerSlot, AnswerSlots::kCount> memory;
  AnswerSlots slots(memory.data(), input.take<uint8_t>() % 2 == 1);
  // As in PendingCalls, a handle contains the number of its slot: here, in its lowest bits.
  std::array<uint64_t, AnswerSlots::kCount> open{};  // the handle of each reserved slot, or 0
  std::array<bool, AnswerSlots::kCount> written{};   // the peer has written to the slot since
  uint64_t next = 1;

  while (!input.empty()) {
    const auto step = input.take<uint8_t>();
    const uint32_t index = step >> 4;
    switch (step & 7) {
      case 0: {  // this process calls
        const uint32_t slot = slots.find();
        if (slot == 0) break;
        require(slot <= AnswerSlots::kCount && open[slot - 1] == 0);
        open[slot - 1] = (next++ << 5) | slot;
        written[slot - 1] = false;
        slots.open(slot, open[slot - 1]);
        break;
      }
      case 1:
        slots.start_polling(this_poller());
        break;
      case 2:
        slots.stop_polling(this_poller());
        break;
      case 3:
      case 4: {  // this process polls, for the calling thread or for all
        slots.take((step & 7) == 3 ? this_poller() : nullptr, [&](const AnswerSlots::Answer& one) {
          require(one.bytes <= AnswerSlot::kMostBytes);
          if (one.handle == 0) return;  // does not match: the call is left pending
          const auto slot = static_cast<uint32_t>(one.handle & 31);
          require(slot != 0 && open[slot - 1] == one.handle && written[slot - 1]);
          open[slot - 1] = 0;
          slots.release(slot);
        });
        break;
      }
      case 5: {  // the peer answers as it should
        if (open[index] == 0) break;
        const std::array<std::byte, AnswerSlot::kMostBytes> result{};
        const size_t bytes = input.take<uint8_t>() % (AnswerSlot::kMostBytes + 2);
        if (bytes <= result.size() &&
            memory[index].answer(open[index], std::span(result).first(bytes))) {
          written[index] = true;
        }
        break;
      }
      default: {  // the peer writes a word
        AnswerSlot& slot = memory[index];
        written[index] = true;
        switch (input.take<uint8_t>() % 4) {
          case 0:
            slot.state.store(input.take<uint8_t>() % 5);
            break;
          case 1:
            slot.bytes.store(input.take<uint32_t>());
            break;
          case 2:
            slot.handle.store(open[input.take<uint8_t>() % open.size()]);
            break;
          default:
            slot.handle.store(input.take<uint64_t>());
        }
      }
    }
  }
  // All open calls can still end: the peer's process fails, and their slots are released.
  for (const uint64_t handle : open) {
    if (handle != 0) slots.release(static_cast<uint32_t>(handle & 31));
  }
  require(slots.find() == 1);
  return 0;
}
