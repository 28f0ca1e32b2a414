// Replays traces against the public RegistrationCache with real memory.
//
// ReplayClock::kReal: in real time, with a real pinner and the real helper thread. The replaying
// thread spins between messages, as a program that computes.
//
// ReplayClock::kVirtual: one thread runs the messages and the helper's steps in the order of a
// virtual clock. Registering costs the time of the constants below (kPinBase, ...); the helper
// wakes kWakeDelay late. The result does not depend on the machine or its load, and is the same for
// each run.
#ifndef CARIAMA_BENCH_SUPPORT_REGISTRATION_REPLAY_H_
#define CARIAMA_BENCH_SUPPORT_REGISTRATION_REPLAY_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/support/registration_trace.h"
#include "dtutils/registration/helper_board.h"
#include "dtutils/registration/helper_thread.h"
#include "dtutils/registration/pinner.h"
#include "dtutils/registration/registration_cache.h"

namespace cariama::bench {

// The registered bytes over time: (ns since the start, bytes).
using Timeline = std::vector<std::pair<int64_t, uint64_t>>;

enum class ReplayClock : uint8_t { kReal, kVirtual };

// Costs on the virtual clock in ns: io_uring on Zen 4 (docs/registration.md, "Costs"), the system
// calls around it, and a wake-up from a futex.
inline constexpr int64_t kPinBase = 3300;
inline constexpr int64_t kPinPerPage = 54;
inline constexpr int64_t kUnpinBase = 2500;
inline constexpr int64_t kUnpinPerPage = 18;
inline constexpr int64_t kWakeDelay = 10'000;
inline constexpr int64_t kStepCost = 3000;

// The parts of byte_seconds, on the virtual clock.
struct ByteSecondsParts {
  double early = 0;    // from the registration to the first use
  double in_use = 0;   // during uses
  double between = 0;  // from one use to the next one, with the memory left registered
  double late = 0;     // from the last use to the deregistration
  double unused = 0;   // registered and not used
};

struct ReplayResult {
  uint64_t messages = 0;
  uint64_t late = 0;        // acquire() had to register or to wait
  uint64_t first_uses = 0;  // messages whose signature is new
  uint64_t repeated = 0;    // messages whose signature was used twice before
  uint64_t late_repeated = 0;
  double byte_seconds = 0;
  ByteSecondsParts parts;
  uint64_t registrations = 0;
  uint64_t registered_ahead = 0;  // of these, by the policy
  uint64_t evictions = 0;         // registrations that the budget or a limit ended
  double seconds = 0;             // of the replay
  double helper_cpu_seconds = 0;  // 0 on the virtual clock
  uint64_t helper_steps = 0;
  double main_ns = 0;          // spent in acquire() and release(), sum
  std::vector<double> hit_ns;  // of acquire() that found the memory registered
  uint64_t overslept = 0;      // messages that began more than 20 us after their time
  PredictionErrors errors;
  std::vector<Timeline> timelines;  // one for each rank
  // Returns the registered bytes of these ranks together over time: the ranks run at the same time.
  [[nodiscard]] Timeline sum(std::span<const size_t> ranks) const;
  // Returns the maximum of their sum.
  [[nodiscard]] uint64_t peak_bytes(std::span<const size_t> ranks) const;
};

// Makes the policy of one rank. `own_thread`: HelperOptions::own_thread.
using MakePolicy = std::function<std::shared_ptr<RegistrationPolicy>(bool own_thread)>;

// Makes the pinner of one rank, for the real clock.
using MakePinner = std::function<absl::StatusOr<std::shared_ptr<Pinner>>()>;

// Replays the ranks: one after the other on the real clock; side by side on the virtual clock.
// `limit`: the budget of a rank in bytes, UINT64_MAX: none. `places`: the place of each rank's
// helper on the board of its node; empty: each helper always runs. Only on the virtual clock do
// helpers of a board run at the same time. Errors: those of the cache and of `make_pinner`. Not
// thread-safe on the virtual clock.
[[nodiscard]] absl::StatusOr<ReplayResult> replay_trace(const std::vector<RankTrace>& ranks,
                                                        const MakePolicy& make_policy,
                                                        const MakePinner& make_pinner,
                                                        uint64_t limit, ReplayClock clock,
                                                        std::span<const HelperPlace> places = {});

// Spins until the time of registration_clock().
void spin_until(int64_t time);

}  // namespace cariama::bench

#endif  // CARIAMA_BENCH_SUPPORT_REGISTRATION_REPLAY_H_
