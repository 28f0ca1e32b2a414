#include "dht/internal/owner_calls.h"

#include <algorithm>
#include <array>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "dht/probe.h"
#include "dht/table_layout.h"
#include "dsfabric/fabric.h"
#include "dsfabric/remote_memory.h"
#include "dsfabric/send_call.h"
#include "dtutils/error.h"
#include "dtutils/synchronizer.h"
#include "dtutils/trace.h"

namespace cariama {
namespace {

using Mode = OwnerCalls::Mode;

// The first word of an operation and of its answer: the position, and the mode or outcome.
constexpr uint64_t kPositionMask = (uint64_t{1} << 48) - 1;
constexpr unsigned kTagShift = 48;
constexpr size_t words_in_call(Mode mode, size_t words) {
  return mode == Mode::kRead ? 1 : 1 + words;
}
constexpr size_t words_in_answer(Mode mode, size_t words) {
  return mode == Mode::kRead ? 1 + words : 1;
}

// Returns the number of words of the answer; 0 if an operation is malformed. Prefetches the first
// buckets of the operations.
size_t check_operations(const CalledShare& share, std::span<const uint64_t> call) {
  size_t answer = 0;
  while (!call.empty()) {
    const uint64_t position = call[0] & kPositionMask;
    const auto mode = static_cast<Mode>(call[0] >> kTagShift);
    if (call[0] >> kTagShift > static_cast<uint64_t>(Mode::kRead)) return 0;
    const size_t length = words_in_call(mode, share.words);
    if (position >= share.buckets || call.size() < length) return 0;
    for (const uint64_t word : call.subspan(1, length - 1)) {
      if ((word & kWordPresent) == 0) return 0;
    }
    answer += words_in_answer(mode, share.words);
    // For writing: most operations are puts.
    __builtin_prefetch(reinterpret_cast<const uint64_t*>(share.address) + position * share.words,
                       1);
    call = call.subspan(length);
  }
  return answer;
}

template <size_t W>
void execute(const CalledShare& share, std::span<const uint64_t> call,
             std::vector<uint64_t>& answer) {
  // An index is a position: each owner knows its own share only.
  const TableGeometry geometry{.buckets = share.buckets, .probe_limit = share.probe_limit};
  auto* const buckets = reinterpret_cast<uint64_t*>(share.address);
  while (!call.empty()) {
    const TablePlace place{0, call[0] & kPositionMask};
    const auto mode = static_cast<Mode>(call[0] >> kTagShift);
    TableKey<W> key;
    TableResult result;
    if (mode == Mode::kRead) {
      for (size_t i = 0; i < W; ++i) {
        key[i] = internal::load_word(buckets + place.position * W + i);
      }
      result = {place.position,
                internal::is_complete<W>(key) ? TableOutcome::kFound : TableOutcome::kAbsent};
    } else {
      std::copy_n(call.begin() + 1, W, key.begin());
      result = mode == Mode::kPut ? internal::probe_share<true>(geometry, buckets, key, place, 0)
                                  : internal::probe_share<false>(geometry, buckets, key, place, 0);
    }
    answer.push_back((result.index & kPositionMask) | uint64_t{static_cast<uint8_t>(result.outcome)}
                                                          << kTagShift);
    if (mode == Mode::kRead) answer.insert(answer.end(), key.begin(), key.end());
    call = call.subspan(words_in_call(mode, W));
  }
}

// What a call says about the share that it is for.
struct ShareOfCall {
  uint64_t name;  // under which its owner has published it
  uint64_t buckets;
  uint64_t probe_limit;
  uint64_t words;
};

// Runs in the service of the owner. Returns no words if this process has no such share.
std::vector<uint64_t> execute_call(const ShareOfCall& share, std::span<const uint64_t> call) {
  Fabric& fabric = *running_fabric();
  if (share.words == 0 || share.words > kMaxKeyWords || share.buckets > kPositionMask ||
      share.probe_limit > share.buckets) {
    return {};
  }
  const auto address = RemoteMemory::find(fabric, fabric.rank(), share.name, Deadline::min());
  if (!address.ok() || !RemoteMemory::contains(fabric, address->address,
                                               share.buckets * share.words * sizeof(uint64_t))) {
    return {};
  }
  return execute_operations({address->address, share.buckets, share.probe_limit, share.words},
                            call);
}

// A call must fit into a receive unit, with up to 128 bytes of headers and of the share.
size_t capacity(const TableCore& core) {
  const size_t unit = core.receive_unit_bytes();
  const size_t of_operation = (1 + core.words()) * sizeof(uint64_t);
  const size_t fitting = (unit - std::min<size_t>(unit, 128)) / of_operation;
  const size_t short_enough =
      OwnerCalls::kBucketsOfCall / std::max<uint64_t>(core.geometry().probe_limit, 1);
  return std::max<size_t>(std::min({fitting, short_enough, OwnerCalls::kOperationsOfCall}), 1);
}

// Polls after which a call is sent again for which the owner had no receive posted.
constexpr uint32_t kPollsPerAttempt = 16;

}  // namespace

std::vector<uint64_t> execute_operations(const CalledShare& share, std::span<const uint64_t> call) {
  static constexpr auto kExecute = []<size_t... kLess>(std::index_sequence<kLess...>) {
    return std::array{&execute<kLess + 1>...};
  }
  (std::make_index_sequence<kMaxKeyWords>());
  std::vector<uint64_t> answer;
  const size_t words = check_operations(share, call);
  if (words == 0) return answer;
  answer.reserve(words);
  kExecute[share.words - 1](share, call, answer);
  return answer;
}

std::optional<OperationOutcome> decode_outcome(uint64_t word, TableOperation mode, uint64_t asked,
                                               uint64_t buckets) {
  const uint64_t tag = word >> kTagShift;
  if (tag > static_cast<uint64_t>(TableOutcome::kFull)) return std::nullopt;
  const auto outcome = static_cast<TableOutcome>(tag);
  const uint64_t position = word & kPositionMask;
  const bool has_bucket = outcome == TableOutcome::kFound || outcome == TableOutcome::kInserted;
  const bool is_possible = (outcome == TableOutcome::kFound ||
                            (mode == TableOperation::kPut) != (outcome == TableOutcome::kAbsent)) &&
                           (!has_bucket || position < buckets) &&
                           (mode != TableOperation::kRead || !has_bucket || position == asked);
  if (!is_possible) return std::nullopt;
  return OperationOutcome{outcome, position};
}

class OwnerCalls::Call {
 public:
  Call(uint32_t called_owner, size_t most_words) : owner(called_owner) {
    request.reserve(most_words);
  }

