// What all processes of a job do together: barrier, broadcast, reduction, gathering; with
// deadlines, and with deaths.
//
//   Collectives all(fabric);                         // in every process, in the same order
//   all.barrier(deadline_after(10s));
//   all.broadcast(parameters, 0, deadline);                      // everybody has rank 0's
//   auto total = all.all_reduce(mine, std::plus<>(), deadline);  // in the order of ranks, always
//   auto table = all.all_gather(mine, deadline);
//
// Who takes part: one thread of each process, or every long-lived thread of each process
// (kThreads). A participant's number is its rank, or its global thread id. Participants call the
// same functions in the same order; a mismatch that shows ends the operation with
// FAILED_PRECONDITION.
//
// Cost. A binomial tree over the P processes, of service calls: an operation is a way up and a way
// down, 2 (P - 1) messages in all, 2 ceil(log2 P) steps one after the other. A broadcast is a way
// down alone, ceil(log2 P) steps, but for every 16th, which takes both ways: so a fast source is
// never more than 16 ahead, and memory is bounded. Inner nodes pass results on before their own
// threads wake up. Every value passes through one process: for small values. Each object keeps its
// last 17 results until the fabric ends.
//
// Deaths. Who waits sends a message per heartbeat to those it waits for, so that a death shows. The
// orphans of a dead process turn to its nearest living ancestor, and if there is none, to the first
// that lives; since nobody can be further than one full operation ahead, results that only some
// have are found with them. With leave_out_dead the operation goes on without the dead, and
// left_out() names them: all participants are told the same. Otherwise it ends with UNAVAILABLE
// that names them. A broadcast whose source is dead ends with UNAVAILABLE for those that the value
// has not reached.
//
// After DEADLINE_EXCEEDED the operation is still under way: the next call has to be the same one
// again, and goes on waiting (its value is not looked at). The error names who did not come; asking
// for that may take up to a second more.
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

// Folds what comes from later participants into `into`. False: it is not what this operation
// expects.
using CollectiveFold = std::function<bool(std::string& into, std::string_view from)>;
enum class CollectiveKind : uint8_t { kBarrier, kBroadcast, kReduce, kGather };
}  // namespace internal

enum class Participants : uint8_t {
  kProcesses,  // one thread of each process, any one, one at a time
  kThreads,    // all long-lived threads: each calls for itself, as a worker of the fabric
};

struct CollectiveOptions {
  Participants participants = Participants::kProcesses;
  // Default: if the fabric's on_failure is kContinue.
  std::optional<bool> leave_out_dead{};
};

// What an object did in this process. Counts.
struct CollectiveStatistics {
  uint64_t operations = 0;      // finished
  uint64_t messages = 0;        // sent
  uint32_t broadcast_hops = 0;  // between the source of the last broadcast and us
};

// Thread-safe as far as Participants allows. None of the functions may be called inside of a call.
// While they wait they run calls.
class CARIAMA_DSFABRIC_EXPORT Collectives {
 public:
  // Sends nothing. Objects are matched by the order of their creation: every process creates the
  // same ones in the same order. The fabric must outlive it.
  explicit Collectives(Fabric& fabric, const CollectiveOptions& options = {});
  ~Collectives();
  Collectives(const Collectives&) = delete;
  Collectives& operator=(const Collectives&) = delete;

  [[nodiscard]] Fabric& fabric() const;
  [[nodiscard]] uint32_t participants() const;
  // The caller's number, or kNoThread if it is no worker of a kThreads object.
  [[nodiscard]] uint32_t self() const;

  // Errors of all operations: DEADLINE_EXCEEDED, UNAVAILABLE (deaths; the fabric was finalized),
  // FAILED_PRECONDITION (participants disagree about the operation; the caller is no worker;
  // another call of it is under way for the same participant), RESOURCE_EXHAUSTED (deferred_bytes).

  // Returns when every participant has called it.
  [[nodiscard]] absl::Status barrier(Deadline deadline);

  // Everybody's `value` becomes that of participant `source`. May return before others have it.
  // Further error: OUT_OF_RANGE.
  template <typename T>
  [[nodiscard]] absl::Status broadcast(T& value, uint32_t source, Deadline deadline) {
    static_assert(std::is_trivially_copyable_v<T>);
    std::string bytes(reinterpret_cast<const char*>(&value), sizeof value);
    auto result = run(internal::CollectiveKind::kBroadcast, source, std::move(bytes), nullptr,
                      sizeof value, deadline);
    if (!result.ok()) return result.status();
    std::memcpy(&value, result->data(), sizeof value);
    return absl::OkStatus();
  }

  // op(...op(op(value of 0, value of 1), value of 2)..., value of P-1), with op associative: how it
  // is parenthesised depends on P alone (and on who died), the order never differs. Everybody gets
  // it. `op` is copied, runs in any thread of any process, and must not block.
  template <typename T, typename Op>
  [[nodiscard]] absl::StatusOr<T> all_reduce(const T& value, Op op, Deadline deadline) {
    static_assert(std::is_trivially_copyable_v<T>);
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

  // Everybody's values by participant number; nothing from those that were left out.
  template <typename T>
  [[nodiscard]] absl::StatusOr<std::vector<std::optional<T>>> all_gather(const T& value,
                                                                         Deadline deadline) {
    static_assert(std::is_trivially_copyable_v<T>);
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

  // The dead processes that the caller's last finished operation went without, in order.
  [[nodiscard]] std::vector<uint32_t> left_out() const;
  [[nodiscard]] CollectiveStatistics statistics() const;

 private:
  // `source` is a participant. A result is a multiple of `bytes` long.
  [[nodiscard]] absl::StatusOr<std::string> run(internal::CollectiveKind kind, uint32_t source,
                                                std::string value, internal::CollectiveFold fold,
                                                size_t bytes, Deadline deadline);

  std::shared_ptr<internal::CollectiveGroup> group_;
};

}  // namespace cariama

#endif  // CARIAMA_DSFABRIC_COLLECTIVES_H_
