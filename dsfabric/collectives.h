// Collective operations of all processes of a job: barrier, broadcast, reduction, gathering; with
// deadlines, and with handling of process failures.
//
//   Collectives all(fabric);                         // in every process, in the same order
//   all.barrier(deadline_after(10s));
//   all.broadcast(parameters, 0, deadline);         // every participant gets rank 0's value
//   auto total = all.all_reduce(mine, std::plus<>(), deadline);  // folded in the order of ranks
//   auto table = all.all_gather(mine, deadline);
//
// Participants: one thread of each process (kProcesses), or every long-lived thread of each process
// (kThreads). A participant's number is its Rank, or its ThreadId. All participants call the same
// functions in the same order. A detected mismatch ends the operation with FAILED_PRECONDITION.
//
// Cost. Service calls along a binomial tree over the P processes. An operation has an up phase and
// a down phase: 2 (P - 1) messages in all, 2 ceil(log2 P) steps one after the other. A broadcast
// has the down phase only, ceil(log2 P) steps; but every broadcast whose operation number is a
// multiple of 16 has both phases. This bounds memory: a fast source is at most 16 operations ahead.
// Inner processes forward results before their own threads wake. Every value passes through one
// process, so use collectives for small values. Each object stores its last 17 results until the
// fabric ends.
//
// Failures. A waiting participant sends one message per heartbeat to each process that it waits
// for, so that the transport detects a dead process. The children of a dead process attach to its
// nearest living ancestor or, if there is none, to the first living position of the tree. No
// process is more than one full (two-phase) operation ahead, so a result that only some processes
// have is recovered from them. With leave_out_dead, the operation completes without the dead
// processes. left_out() returns their ranks, the same list at all participants. Otherwise the
// operation ends with UNAVAILABLE, and the text names the dead processes. A broadcast whose source
// is dead ends with UNAVAILABLE at the participants that its value has not reached.
//
// An operation ends with DEADLINE_EXCEEDED also before its deadline, if for more than a second a
// process that it waits for could not be connected, because one of the two lacks descriptors or
// address space. The error has the cause and the remedy.
//
// After DEADLINE_EXCEEDED the operation is still in progress. The participant's next call must be
// the same operation; it continues to wait (its value argument is ignored). The error names the
// participants that have not entered the operation; finding them may take up to a second more.
#ifndef CARIAMA_DSFABRIC_COLLECTIVES_H_
#define CARIAMA_DSFABRIC_COLLECTIVES_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dsfabric/export.h"
#include "dsfabric/fabric.h"
#include "dtutils/wait.h"

namespace cariama {

namespace internal {
class CollectiveGroup;

// Folds the value of later participants, `from`, into `into`. Returns false if the value does not
// fit this operation.
using CollectiveFold = std::function<bool(std::string& into, std::string_view from)>;
enum class CollectiveKind : uint8_t { kBarrier, kBroadcast, kReduce, kGather };
}  // namespace internal

enum class Participants : uint8_t {
  kProcesses,  // one thread per process; any thread, one at a time
  kThreads,    // all long-lived threads: each takes part as a worker of the fabric
};

struct CollectiveOptions {
  Participants participants = Participants::kProcesses;
  // See Failures above.
  bool leave_out_dead = false;
};

// Counters of one object in this process.
struct CollectiveStatistics {
  uint64_t operations = 0;  // completed
  uint64_t messages = 0;    // sent
  // Tree edges between the source of the last broadcast and this process.
  uint32_t broadcast_hops = 0;
};

// Thread-safe as far as Participants allows. Not to be called inside of a call. The blocking
// functions run incoming calls while they wait.
class CARIAMA_DSFABRIC_EXPORT Collectives {
 public:
  // Sends nothing. Objects of different processes are matched by creation order: every process
  // creates the same objects in the same order. The fabric must outlive the object.
  explicit Collectives(Fabric& fabric, const CollectiveOptions& options = {});
  ~Collectives();
  Collectives(const Collectives&) = delete;
  Collectives& operator=(const Collectives&) = delete;

  [[nodiscard]] Fabric& fabric() const;
  [[nodiscard]] uint32_t participants() const;
  // Returns the caller's participant number, or kNoThread if the caller is not a worker of a
  // kThreads object.
  [[nodiscard]] uint32_t self() const;

  // Errors of all operations: DEADLINE_EXCEEDED, UNAVAILABLE (failed processes; the fabric was
  // finalized), FAILED_PRECONDITION (participants disagree about the operation; the caller is not a
  // worker; another operation of the same participant is in progress), RESOURCE_EXHAUSTED
  // (deferred_bytes), INVALID_ARGUMENT (the result, with all_gather the values of all participants,
  // takes more than 64 MiB; at all participants, and the operation does not count).