  // Returns true if further operations may be added.
  [[nodiscard]] bool is_open() const { return !sending && refused.ok(); }

  const uint32_t owner;
  size_t operations = 0;  // that have not ended by their deadlines
  std::vector<uint64_t> request;
  size_t answer_words = 0;  // that are expected
  std::vector<uint64_t> answer;
  bool sending = false;
  bool sent = false;
  absl::Status refused;  // the error because of which it is not sent
  Synchronizer done;     // of a call that was sent
};

OwnerCalls::OwnerCalls(TableCore& core, TableStatistics& statistics)
    : core_(core), statistics_(statistics) {}

OwnerCalls::Operation OwnerCalls::add(uint32_t owner, Mode mode, uint64_t position,
                                      const uint64_t* stored) {
  const size_t words = core_.words();
  const size_t most_words = capacity(core_) * (1 + words);
  auto& unsent = calls_[owner].unsent;
  const size_t length = words_in_call(mode, words);
  const size_t of_answer = words_in_answer(mode, words);
  if (unsent.empty() || !unsent.back()->is_open() ||
      unsent.back()->request.size() + length > most_words ||
      unsent.back()->answer_words + of_answer > most_words) {
    unsent.push_back(std::make_shared<Call>(owner, most_words));
  }
  Call& call = *unsent.back();
  call.request.push_back(position | uint64_t{static_cast<uint8_t>(mode)} << kTagShift);
  call.request.insert(call.request.end(), stored, stored + length - 1);
  ++call.operations;
  const size_t at = std::exchange(call.answer_words, call.answer_words + of_answer);
  return {unsent.back(), at, mode, position};
}

bool OwnerCalls::has_ended(const Operation& operation) {
  const Call& call = *operation.call;
  return call.sent ? call.done.done() : !call.refused.ok();
}

void OwnerCalls::end_late(const Operation& operation) {
  Call& call = *operation.call;
  if (call.sent || --call.operations != 0 || !call.refused.ok()) return;
  call.refused = absl::CancelledError("all operations of the call have ended by their deadlines");
}

absl::StatusOr<OwnerCalls::Answer> OwnerCalls::answer(const Operation& operation) const {
  const Call& call = *operation.call;
  if (absl::Status status = call.sent ? call.done.status() : call.refused; !status.ok()) {
    return status;
  }
  if (call.answer.empty()) {
    return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kPeer,
                      core_.fabric().label(call.owner) +
                          " has no share of this hash table, or has refused operations on it",
                      "end the operations of all processes before grow() and destroy()");
  }
  if (call.answer.size() == call.answer_words) {
    const uint64_t* const words = call.answer.data() + operation.at;
    const std::optional<OperationOutcome> said =
        decode_outcome(words[0], operation.mode, operation.position, core_.geometry().buckets);
    if (said) return Answer{said->outcome, said->position, words + 1};
  }
  return make_error(absl::StatusCode::kInternal, ErrorScope::kPeer,
                    core_.fabric().label(call.owner) +
                        " has sent a malformed answer to operations on its share of a hash table",
                    "run the same version of the program in all processes");
}

