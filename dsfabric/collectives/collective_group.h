// The state of one process in the operations of one Collectives object: a state machine that is
// advanced by arriving messages and by its members.
#ifndef CARIAMA_DSFABRIC_COLLECTIVES_COLLECTIVE_GROUP_H_
#define CARIAMA_DSFABRIC_COLLECTIVES_COLLECTIVE_GROUP_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dsfabric/calls/control_traffic.h"
#include "dsfabric/collectives.h"
#include "dsfabric/collectives/refusals.h"

namespace cariama {
class Fabric;
}  // namespace cariama

namespace cariama::internal {

// A broadcast whose operation number is a multiple of this has an up phase and a down phase; other
// broadcasts have the down phase only.
inline constexpr uint64_t kCollectiveWindow = 16;

enum class PacketType : uint8_t {
  kUp,    // the contribution of a subtree
  kDown,  // the result
  kAsk,   // a request for the result; also a probe: a dead receiver is detected when it is sent
};

// The header of every message; the call that carries the message captures it.
struct CollectivePacket {
  uint64_t sequence = 0;
  uint64_t total = 0;   // bytes of the parcel
  uint64_t offset = 0;  // of this message's piece within the parcel
  uint32_t group = 0;
  uint32_t pivot = 0;  // the rank at the root of the tree
  uint32_t hops = 0;
  PacketType type = PacketType::kAsk;
  CollectiveKind kind = CollectiveKind::kBarrier;
  uint16_t reserved = 0;
};

// The data that travels up and down the tree.
struct CollectiveParcel {
  absl::Status status;
  std::vector<uint32_t> left_out;  // dead ranks, ascending
  std::string bytes;

  [[nodiscard]] std::string save() const;
  [[nodiscard]] static std::optional<CollectiveParcel> load(std::string_view bytes);
};

// The reason why an operation has not ended in this process.
struct CollectiveBlockers {
  // True: all members of this process have entered; `names` are the ranks that they wait for.
  // False: `names` are the members that have not entered.
  bool entered = false;
  std::vector<uint32_t> names;
};

class CollectiveGroup {
 public:
  CollectiveGroup(Fabric& fabric, ControlTraffic& traffic, uint32_t id);

  // Called when the process creates its Collectives object. Before that, the group only forwards
  // results.
  void open(const CollectiveOptions& options);

  [[nodiscard]] Fabric& fabric() const { return fabric_; }
  [[nodiscard]] uint32_t participants() const { return fabric_.size() * member_count_; }
  [[nodiscard]] uint32_t self() const;
  [[nodiscard]] absl::StatusOr<std::string> run(CollectiveKind kind, uint32_t source,
                                                std::string value, CollectiveFold fold,
                                                size_t bytes, Deadline deadline);
  [[nodiscard]] std::vector<uint32_t> left_out() const;
  [[nodiscard]] CollectiveStatistics statistics() const {
    const std::lock_guard lock(mutex_);
    return statistics_;
  }

  // Handles an arrived message. Never blocks.
  void arrive(uint32_t from, const CollectivePacket& packet, std::string_view piece);
  [[nodiscard]] CollectiveBlockers blockers(uint64_t sequence);

 private:
  struct Operation {
    bool known = false;  // kind and pivot are set
    CollectiveKind kind = CollectiveKind::kBarrier;
    uint32_t pivot = 0;
    uint32_t source_member = 0;  // the source's member index in the pivot's process
    std::vector<std::optional<std::string>> values;  // of this process's members
    uint32_t here = 0;
    CollectiveFold fold;
    absl::Status problem;                              // an error if participants disagree
    std::map<uint32_t, CollectiveParcel> contributed;  // by sending rank
    std::set<uint32_t> asking;                         // ranks that asked for the result
    std::set<uint32_t> asked;
    std::map<std::pair<uint32_t, PacketType>, std::string> incomplete;
    uint32_t sent_to = kNoRank;
    bool decided = false;
    uint32_t hops = 0;
    CollectiveParcel result;
  };
  struct Member {
    bool busy = false;
    uint64_t finished = 0;
    std::vector<uint32_t> left_out;
  };
  struct Outgoing {
    uint32_t to;
    CollectivePacket packet;
    std::shared_ptr<const std::string> parcel;
  };
  using Outbox = std::vector<Outgoing>;
  struct Walk;

  // Returns the position of a rank in the tree; position 0 is the root.
  [[nodiscard]] uint32_t position(const Operation& op, uint32_t rank) const {
    return (rank + size_ - op.pivot) % size_;
  }
  [[nodiscard]] uint32_t rank_at(const Operation& op, uint32_t position) const {
    return (position + op.pivot) % size_;
  }
  template <typename Function>
  void for_each_child(uint32_t position, Function&& function) const;
  [[nodiscard]] bool alive(uint32_t rank) const;

