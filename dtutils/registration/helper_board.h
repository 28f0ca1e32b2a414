// The board of a host, by which the helper threads of its processes decide which of them run (the
// paper's conservative core policy, section 5): those with the most registered bytes, at most one
// for each idle core.
//
// The processes of a fabric share one board for each host (dsfabric). A program without a fabric
// places a board in memory that its processes share, and sets RegistrationOptions::place.
#ifndef CARIAMA_DTUTILS_REGISTRATION_HELPER_BOARD_H_
#define CARIAMA_DTUTILS_REGISTRATION_HELPER_BOARD_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

#include "dtutils/export.h"

namespace cariama {

// Each helper posts its registered bytes under a number of its own, and reads whether it is among
// the helpers that run. A post expires: the helper of a process that was killed or stopped counts
// no longer than that. Zero-initialised memory is an empty board. Lock-free; thread-safe.
class CARIAMA_DTUTILS_EXPORT HelperBoard {
 public:
  static constexpr uint32_t kMaxHelpers = 1024;
  // Posts the registered bytes of the helper with this number. The post counts until the time
  // `until`, in ns of a clock that all helpers share (registration_clock()), or until the next post
  // or leave(). Requires: no other helper uses the number. Helpers with numbers of kMaxHelpers and
  // above post nothing, and never run.
  void post(uint32_t helper, uint64_t bytes, int64_t until);
  // Withdraws the helper's post.
  void leave(uint32_t helper);
  // Returns true if at the time `now` the helper's post counts, and fewer than `idle_cores` other
  // helpers have posted more bytes. Among equal numbers of bytes, the lower number is preferred.
  [[nodiscard]] bool may_run(uint32_t helper, uint32_t idle_cores, int64_t now) const;

 private:
  struct Post {
    std::atomic<uint64_t> bytes;
    std::atomic<int64_t> until;  // 0: no helper
  };
  std::array<Post, kMaxHelpers> posts_;
  std::atomic<uint32_t> used_;  // posts beyond were never used
};

// The place of one helper on the board of its host.
struct HelperPlace {
  std::shared_ptr<HelperBoard> board{};  // nullptr: the helper always runs
  uint32_t helper = 0;                   // its number on the board
  // The number of cores of the host that the processes of the board leave idle.
  uint32_t idle_cores = 0;
};

}  // namespace cariama

#endif  // CARIAMA_DTUTILS_REGISTRATION_HELPER_BOARD_H_