bool OwnerCalls::send(const std::shared_ptr<Call>& call) {
  class Receiver final : public internal::ResultReceiver {
   public:
    explicit Receiver(std::shared_ptr<Call> call) : call_(std::move(call)) {}
    void receive(std::span<const std::byte> result) override {
      call_->answer = load_value<std::vector<uint64_t>>(result);
    }

   private:
    const std::shared_ptr<Call> call_;
  };
  const ShareOfCall share{core_.name(), core_.geometry().buckets, core_.geometry().probe_limit,
                          core_.words()};
  absl::Status sent;
  try {
    const auto made = make_call(
        [share](std::span<const uint64_t> operations) { return execute_call(share, operations); },
        call->request);
    const auto& encoded = internal::owned(made);
    internal::CallEnd end;
    end.consumed = internal::EventReceiver(call->done);
    end.receiver = std::make_unique<Receiver>(call);
    sent = internal::send_call(core_.fabric(), call->owner, internal::kService,
                               OutgoingCall::of(encoded), WhenFull::kFail, end);
    if (absl::IsResourceExhausted(sent)) return false;
  } catch (const std::bad_alloc&) {
    // A record of the call may exist, so it is not sent again.
    sent = absl::ResourceExhaustedError("no memory for a call to the owner of a key");
  }
  if (sent.ok()) {
    call->sent = true;
    ++statistics_.owner_calls;
    statistics_.owner_operations += call->operations;
    trace_instant("dht", "call owner", "rank", call->owner);
  } else {
    call->refused = std::move(sent);
  }
  return true;
}

void OwnerCalls::send() {
  // Sending may run code that uses the same access.
  if (calls_.empty() || sending_) return;
  sending_ = true;
  for (auto at = calls_.begin(); at != calls_.end();) {
    CallsToOwner& calls = at->second;
    bool idle = true;
    bool has_receive = calls.skip == 0;
    if (!has_receive) --calls.skip;
    for (std::shared_ptr<Call>& place : calls.in_flight) {
      if (place != nullptr && place->done.done()) place.reset();
      while (place == nullptr && has_receive && !calls.unsent.empty()) {
        const std::shared_ptr<Call> call = calls.unsent.front();
        call->sending = true;
        if (call->refused.ok()) has_receive = send(call);
        if (!has_receive) {
          call->sending = false;
          calls.skip = kPollsPerAttempt;
          break;
        }
        calls.unsent.pop_front();
        if (call->sent) place = call;
      }
      idle = idle && place == nullptr;
    }
    at = idle && calls.unsent.empty() ? calls_.erase(at) : std::next(at);
  }
  sending_ = false;
}

void OwnerCalls::leave_to_core() {
  for (const auto& [owner, calls] : calls_) {
    for (const std::shared_ptr<Call>& call : calls.in_flight) {
      if (call != nullptr && !call->done.done()) core_.add_execution({call, &call->done});
    }
  }
}

}  // namespace cariama
