// The board on which the registration helpers of a host post, in memory that each of its processes
// may overwrite with any words.
//
// No helper reads outside of the board. A helper that has no post, or no core, does not run, and
// more idle cores never stop one.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "dtutils/registration/helper_board.h"
#include "tests/fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cariama;
  constexpr uint32_t kHelpers = HelperBoard::kMaxHelpers;
  constexpr size_t kWords = sizeof(HelperBoard) / sizeof(uint64_t);
  static auto* const board = new HelperBoard;
  auto* const bytes = reinterpret_cast<std::byte*>(board);
  std::memset(bytes, 0, sizeof *board);
  FuzzInput input(data, size);
  while (!input.empty()) {
    const auto step = input.take<uint8_t>();
    const auto number = input.take<uint16_t>();
    // Numbers above kMaxHelpers occur, too.
    const uint32_t helper = number % (kHelpers + 8);
    switch (step % 4) {
      case 0: {
        const auto posted = input.take<uint8_t>();
        board->post(helper, posted, input.take<int8_t>());
        break;
      }
      case 1:
        board->leave(helper);
        break;
      case 2: {  // any word; often that behind the posts, which says how many there are
        const size_t word = (step & 4) != 0 ? kHelpers * 2 : number % kWords;
        const auto value = input.take<uint64_t>();
        std::memcpy(bytes + word * sizeof value, &value, sizeof value);
        break;
      }
      default: {
        const int64_t now = input.take<int8_t>();
        const uint32_t cores = step / 4 % 4;
        require(!board->may_run(helper, 0, now));
        const bool runs = board->may_run(helper, cores, now);
        require(!runs || (helper < kHelpers && board->may_run(helper, cores + 1, now)));
      }
    }
  }
  return 0;
}
