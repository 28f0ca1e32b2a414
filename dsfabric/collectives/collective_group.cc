#include "dsfabric/collectives/collective_group.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "dsfabric/bootstrap/fabric_job.h"
#include "dsfabric/calls/call_sender.h"
#include "dsfabric/calls/control_traffic.h"
#include "dsfabric/calls/fabric_parts.h"
#include "dsfabric/calls/workers.h"
#include "dsfabric/internal/call_failures.h"
#include "dsfabric/invocation/ask.h"
#include "dsfabric/peer_error.h"
#include "dsfabric/peers/connect_deadline.h"
#include "dsfabric/send_call.h"
#include "dtutils/error.h"
#include "dtutils/internal/peer_remedy.h"
#include "dtutils/trace.h"

namespace cariama::internal {
namespace {

// Bytes that precede a piece in a receive unit, rounded up: headers, the packet, the length of the
// piece.
constexpr size_t kAround = 128;
static_assert(sizeof(MessageHeader) + sizeof(CallHeader) + sizeof(CollectivePacket) +
                  sizeof(uint64_t) + 8 <=
              kAround);
constexpr uint64_t kMaxResult = uint64_t{64} << 20;
// A parcel also has the ranks that are left out, and an error that may name them.
constexpr uint64_t kMaxParcel = kMaxResult + (uint64_t{16} << 20);
// Limits of the search for participants that have not entered: time of each round, number of
// rounds, number of names.
constexpr std::chrono::milliseconds kSearch{250};
constexpr size_t kSearchRounds = 4;
constexpr size_t kMostNames = 8;

std::string_view name_of(CollectiveKind kind) {
  constexpr std::array<std::string_view, 4> kNames{"barrier", "broadcast", "all_reduce",
                                                   "all_gather"};
  return kNames[static_cast<size_t>(kind) % kNames.size()];
}

std::string describe(uint64_t sequence, CollectiveKind kind) {
  return std::string(name_of(kind)) + " (operation " + std::to_string(sequence) + ")";
}

ControlTraffic& traffic_of(Fabric& fabric) { return attachment_of<ControlTraffic>(fabric); }
std::shared_ptr<CollectiveGroup> find_group(Fabric& fabric, uint32_t id) {
  ControlTraffic& traffic = traffic_of(fabric);
  return attachment_of<CollectiveGroups>(fabric).find(traffic, id);
}

}  // namespace

// ---- The tree -----------------------------------------------------------------------------------

// A binomial tree: the parent of a position is that position without its lowest set bit, and the
// subtree of p is the range [p, p + lowest set bit of p). So a fold over the children in ascending
// order keeps the order of ranks.
template <typename Function>
void CollectiveGroup::for_each_child(uint32_t position, Function&& function) const {
  const uint64_t lowest = position == 0 ? uint64_t{1} << 32 : position & (~position + 1);
  for (uint64_t step = 1; step < lowest && position + step < size_; step *= 2) {
    function(static_cast<uint32_t>(position + step));
  }
}

bool CollectiveGroup::alive(uint32_t rank) const {
  return rank == rank_ || fabric_.peer_status(rank).ok();
}

// Returns the nearest living ancestor, or kNoRank.
uint32_t CollectiveGroup::living_ancestor(const Operation& op) const {
  for (uint32_t at = position(op, rank_); at != 0;) {
    at &= at - 1;
    if (const uint32_t rank = rank_at(op, at); alive(rank)) return rank;
  }
  return kNoRank;
}

// Returns the rank that receives this process's contribution, or kNoRank if this process is the
// root or acts as the root.
uint32_t CollectiveGroup::parent(const Operation& op) const {
  const uint32_t ancestor = living_ancestor(op);
  if (ancestor != kNoRank) return ancestor;
  const uint32_t mine = position(op, rank_);
  for (uint32_t at = 0; at < mine; ++at) {
    if (const uint32_t rank = rank_at(op, at); alive(rank)) return rank;
  }
  return kNoRank;
}

// The state of a subtree.
struct CollectiveGroup::Walk {
  // Ranks, in order: this process, and ranks that have contributed for their subtrees.
  std::vector<uint32_t> covered;
  std::vector<uint32_t> missing;
  std::vector<uint32_t> dead;  // dead without having contributed
};

// If a process died after it contributed, its contribution counts for its whole subtree.
// Contributions that its children sent to this process as well are then ignored. So nothing is
// folded twice.
void CollectiveGroup::walk(const Operation& op, uint32_t position, Walk& found) const {
  const uint32_t rank = rank_at(op, position);
  const bool we = rank == rank_;
  if (we || op.contributed.contains(rank)) {
    found.covered.push_back(rank);
    if (!we) return;
  } else if (alive(rank)) {
    found.missing.push_back(rank);
    return;
  } else {
    found.dead.push_back(rank);
  }
  for_each_child(position, [&](uint32_t child) { walk(op, child, found); });
}

// Collects the ranks to which this process sends the result: its children. A dead child is replaced
// by its own children.
void CollectiveGroup::walk_down(const Operation& op, uint32_t position,
                                std::vector<uint32_t>& to) const {
  const uint32_t rank = rank_at(op, position);
  if (rank != rank_ && alive(rank)) return to.push_back(rank);
  for_each_child(position, [&](uint32_t child) { walk_down(op, child, to); });
}

// ---- Phases -------------------------------------------------------------------------------------

CollectiveGroup::CollectiveGroup(Fabric& fabric, ControlTraffic& traffic, uint32_t id)
    : fabric_(fabric), traffic_(traffic), id_(id), rank_(fabric.rank()), size_(fabric.size()) {}

void CollectiveGroup::open(const CollectiveOptions& options) {
  const std::lock_guard lock(mutex_);
  threads_ = options.participants == Participants::kThreads;
  leave_out_dead_ = options.leave_out_dead;
  member_count_ = threads_ ? fabric_.threads() : 1;
  members_.resize(member_count_);
}

uint32_t CollectiveGroup::self() const {
  if (!threads_) return rank_;
  const ThreadContext* const context = fabric_.this_thread();
  return context == nullptr ? kNoThread : context->global_id();
}

// Returns true if this process's members have entered. In a one-phase broadcast one member is
// enough for the process to wait for the value.
bool CollectiveGroup::entered(uint64_t sequence, const Operation& op) const {
  return is_full(sequence, op.kind) ? member_count_ != 0 && op.here == member_count_ : op.here != 0;
}

CollectiveGroup::Operation& CollectiveGroup::operation(uint64_t sequence) {
  return operations_[sequence];
}

void CollectiveGroup::agree_on(Operation& op, CollectiveKind kind, uint32_t pivot,
                               const std::string& who) {
  if (!op.known) {
    op.known = true;
    op.kind = kind;
    op.pivot = pivot;
  } else if (op.problem.ok() && (op.kind != kind || op.pivot != pivot)) {
    op.problem =
        make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kOperation,
                   who + " is in " + std::string(name_of(kind)) +
                       (op.kind == kind ? " from another source" : "") +
                       ", other participants are in " + std::string(name_of(op.kind)),
                   "every participant calls the same collective functions in the same order");
  }
}

