#include "dsfabric/remote_object.h"

#include <atomic>
#include <cstring>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "dsfabric/calls/answers.h"
#include "dsfabric/calls/fabric_parts.h"
#include "dtutils/error.h"
#include "dtutils/internal/peer_remedy.h"

namespace cariama {
namespace {

// The word of an operation is 0 (pending), 1 + its CallOutcome, or kLost.
constexpr uint64_t kLost = UINT64_MAX;
// The largest number of processes that an error names.
constexpr size_t kMostSilentNames = 8;

}  // namespace

// The pending calls share this state, because a peer's failure may complete one of them while the
// object is destroyed.
struct RemoteObject<Synchronizer>::State {
  State(Fabric& fabric, RDMAMemory words, uint32_t operations)
      : fabric(fabric), memory(std::move(words)), pending(operations) {
    std::memset(memory.get_buffer(), 0, operations * sizeof(uint64_t));
  }
  ~State() { fabric.memory().free_or_keep(std::move(memory)); }

  [[nodiscard]] std::atomic_ref<uint64_t> word(uint32_t operation) const {
    return std::atomic_ref(reinterpret_cast<uint64_t*>(memory.get_buffer())[operation]);
  }
  // Advances `ended` over operations that have ended, and removes their pending calls. Returns the
  // number of operations left.
  uint32_t look() {
    for (; ended < taken && word(ended).load(std::memory_order_acquire) != 0; ++ended) {
      if (pending[ended].handle == 0) continue;
      static_cast<void>(
          internal::answers_of(fabric).pending().take(pending[ended].handle, pending[ended].rank));
    }
    return static_cast<uint32_t>(pending.size()) - ended;
  }

  struct Pending {
    uint64_t handle = 0;
    Rank rank;
  };
  Fabric& fabric;
  RDMAMemory memory;
  std::vector<Pending> pending;
  uint32_t taken = 0;
  uint32_t ended = 0;
  std::mutex mutex;  // guards failure and round, also against a peer's failure
  absl::Status failure;
  uint64_t round = 0;  // the number of resets
};

namespace {

// Ends an operation when its peer has failed, or when its call was lost.
template <typename State>
class LostOperation final : public internal::PendingCall {
 public:
  LostOperation(std::shared_ptr<State> state, uint32_t operation)
      : state_(std::move(state)), operation_(operation), round_(state_->round) {}
  void complete(const absl::Status& status, std::span<const std::byte>) override {
    const std::lock_guard lock(state_->mutex);
    // Another thread has counted the operation down and reset the object since the failure was
    // detected.
    if (state_->round != round_) return;
    state_->failure = status;
    uint64_t open = 0;  // do nothing if the outcome was written before
    state_->word(operation_).compare_exchange_strong(open, kLost, std::memory_order_release);
  }

 private:
  const std::shared_ptr<State> state_;
  const uint32_t operation_;
  const uint64_t round_;
};

}  // namespace

absl::StatusOr<RemoteObject<Synchronizer>> RemoteObject<Synchronizer>::create(Fabric& fabric,
                                                                              uint32_t operations) {
  if (operations == 0) {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                      "a RemoteObject<Synchronizer> needs at least one operation");
  }
  auto memory = fabric.memory().allocate(operations * sizeof(uint64_t));
  if (!memory.ok()) return memory.status();
  return RemoteObject(std::make_shared<State>(fabric, *std::move(memory), operations));
}

RemoteObject<Synchronizer>::RemoteObject(std::shared_ptr<State> state) : state_(std::move(state)) {}
RemoteObject<Synchronizer>::RemoteObject(RemoteObject&&) noexcept = default;
RemoteObject<Synchronizer>& RemoteObject<Synchronizer>::operator=(RemoteObject&&) noexcept =
    default;
RemoteObject<Synchronizer>::~RemoteObject() {
  if (state_ != nullptr) state_->look();
}

uint32_t RemoteObject<Synchronizer>::operations_left() const { return state_->look(); }