  // The functions below require that mutex_ is held.
  [[nodiscard]] static bool is_full(uint64_t sequence, CollectiveKind kind) {
    return kind != CollectiveKind::kBroadcast || sequence % kCollectiveWindow == 0;
  }
  [[nodiscard]] bool entered(uint64_t sequence, const Operation& op) const;
  [[nodiscard]] Operation& operation(uint64_t sequence);
  void agree_on(Operation& op, CollectiveKind kind, uint32_t pivot, const std::string& who);
  [[nodiscard]] uint32_t living_ancestor(const Operation& op) const;
  [[nodiscard]] uint32_t parent(const Operation& op) const;
  void walk(const Operation& op, uint32_t position, Walk& found) const;
  void walk_down(const Operation& op, uint32_t position, std::vector<uint32_t>& to) const;
  void advance(uint64_t sequence, Operation& op, Outbox& outbox);
  void await_value(Operation& op, uint64_t sequence, Outbox& outbox);
  [[nodiscard]] CollectiveParcel fold_up(Operation& op, const Walk& found) const;
  void decide(uint64_t sequence, Operation& op, CollectiveParcel result, uint32_t hops,
              uint32_t except, Outbox& outbox);
  [[nodiscard]] std::vector<uint32_t> awaited(uint64_t sequence, const Operation& op) const;
  void post(Outbox& outbox, uint32_t to, PacketType type, uint64_t sequence, const Operation& op,
            std::shared_ptr<const std::string> parcel = nullptr) const;

  // The functions below require that mutex_ is not held. send_all() waits at most until `deadline`
  // for a process to which it has to connect.
  void send_all(Outbox& outbox, Deadline deadline);
  [[nodiscard]] bool send(uint32_t to, const CollectivePacket& packet, std::string_view piece);
  [[nodiscard]] bool look(uint64_t sequence, Deadline deadline);
  void nudge(uint64_t sequence, Deadline deadline);
  // Returns DEADLINE_EXCEEDED, since the operation is still in progress, if it waits for a process
  // that this process cannot connect, because one of the two lacks descriptors or memory; else OK.
  [[nodiscard]] absl::Status lacking_resources(uint64_t sequence, CollectiveKind kind);
  [[nodiscard]] absl::Status too_late(uint64_t sequence, CollectiveKind kind);

  Fabric& fabric_;
  ControlTraffic& traffic_;
  const uint32_t id_;
  const uint32_t rank_;
  const uint32_t size_;
  bool threads_ = false;  // each thread takes part for itself (kThreads)
  bool leave_out_dead_ = true;
  uint32_t member_count_ = 0;  // 0: no Collectives object yet

  mutable std::mutex mutex_;
  std::vector<Member> members_;
  std::map<uint64_t, Operation> operations_;
  CollectiveStatistics statistics_;
  Refusals refusals_;
};

// An attachment: the groups of a fabric.
class CollectiveGroups {
 public:
  explicit CollectiveGroups(Fabric& fabric) : fabric_(fabric) {}
  // Returns the next group in creation order.
  [[nodiscard]] std::shared_ptr<CollectiveGroup> next(ControlTraffic& traffic) {
    const std::lock_guard lock(mutex_);
    return get(traffic, next_++);
  }
  // Returns the group that a message of another process names, even if this process has not created
  // its object yet. Returns nullptr if the id is too far ahead to be valid.
  [[nodiscard]] std::shared_ptr<CollectiveGroup> find(ControlTraffic& traffic, uint32_t id) {
    const std::lock_guard lock(mutex_);
    return id < next_ || id - next_ < kGroupsAhead ? get(traffic, id) : nullptr;
  }

 private:
  // How many groups another process may be ahead in creating them.
  static constexpr uint32_t kGroupsAhead = 1024;

  // Requires: mutex_ is locked.
  [[nodiscard]] std::shared_ptr<CollectiveGroup> get(ControlTraffic& traffic, uint32_t id) {
    std::shared_ptr<CollectiveGroup>& group = groups_[id];
    if (group == nullptr) group = std::make_shared<CollectiveGroup>(fabric_, traffic, id);
    return group;
  }

  Fabric& fabric_;
  std::mutex mutex_;
  uint32_t next_ = 0;
  std::map<uint32_t, std::shared_ptr<CollectiveGroup>> groups_;
};

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_COLLECTIVES_COLLECTIVE_GROUP_H_