void CollectiveGroup::post(Outbox& outbox, uint32_t to, PacketType type, uint64_t sequence,
                           const Operation& op, std::shared_ptr<const std::string> parcel) const {
  Outgoing& out = outbox.emplace_back();
  out.to = to;
  out.packet.sequence = sequence;
  out.packet.group = id_;
  out.packet.pivot = op.pivot;
  out.packet.hops = op.hops;
  out.packet.type = type;
  out.packet.kind = op.kind;
  out.parcel = std::move(parcel);
}

void CollectiveGroup::advance(uint64_t sequence, Operation& op, Outbox& outbox) {
  if (op.decided || !op.known || !entered(sequence, op)) return;
  if (!is_full(sequence, op.kind)) return await_value(op, sequence, outbox);

  const uint32_t to = parent(op);
  Walk found;
  walk(op, to == kNoRank ? 0 : position(op, rank_), found);
  if (!found.missing.empty()) {
    // A child of a dead process may have the result. It sends the result to this process only in
    // answer to a kAsk.
    if (found.dead.empty()) return;
    for (const uint32_t rank : found.missing) {
      if (op.asked.insert(rank).second) post(outbox, rank, PacketType::kAsk, sequence, op);
    }
    return;
  }
  if (to != kNoRank && op.sent_to == to) return;
  CollectiveParcel parcel = fold_up(op, found);
  if (to != kNoRank) {
    op.sent_to = to;
    return post(outbox, to, PacketType::kUp, sequence, op,
                std::make_shared<const std::string>(parcel.save()));
  }
  if (parcel.status.ok() && op.kind == CollectiveKind::kBroadcast && op.pivot != rank_) {
    parcel.status = dead_peer_error(
        fabric_, op.pivot, describe(sequence, op.kind) + " from " + fabric_.label(op.pivot));
  }
  if (parcel.status.ok() && !leave_out_dead_ && !parcel.left_out.empty()) {
    std::string what = describe(sequence, op.kind);
    if (parcel.left_out.size() > 1) {
      std::string names;
      for (const uint32_t rank : parcel.left_out) {
        names += (names.empty() ? "" : ", ") + fabric_.label(rank);
      }
      what += " without " + names;
    }
    parcel.status = dead_peer_error(fabric_, parcel.left_out.front(), what);
  }
  decide(sequence, op, std::move(parcel), 0, kNoRank, outbox);
}