absl::Status RemoteObject<Synchronizer>::status() const {
  const uint32_t left = state_->look();
  for (uint32_t i = 0; i < state_->pending.size() - left; ++i) {
    const uint64_t word = state_->word(i).load(std::memory_order_acquire);
    if (word == 1 + static_cast<uint64_t>(CallOutcome::kDone)) continue;
    if (word == kLost) {
      const std::lock_guard lock(state_->mutex);
      return state_->failure;
    }
    const std::string& where = state_->fabric.label(state_->pending[i].rank);
    if (word == 1 + static_cast<uint64_t>(CallOutcome::kThrew)) {
      return make_error(absl::StatusCode::kInternal, ErrorScope::kOperation,
                        "the call threw at " + where,
                        "what it threw is on that process's standard error");
    }
    return make_error(absl::StatusCode::kUnimplemented, ErrorScope::kOperation,
                      where + " could not run the call");
  }
  return absl::OkStatus();
}

absl::Status RemoteObject<Synchronizer>::wait(Deadline deadline) {
  if (state_->fabric.wait_polling([this] { return done(); }, deadline)) return status();
  // Operations end in any order, but are counted in the order in which they began.
  std::set<Rank> silent;
  for (uint32_t i = state_->ended; i < state_->taken; ++i) {
    if (state_->word(i).load(std::memory_order_acquire) == 0)
      silent.insert(state_->pending[i].rank);
  }
  std::string text = std::to_string(operations_left()) + " operation(s) not finished in time";
  if (silent.empty()) {
    return make_error(absl::StatusCode::kDeadlineExceeded, ErrorScope::kOperation, text,
                      "make a call with this object for each of its operations");
  }
  text += ": calls to ";
  size_t named = 0;
  for (const Rank rank : silent) {
    if (named == kMostSilentNames) {
      text += " and " + std::to_string(silent.size() - named) + " others";
      break;
    }
    text += (named++ == 0 ? "" : ", ") + state_->fabric.label(rank);
  }
  return make_error(absl::StatusCode::kDeadlineExceeded, ErrorScope::kOperation, text,
                    internal::peer_remedy(internal::PeerRemedy::kSilent));
}

void RemoteObject<Synchronizer>::reset() {
  state_->look();  // removes the pending calls of operations that have ended
  const std::lock_guard lock(state_->mutex);
  std::memset(state_->memory.get_buffer(), 0, state_->pending.size() * sizeof(uint64_t));
  state_->taken = state_->ended = 0;
  state_->failure = absl::OkStatus();
  ++state_->round;
}

absl::StatusOr<NotifyTarget> RemoteObject<Synchronizer>::expect(Rank rank) {
  State& state = *state_;
  if (state.taken == state.pending.size()) {
    return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kOperation,
                      "a RemoteObject<Synchronizer> of " + std::to_string(state.pending.size()) +
                          " operations is used for one more call",
                      "create it for more operations, or call reset()");
  }
  const uint32_t operation = state.taken++;
  NotifyTarget target;
  target.rank = state.fabric.rank();
  target.handle =
      reinterpret_cast<uint64_t>(state.memory.get_buffer()) + operation * sizeof(uint64_t);
  // A call within this process needs no key; any value but 0 marks the target as a word.
  const ProtectionDomain* const domain = state.fabric.domain(rank);
  target.key = domain == nullptr ? 1 : state.memory.locator(domain).key.value;
  state.pending[operation] = {
      internal::answers_of(state.fabric)
          .pending()
          .add(rank, std::make_unique<LostOperation<State>>(state_, operation)),
      rank};
  return target;
}

uint64_t RemoteObject<Synchronizer>::last_pending() const {
  return state_->pending[state_->taken - 1].handle;
}

bool RemoteObject<Synchronizer>::forget() {
  State::Pending& last = state_->pending[state_->taken - 1];
  const bool there =
      internal::answers_of(state_->fabric).pending().take(last.handle, last.rank) != nullptr;
  last.handle = 0;
  if (there) --state_->taken;
  return there;
}

}  // namespace cariama
