#include "dht/agreement.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <string>

#include "dsfabric/fabric.h"
#include "dtutils/error.h"

namespace cariama {
namespace {

// The outcome of one process.
struct Outcome {
  uint64_t value;
  absl::StatusCode code;
  uint32_t length;
  std::array<char, 240> text;  // the beginning of the error
};

}  // namespace

absl::Status agree(Collectives& all, const absl::Status& mine, std::string_view what,
                   Deadline deadline, uint64_t value) {
  Outcome outcome{value, mine.code(), 0, {}};
  const std::string_view text(mine.message().data(), mine.message().size());
  outcome.length = static_cast<uint32_t>(std::min(text.size(), outcome.text.size()));
  std::copy_n(text.begin(), outcome.length, outcome.text.begin());
  const auto outcomes = all.all_gather(outcome, deadline);
  // This error comes first: the operation is still in progress, whatever the own outcome was.
  if (absl::IsDeadlineExceeded(outcomes.status())) return outcomes.status();
  if (!mine.ok()) return mine;
  if (!outcomes.ok()) return outcomes.status();
  const auto error = [&](absl::StatusCode code, size_t rank, std::string_view why) {
    return make_error(code, ErrorScope::kPeer,
                      std::string(what) + ": " + all.fabric().label(static_cast<uint32_t>(rank)) +
                          std::string(why));
  };
  for (size_t rank = 0; rank < outcomes->size(); ++rank) {
    const std::optional<Outcome>& other = (*outcomes)[rank];
    if (!other.has_value()) return error(absl::StatusCode::kUnavailable, rank, " is dead");
    if (other->code == absl::StatusCode::kOk) continue;
    return error(other->code == absl::StatusCode::kResourceExhausted
                     ? absl::StatusCode::kResourceExhausted
                     : absl::StatusCode::kUnavailable,
                 rank, " failed: " + std::string(other->text.data(), other->length));
  }
  for (size_t rank = 1; rank < outcomes->size(); ++rank) {
    if ((*outcomes)[rank]->value == (*outcomes)[0]->value) continue;
    return error(absl::StatusCode::kFailedPrecondition, rank, " has other data than rank 0");
  }
  return absl::OkStatus();
}

}  // namespace cariama