// Advances a broadcast that has the down phase only.
void CollectiveGroup::await_value(Operation& op, uint64_t sequence, Outbox& outbox) {
  if (op.pivot == rank_) {
    if (op.source_member >= op.values.size() || !op.values[op.source_member].has_value()) return;
    CollectiveParcel parcel;
    parcel.status = op.problem;
    parcel.bytes = *op.values[op.source_member];
    return decide(sequence, op, std::move(parcel), 0, kNoRank, outbox);
  }
  const uint32_t ancestor = living_ancestor(op);
  if (ancestor == kNoRank) {
    CollectiveParcel parcel;
    parcel.status = dead_peer_error(
        fabric_, op.pivot, describe(sequence, op.kind) + " from " + fabric_.label(op.pivot));
    return decide(sequence, op, std::move(parcel), 0, kNoRank, outbox);
  }
  const uint32_t mine = position(op, rank_);
  if (ancestor != rank_at(op, mine & (mine - 1)) && op.asked.insert(ancestor).second) {
    post(outbox, ancestor, PacketType::kAsk, sequence, op);
  }
}

CollectiveParcel CollectiveGroup::fold_up(Operation& op, const Walk& found) const {
  CollectiveParcel sum;
  sum.status = op.problem;
  sum.left_out = found.dead;
  bool first = true;
  const auto fold = [&](const std::string& bytes) {
    if (op.kind == CollectiveKind::kBarrier) return;
    if (first) {
      sum.bytes = bytes;
      first = false;
      return;
    }
    bool folded = false;
    try {
      folded = op.fold(sum.bytes, bytes);
    } catch (...) {
      sum.status.Update(make_error(absl::StatusCode::kInternal, ErrorScope::kOperation,
                                   "the operator of all_reduce threw " + describe_exception()));
      return;
    }
    if (!folded) {
      sum.status.Update(make_error(
          absl::StatusCode::kFailedPrecondition, ErrorScope::kOperation,
          std::string(name_of(op.kind)) + ": participants have values of different types",
          "every participant calls with the same type"));
    }
  };
  for (const uint32_t rank : found.covered) {
    if (op.kind == CollectiveKind::kBroadcast) {
      if (rank == op.pivot && rank == rank_) sum.bytes = op.values[op.source_member].value_or("");
    } else if (rank == rank_) {
      for (const auto& value : op.values) fold(*value);
    } else {
      fold(op.contributed.at(rank).bytes);
    }
    if (rank == rank_) continue;
    const CollectiveParcel& theirs = op.contributed.at(rank);
    sum.status.Update(theirs.status);
    sum.left_out.insert(sum.left_out.end(), theirs.left_out.begin(), theirs.left_out.end());
  }
  std::sort(sum.left_out.begin(), sum.left_out.end());
  return sum;
}