  // Blocks until every participant has called barrier().
  [[nodiscard]] absl::Status barrier(Deadline deadline);

  // Sets every participant's `value` to that of participant `source`. May return before the other
  // participants have the value. Requires: all name the same source. Another one is detected only
  // by participants that wait for the value; a participant that names itself does not wait, and
  // may return OK with its own value. Further error: OUT_OF_RANGE.
  template <typename T>
  [[nodiscard]] absl::Status broadcast(T& value, uint32_t source, Deadline deadline) {
    static_assert(std::is_trivially_copyable_v<T>,
                  "cariama: collectives take values that are trivially copyable");
    std::string bytes(reinterpret_cast<const char*>(&value), sizeof value);
    auto result = run(internal::CollectiveKind::kBroadcast, source, std::move(bytes), nullptr,
                      sizeof value, deadline);
    if (!result.ok()) return result.status();
    std::memcpy(&value, result->data(), sizeof value);
    return absl::OkStatus();
  }

  // Returns op(...op(op(value of 0, value of 1), value of 2)..., value of P-1) to every
  // participant. Requires: op is associative. The parenthesization depends on P alone (and on which
  // processes failed); the order never differs. `op` is copied, runs in any thread of any process,
  // and must not block.
  template <typename T, typename Op>
  [[nodiscard]] absl::StatusOr<T> all_reduce(const T& value, Op op, Deadline deadline) {
    static_assert(std::is_trivially_copyable_v<T>,
                  "cariama: collectives take values that are trivially copyable");
    const auto fold = [op](std::string& into, std::string_view from) mutable {
      if (into.size() != sizeof(T) || from.size() != sizeof(T)) return false;
      alignas(T) std::byte memory[2][sizeof(T)];
      std::memcpy(memory[0], into.data(), sizeof(T));
      std::memcpy(memory[1], from.data(), sizeof(T));
      const T folded = op(*std::launder(reinterpret_cast<const T*>(memory[0])),
                          *std::launder(reinterpret_cast<const T*>(memory[1])));
      std::memcpy(into.data(), &folded, sizeof(T));
      return true;
    };
    auto result = run(internal::CollectiveKind::kReduce, 0,
                      std::string(reinterpret_cast<const char*>(&value), sizeof value), fold,
                      sizeof value, deadline);
    if (!result.ok()) return result.status();
    alignas(T) std::byte memory[sizeof(T)];
    std::memcpy(memory, result->data(), sizeof(T));
    return *std::launder(reinterpret_cast<const T*>(memory));
  }

  // Returns the values of all participants by participant number; nullopt for the participants that
  // were left out.
  template <typename T>
  [[nodiscard]] absl::StatusOr<std::vector<std::optional<T>>> all_gather(const T& value,
                                                                         Deadline deadline) {
    static_assert(std::is_trivially_copyable_v<T>,
                  "cariama: collectives take values that are trivially copyable");
    constexpr size_t kRecord = sizeof(uint32_t) + sizeof(T);
    std::string record(kRecord, '\0');
    const uint32_t number = self();
    std::memcpy(record.data(), &number, sizeof number);
    std::memcpy(record.data() + sizeof number, &value, sizeof value);
    const auto fold = [](std::string& into, std::string_view from) {
      into += from;
      return from.size() % kRecord == 0;
    };
    auto result =
        run(internal::CollectiveKind::kGather, 0, std::move(record), fold, kRecord, deadline);
    if (!result.ok()) return result.status();
    std::vector<std::optional<T>> values(participants());
    for (size_t at = 0; at < result->size(); at += kRecord) {
      uint32_t from = 0;
      std::memcpy(&from, result->data() + at, sizeof from);
      if (from >= values.size()) continue;
      alignas(T) std::byte memory[sizeof(T)];
      std::memcpy(memory, result->data() + at + sizeof from, sizeof(T));
      values[from] = *std::launder(reinterpret_cast<const T*>(memory));
    }
    return values;
  }

  // Returns the dead processes that were left out of the caller's last completed operation,
  // ascending.
  [[nodiscard]] std::vector<Rank> left_out() const;
  [[nodiscard]] CollectiveStatistics statistics() const;

 private:
  // `source` is a participant number. The length of the result is a multiple of `bytes`.
  [[nodiscard]] absl::StatusOr<std::string> run(internal::CollectiveKind kind, uint32_t source,
                                                std::string value, internal::CollectiveFold fold,
                                                size_t bytes, Deadline deadline);

  std::shared_ptr<internal::CollectiveGroup> group_;
};

}  // namespace cariama

#endif  // CARIAMA_DSFABRIC_COLLECTIVES_H_
