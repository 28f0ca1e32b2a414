// The part of a process in the operations of one Collectives object: a state machine that is moved
// on by arriving messages and by its members, whoever comes.
#ifndef CARIAMA_DSFABRIC_INTERNAL_COLLECTIVE_GROUP_H_
#define CARIAMA_DSFABRIC_INTERNAL_COLLECTIVE_GROUP_H_

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
#include "dsfabric/collectives.h"
#include "dsfabric/fabric.h"
#include "dsfabric/internal/control_traffic.h"

namespace cariama::internal {

// A broadcast that is a multiple of this in the row of operations takes both ways.
inline constexpr uint64_t kCollectiveWindow = 16;

enum class PacketType : uint8_t {
  kUp,    // what a subtree contributes
  kDown,  // the result
  kAsk,   // "if you have the result, send it"; and a sign of death if it cannot be sent
};

// What every message says; captured by the call that it is.
struct CollectivePacket {
  uint64_t sequence = 0;
  uint64_t total = 0;   // bytes of the parcel
  uint64_t offset = 0;  // in it, of the piece that this message carries
  uint32_t group = 0;
  uint32_t pivot = 0;  // the rank at the root of the tree
  uint32_t hops = 0;
  PacketType type = PacketType::kAsk;
  CollectiveKind kind = CollectiveKind::kBarrier;
  uint16_t reserved = 0;
};

// What goes up and down the tree.
struct CollectiveParcel {
  absl::Status status;
  std::vector<uint32_t> left_out;  // dead ranks, in order
  std::string bytes;

  [[nodiscard]] std::string save() const;
  [[nodiscard]] static std::optional<CollectiveParcel> load(std::string_view bytes);
};

// What keeps a process, as far as it can say.
struct CollectiveBlockers {
  bool entered = false;         // all its members are here: `names` are ranks that it waits for; if
  std::vector<uint32_t> names;  // not, they are the members that have not come
};

class CollectiveGroup {
 public:
  CollectiveGroup(Fabric& fabric, ControlTraffic& traffic, uint32_t id);

  // A Collectives object was made here. Before, the group can only pass on.
  void open(const CollectiveOptions& options);

  [[nodiscard]] Fabric& fabric() const { return fabric_; }
  [[nodiscard]] uint32_t participants() const { return fabric_.size() * member_count_; }
  [[nodiscard]] uint32_t self() const;
  [[nodiscard]] absl::StatusOr<std::string> run(CollectiveKind kind, uint32_t source,
                                                std::string value, CollectiveFold fold,
                                                size_t bytes, Deadline deadline);
  [[nodiscard]] std::vector<uint32_t> left_out() const;
  [[nodiscard]] CollectiveStatistics statistics() const;

  // A message has come. Never waits.
  void arrive(uint32_t from, const CollectivePacket& packet, std::string_view piece);
  [[nodiscard]] CollectiveBlockers blockers(uint64_t sequence);

 private:
  struct Operation {
    bool known = false;  // kind and pivot are
    CollectiveKind kind = CollectiveKind::kBarrier;
    uint32_t pivot = 0;
    uint32_t source_member = 0;                      // of the pivot
    std::vector<std::optional<std::string>> values;  // of the members here
    uint32_t here = 0;
    CollectiveFold fold;
    absl::Status problem;                              // participants disagree
    std::map<uint32_t, CollectiveParcel> contributed;  // by the rank that sent it
    std::set<uint32_t> asking;                         // for the result
    std::set<uint32_t> asked;
    std::map<std::pair<uint32_t, PacketType>, std::string> incomplete;
    uint32_t sent_to = kNoThread;
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

  // A position in the tree: 0 is its root.
  [[nodiscard]] uint32_t position(const Operation& op, uint32_t rank) const {
    return (rank + size_ - op.pivot) % size_;
  }
  [[nodiscard]] uint32_t rank_at(const Operation& op, uint32_t position) const {
    return (position + op.pivot) % size_;
  }
  template <typename Function>
  void for_each_child(uint32_t position, Function&& function) const;
  [[nodiscard]] bool alive(uint32_t rank) const;

  // All with mutex_ held.
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

  // Without it.
  void flush(Outbox& outbox);
  [[nodiscard]] bool send(uint32_t to, const CollectivePacket& packet, std::string_view piece);
  [[nodiscard]] bool look(uint64_t sequence);
  void nudge(uint64_t sequence);
  [[nodiscard]] absl::Status too_late(uint64_t sequence, CollectiveKind kind);

  Fabric& fabric_;
  ControlTraffic& traffic_;
  const uint32_t id_;
  const uint32_t rank_;
  const uint32_t size_;
  bool threads_ = false;  // take part, each for itself
  bool leave_out_dead_ = true;
  uint32_t member_count_ = 0;  // 0: not open

  mutable std::mutex mutex_;
  std::vector<Member> members_;
  std::map<uint64_t, Operation> operations_;
  CollectiveStatistics statistics_;
};

// An attachment: the groups of a fabric.
class CollectiveGroups {
 public:
  explicit CollectiveGroups(Fabric& fabric) : fabric_(fabric) {}
  // The next in the order of creation.
  [[nodiscard]] std::shared_ptr<CollectiveGroup> next(ControlTraffic& traffic);
  // One that another process speaks of, which this one may not have made yet; nullptr: nobody can
  // have.
  [[nodiscard]] std::shared_ptr<CollectiveGroup> find(ControlTraffic& traffic, uint32_t id);

 private:
  [[nodiscard]] std::shared_ptr<CollectiveGroup> get(ControlTraffic& traffic, uint32_t id);

  Fabric& fabric_;
  std::mutex mutex_;
  uint32_t next_ = 0;
  std::map<uint32_t, std::shared_ptr<CollectiveGroup>> groups_;
};

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_INTERNAL_COLLECTIVE_GROUP_H_