void CollectiveGroup::decide(uint64_t sequence, Operation& op, CollectiveParcel result,
                             uint32_t hops, uint32_t except, Outbox& outbox) {
  const bool root = living_ancestor(op) == kNoRank;
  std::vector<uint32_t> to;
  walk_down(op, root ? 0 : position(op, rank_), to);
  // Send to the deepest subtrees first.
  std::reverse(to.begin(), to.end());
  // Also send to the processes that have asked or contributed: they may have detected other deaths,
  // and so use another tree.
  std::set<uint32_t> others = std::move(op.asking);
  for (const auto& contribution : op.contributed) others.insert(contribution.first);
  for (const uint32_t rank : to) others.erase(rank);
  to.insert(to.end(), others.begin(), others.end());
  to.erase(std::remove(to.begin(), to.end(), except), to.end());

  op.decided = true;
  op.hops = hops;
  op.result = std::move(result);
  op.contributed.clear();
  op.incomplete.clear();
  op.values.clear();
  op.fold = nullptr;
  if (to.empty()) return;
  const auto parcel = std::make_shared<const std::string>(op.result.save());
  for (const uint32_t rank : to) post(outbox, rank, PacketType::kDown, sequence, op, parcel);
}

void CollectiveGroup::arrive(uint32_t from, const CollectivePacket& packet,
                             std::string_view piece) {
  if (packet.pivot >= size_ || packet.kind > CollectiveKind::kGather || from >= size_) return;
  Outbox outbox;
  {
    const std::lock_guard lock(mutex_);
    uint64_t slowest = members_.empty() ? 0 : UINT64_MAX;
    for (const Member& member : members_) slowest = std::min(slowest, member.finished);
    const uint64_t sequence = packet.sequence;
    // Drop the packet: no correct process is so far ahead or behind.
    if (sequence == 0 || sequence > slowest + 2 * kCollectiveWindow ||
        (sequence + kCollectiveWindow < slowest && !operations_.contains(sequence))) {
      return;
    }
    Operation& op = operation(sequence);
    std::optional<CollectiveParcel> parcel;
    if (packet.type != PacketType::kAsk) {
      // A parcel may arrive twice, its pieces interleaved. Both copies have the same bytes, so one
      // is assembled from both.
      if (packet.type != PacketType::kUp && op.decided) return;
      std::string& whole = op.incomplete[{from, packet.type}];
      if (packet.total > kMaxParcel || packet.offset != whole.size() ||
          piece.size() > packet.total - packet.offset) {
        return;
      }
      whole += piece;
      if (whole.size() < packet.total) return;
      parcel = CollectiveParcel::load(whole);
      op.incomplete.erase({from, packet.type});
      if (!parcel.has_value()) return;
      const auto exists = [&](uint32_t rank) { return rank < size_; };
      if (!std::all_of(parcel->left_out.begin(), parcel->left_out.end(), exists)) return;
    }
    if (!op.decided) agree_on(op, packet.kind, packet.pivot, fabric_.label(from));
    if (packet.type == PacketType::kDown) {
      if (!op.problem.ok() && op.here != 0) {
        parcel = CollectiveParcel{};
        parcel->status = op.problem;
      }
      decide(sequence, op, *std::move(parcel), packet.hops + 1, from, outbox);
    } else if (op.decided) {
      post(outbox, from, PacketType::kDown, sequence, op,
           std::make_shared<const std::string>(op.result.save()));
    } else if (packet.type == PacketType::kAsk) {
      op.asking.insert(from);
      // Two participants that wait for each other in different functions would never continue.
      if (!op.problem.ok() && op.here != 0) {
        CollectiveParcel failed;
        failed.status = op.problem;
        decide(sequence, op, std::move(failed), 0, kNoRank, outbox);
      }
    } else {
      op.contributed.insert_or_assign(from, *std::move(parcel));
      advance(sequence, op, outbox);
    }
  }
  send_all(outbox, kForever);
  workers_of(fabric_).notify_waiters();
}

// ---- Sending ------------------------------------------------------------------------------------

