#include "dht/agreement.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "dsfabric/fabric.h"
#include "dsfabric/peer_error.h"
#include "dtutils/error.h"

namespace cariama {
namespace {

constexpr uint32_t kNone = UINT32_MAX;

// The outcomes of the processes of consecutive ranks.
struct Outcome {
  uint64_t value;         // of the lowest rank
  uint32_t first;         // the lowest rank
  uint32_t differing;     // the lowest rank that has another value, or kNone
  uint32_t failed;        // the lowest rank that has failed, or kNone
  absl::StatusCode code;  // its error, whose beginning is `text`
  uint32_t length;
  std::array<char, 240> text;
};

// `b` are the ranks that follow those of `a`.
Outcome join_outcomes(const Outcome& a, const Outcome& b) {
  Outcome both = a.failed != kNone ? a : b;
  both.value = a.value;
  both.first = a.first;
  both.differing = a.differing;
  if (a.differing == kNone) both.differing = a.value == b.value ? b.differing : b.first;
  return both;
}

}  // namespace

absl::Status agree(Collectives& all, const absl::Status& mine, std::string_view what,
                   Deadline deadline, uint64_t value) {
  const uint32_t rank = all.fabric().rank();
  Outcome outcome{value, rank, kNone, mine.ok() ? kNone : rank, mine.code(), 0, {}};
  const std::string_view text(mine.message().data(), mine.message().size());
  outcome.length = static_cast<uint32_t>(std::min(text.size(), outcome.text.size()));
  std::copy_n(text.begin(), outcome.length, outcome.text.begin());
  const auto outcomes = all.all_reduce(outcome, &join_outcomes, deadline);
  // Checked first: after DEADLINE_EXCEEDED the operation is still in progress, even if this
  // process's step failed.
  if (absl::IsDeadlineExceeded(outcomes.status())) {
    return make_error(absl::StatusCode::kDeadlineExceeded, error_scope(outcomes.status()),
                      std::string(what) + ": every process calls this function, but " +
                          std::string(outcomes.status().message()));
  }
  if (!mine.ok()) return mine;
  if (!outcomes.ok()) return outcomes.status();
  const auto error = [&](absl::StatusCode code, uint32_t of, std::string_view why) {
    return make_error(code, ErrorScope::kPeer,
                      std::string(what) + ": " + all.fabric().label(of) + std::string(why));
  };
  const std::vector<Rank> dead = all.left_out();
  if (!dead.empty() && dead.front() < outcomes->failed) {
    return dead_peer_error(all.fabric(), dead.front(), what);
  }
  if (outcomes->failed != kNone) {
    return error(outcomes->code == absl::StatusCode::kResourceExhausted
                     ? absl::StatusCode::kResourceExhausted
                     : absl::StatusCode::kUnavailable,
                 outcomes->failed,
                 " failed: " + std::string(outcomes->text.data(), outcomes->length));
  }
  if (outcomes->differing != kNone) {
    return error(absl::StatusCode::kFailedPrecondition, outcomes->differing,
                 " has passed another value, or read other data, than rank 0");
  }
  return absl::OkStatus();
}

absl::Status of_one_process(const absl::Status& mine) {
  if (!absl::IsDeadlineExceeded(mine)) return mine;
  return make_error(absl::StatusCode::kUnavailable, error_scope(mine), std::string(mine.message()));
}

}  // namespace cariama