bool CollectiveGroup::send(uint32_t to, const CollectivePacket& packet, std::string_view piece) {
  const TraceScope trace("dsfabric", "send part of a collective", "rank", to);
  absl::Status sent;
  const bool accepted = traffic_.sending(to, [&] {
    // Never blocks: RetryAsync defers the call if there is no credit.
    sent = service_call<RetryAsync>(
               fabric_, to,
               [packet](const std::string& bytes) {
                 Fabric& fabric = *running_fabric();
                 traffic_of(fabric).arrived(running_source());
                 const auto group = find_group(fabric, packet.group);
                 if (group != nullptr) group->arrive(running_source(), packet, bytes);
               },
               std::string(piece))
               .status();
    return sent.ok();
  });
  // A connected process accepts control calls again when its own threads have run.
  refusals_.note(to, sender_of(fabric_).is_connected(to) ? absl::OkStatus() : sent,
                 std::chrono::steady_clock::now());
  return accepted;
}

void CollectiveGroup::send_all(Outbox& outbox, Deadline deadline) {
  if (outbox.empty()) return;
  const ScopedConnectDeadline scope(deadline);
  const size_t most = fabric_.options().receive_unit_bytes - kAround;
  uint64_t sent = 0;
  for (const Outgoing& out : outbox) {
    CollectivePacket packet = out.packet;
    const std::string_view parcel = out.parcel == nullptr ? std::string_view() : *out.parcel;
    packet.total = parcel.size();
    bool accepted = true;
    do {
      const std::string_view piece = parcel.substr(packet.offset, most);
      accepted = send(out.to, packet, piece);
      packet.offset += piece.size();
      ++sent;
    } while (accepted && packet.offset < parcel.size());
    if (accepted || packet.type != PacketType::kUp) continue;
    // The contribution was not accepted. The next look() sends it again, to the same process or, if
    // that process is dead, to another one. A process that misses a result asks for it, so lost
    // results and requests need no action here.
    const std::lock_guard lock(mutex_);
    const auto op = operations_.find(packet.sequence);
    if (op != operations_.end() && op->second.sent_to == out.to) op->second.sent_to = kNoRank;
  }
  const std::lock_guard lock(mutex_);
  statistics_.messages += sent;
}

// ---- Members ------------------------------------------------------------------------------------

absl::StatusOr<std::string> CollectiveGroup::run(CollectiveKind kind, uint32_t source,
                                                 std::string value, CollectiveFold fold,
                                                 size_t bytes, Deadline deadline) {
  if (running_fabric() != nullptr) {
    return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kOperation,
                      std::string(name_of(kind)) + "() was called inside of a call",
                      "call it from a thread outside of calls");
  }
  const Lifecycle& lifecycle = job_of(fabric_).lifecycle();
  if (lifecycle.is_closed()) return lifecycle.closed_error();
  const uint32_t number = self();
  if (number == kNoThread) {
    return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kOperation,
                      std::string(name_of(kind)) + "() was called by a thread that is not a worker",
                      "call init_thread() first");
  }
  if (source >= participants()) {
    return make_error(absl::StatusCode::kOutOfRange, ErrorScope::kOperation,
                      "there is no participant " + std::to_string(source) + ": there are " +
                          std::to_string(participants()));
  }
  // Every participant computes the same length, so all refuse the operation, and none waits.
  const uint64_t result_bytes = kind == CollectiveKind::kGather ? bytes * participants() : bytes;
  if (result_bytes > kMaxResult) {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                      "the result of " + std::string(name_of(kind)) + "() would take " +
                          std::to_string(result_bytes) + " bytes, more than " +
                          std::to_string(kMaxResult),
                      "use smaller values, or GlobalMemory");
  }
  const TraceScope trace("dsfabric", name_of(kind).data());
  const uint32_t index = number % member_count_;
  uint64_t sequence = 0;
  {
    const std::lock_guard lock(mutex_);
    Member& member = members_[index];
    if (member.busy) {
      return make_error(
          absl::StatusCode::kFailedPrecondition, ErrorScope::kOperation,
          "participant " + std::to_string(number) + " is in a collective operation already",
          "use one Collectives object per thread that calls, or kThreads");
    }
    sequence = member.finished + 1;
    Operation& op = operation(sequence);
    if (!op.decided) {
      agree_on(op, kind, source / member_count_, "participant " + std::to_string(number));
      op.values.resize(member_count_);
      if (!op.values[index].has_value()) {
        op.values[index] = std::move(value);
        op.source_member = source % member_count_;
        op.fold = std::move(fold);
        ++op.here;
      }
    }
    member.busy = true;
  }
  // Also after an exception (no memory, or one of a call that runs meanwhile): the participant may
  // call again, as after DEADLINE_EXCEEDED.
  const struct Done {
    ~Done() {
      const std::lock_guard lock(group.mutex_);
      group.members_[index].busy = false;
    }
    CollectiveGroup& group;
    const uint32_t index;
  } done{*this, index};
  // This member may be the last one that the other members here wait for.
  if (look(sequence, deadline)) workers_of(fabric_).notify_waiters();
  while (!fabric_.wait([&] { return look(sequence, deadline); },
                       std::min(deadline, deadline_after(fabric_.options().heartbeat)))) {
    absl::Status late;
    if (lifecycle.is_closed()) {
      late = lifecycle.closed_error();
    } else if (std::chrono::steady_clock::now() >= deadline) {
      late = too_late(sequence, kind);
    } else {
      nudge(sequence, deadline);
      late = lacking_resources(sequence, kind);
    }
    if (!late.ok()) return late;
  }

  const std::lock_guard lock(mutex_);
  Member& member = members_[index];
  const Operation& op = operation(sequence);
  absl::StatusOr<std::string> result = op.result.bytes;
  if (!op.result.status.ok()) {
    result = op.result.status;
  } else if (op.kind != kind || (kind == CollectiveKind::kGather ? result->size() % bytes != 0
                                                                 : result->size() != bytes)) {
    result = make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kOperation,
                        "the result of " + describe(sequence, op.kind) +
                            " does not match the call of this participant",
                        "every participant calls the same function with the same type");
  }
  member.left_out = op.result.left_out;
  member.finished = sequence;
  ++statistics_.operations;
  if (kind == CollectiveKind::kBroadcast) statistics_.broadcast_hops = op.hops;
  uint64_t slowest = sequence;
  for (const Member& other : members_) slowest = std::min(slowest, other.finished);
  // A finished operation proves that every process has entered the last two-phase operation, so
  // older results are no longer needed.
  while (operations_.begin()->first + kCollectiveWindow < slowest) {
    operations_.erase(operations_.begin());
  }
  return result;
}

bool CollectiveGroup::look(uint64_t sequence, Deadline deadline) {
  Outbox outbox;
  bool decided = false;
  {
    const std::lock_guard lock(mutex_);
    Operation& op = operation(sequence);
    const bool before = op.decided;
    advance(sequence, op, outbox);
    decided = op.decided;
    if (decided == before && outbox.empty()) return decided;
  }
  send_all(outbox, deadline);
  if (decided) workers_of(fabric_).notify_waiters();  // other members here wait for the same result
  return decided;
}

// Returns the ranks that the operation waits for.
std::vector<uint32_t> CollectiveGroup::awaited(uint64_t sequence, const Operation& op) const {
  if (op.decided || !op.known) return {};
  const uint32_t to = is_full(sequence, op.kind) ? parent(op) : living_ancestor(op);
  if (!is_full(sequence, op.kind)) {
    return to == kNoRank ? std::vector<uint32_t>{} : std::vector<uint32_t>{to};
  }
  Walk found;
  walk(op, to == kNoRank ? 0 : position(op, rank_), found);
  if (found.missing.empty() && to != kNoRank) found.missing.push_back(to);
  return found.missing;
}

void CollectiveGroup::nudge(uint64_t sequence, Deadline deadline) {
  Outbox outbox;
  {
    const std::lock_guard lock(mutex_);
    const Operation& op = operation(sequence);
    for (const uint32_t rank : awaited(sequence, op)) {
      post(outbox, rank, PacketType::kAsk, sequence, op);
    }
  }
  send_all(outbox, deadline);
}

absl::Status CollectiveGroup::lacking_resources(uint64_t sequence, CollectiveKind kind) {
  std::unique_lock lock(mutex_);
  const std::vector<uint32_t> ranks = awaited(sequence, operation(sequence));
  lock.unlock();
  for (const uint32_t rank : ranks) {
    const absl::Status refusal = refusals_.error(rank, std::chrono::steady_clock::now());
    if (refusal.ok() || sender_of(fabric_).is_connected(rank)) continue;  // connected since
    return make_error(
        absl::StatusCode::kDeadlineExceeded, ErrorScope::kPeer,
        describe(sequence, kind) + ": " + fabric_.label(rank) +
            " could not be connected for more than a second: " + std::string(refusal.message()));
  }
  return absl::OkStatus();
}

CollectiveBlockers CollectiveGroup::blockers(uint64_t sequence) {
  const std::lock_guard lock(mutex_);
  CollectiveBlockers blockers;
  const auto at = operations_.find(sequence);
  if (at == operations_.end() || !at->second.known || !entered(sequence, at->second)) {
    for (uint32_t i = 0; i < member_count_; ++i) {
      const bool here = at != operations_.end() && i < at->second.values.size() &&
                        at->second.values[i].has_value();
      if (!here && members_[i].finished < sequence) blockers.names.push_back(i);
    }
    blockers.entered = member_count_ != 0 && blockers.names.empty();
    return blockers;
  }
  blockers.entered = true;
  blockers.names = awaited(sequence, at->second);
  return blockers;
}

// Finds the participants that have not entered: asks the processes that this one waits for, then
// the processes that those wait for, and so on.
absl::Status CollectiveGroup::too_late(uint64_t sequence, CollectiveKind kind) {
  std::set<uint32_t> seen{rank_};
  std::string names;
  size_t count = 0;
  std::vector<uint32_t> next;
  const auto note = [&](uint32_t rank, const CollectiveBlockers& found) {
    if (found.entered) {
      for (const uint32_t other : found.names) {
        if (other < size_ && seen.insert(other).second) next.push_back(other);
      }
    } else if (count < kMostNames) {
      names += count++ == 0 ? "" : ", ";
      if (threads_ && !found.names.empty() && found.names.size() < member_count_) {
        names += "thread " + std::to_string(found.names.front()) + " of ";
      }
      names += fabric_.label(rank);
    }
  };
  note(rank_, blockers(sequence));
  for (size_t round = 0; round < kSearchRounds && !next.empty() && count < kMostNames; ++round) {
    using Answer = std::pair<bool, std::vector<uint32_t>>;
    std::vector<Question<Answer>> questions;
    const std::vector<uint32_t> asked = std::exchange(next, {});
    questions.reserve(asked.size());
    const Deadline patience = deadline_after(kSearch);
    for (const uint32_t rank : asked) {
      questions.push_back(ask<Answer>(
          fabric_, rank, patience, nullptr,
          [](uint32_t group_id, uint64_t wanted) {
            const auto group = find_group(*running_fabric(), group_id);
            if (group == nullptr) return Answer{};
            CollectiveBlockers found = group->blockers(wanted);
            return Answer{found.entered, std::move(found.names)};
          },
          id_, sequence));
    }
    for (size_t i = 0; i < asked.size(); ++i) {
      auto answer = questions[i].wait(patience);
      note(asked[i], answer.ok() ? CollectiveBlockers{answer->first, std::move(answer->second)}
                                 : CollectiveBlockers{});
    }
  }
  return make_error(absl::StatusCode::kDeadlineExceeded, ErrorScope::kPeer,
                    count == 0 ? describe(sequence, kind) + " did not end in time"
                               : names + " did not enter " + describe(sequence, kind) + " in time",
                    peer_remedy(PeerRemedy::kSilent));
}

std::vector<uint32_t> CollectiveGroup::left_out() const {
  const uint32_t number = self();
  const std::lock_guard lock(mutex_);
  return number == kNoThread ? std::vector<uint32_t>{} : members_[number % member_count_].left_out;
}

}  // namespace cariama::internal
