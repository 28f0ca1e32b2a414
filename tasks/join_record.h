// Where a child leaves its result for a parent that went on without it.
//
// A child whose parent is still there when it ends returns to it: no record. One is needed only
// when the parent may go on elsewhere: the owner of a deque allocates it when it makes an entry
// public, so that both thief and child know it (Weave's lazily allocated futures, without a message
// from the thief to the child).
//
// Greedy join. Child and joiner both add 1 to `arrivals`; before that, the child writes its
// outcome, the joiner copies its frames out and writes where they are. Who comes second knows that
// the other's part is there, and continues the joiner: the child's worker resumes it right away, at
// the end of the child. A joiner that finds the outcome there takes it and adds nothing. So each
// record has at most one waiter, and it is woken exactly once. Source: MassiveThreads/DM (Endo and
// Taura, CLUSTER'22).
//
// A record is named by a Reference: the rank of its owner and its address, in one word.
#ifndef CARIAMA_TASKS_JOIN_RECORD_H_
#define CARIAMA_TASKS_JOIN_RECORD_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace cariama::tasks {

// Where pinned areas begin, in every worker; they take less than 2^kAreaBits bytes.
inline constexpr uint64_t kPinnedAddress = 0x7ea000000000;
inline constexpr int kAreaBits = 38;

// (rank, address) of memory in a pinned area, but its very first byte; 0 is none. 2^26 ranks.
class Reference {
 public:
  constexpr Reference() = default;
  constexpr explicit Reference(uint64_t word) : word_(word) {}
  constexpr Reference(int rank, uint64_t address)
      : word_(static_cast<uint64_t>(rank) << kAreaBits | (address - kPinnedAddress)) {}
  Reference(int rank, const void* address) : Reference(rank, reinterpret_cast<uint64_t>(address)) {}

  [[nodiscard]] constexpr uint64_t word() const { return word_; }
  [[nodiscard]] constexpr int rank() const { return static_cast<int>(word_ >> kAreaBits); }
  [[nodiscard]] constexpr uint64_t address() const {
    return kPinnedAddress + (word_ & ((uint64_t{1} << kAreaBits) - 1));
  }
  constexpr explicit operator bool() const { return word_ != 0; }

 private:
  uint64_t word_ = 0;
};

// A task that is not running: its frames lie in a block of a pinned area. Plain data; whoever holds
// it may continue the task, once.
struct Suspended {
  uint64_t frames = 0;  // Reference of the copy
  uint64_t sp = 0;      // where they belong: [sp, top)
  uint64_t top = 0;
  uint64_t report = 0;  // Reference of the record that the task itself reports to
};

enum class OutcomeKind : uint32_t {
  kNone,
  kValue,   // in the record
  kFar,     // a value in a block of its own
  kFailed,  // an exception, in a block of its own
};

// How a child ended.
struct Outcome {
  static constexpr size_t kInlineBytes = 56;
  OutcomeKind kind = OutcomeKind::kNone;
  uint32_t bytes = 0;  // of the value or of the block
  uint64_t block = 0;  // Reference, for kFar and kFailed
  std::byte value[kInlineBytes];
};

// Lies in a block of a pinned area.
struct JoinRecord {
  std::atomic<uint64_t> arrivals;  // 0, 1 or 2
  Suspended waiter;                // the joiner's, when it arrived first
  Outcome outcome;                 // the child's
};
static_assert(sizeof(JoinRecord) == 112 && std::is_trivially_copyable_v<Suspended> &&
              std::is_trivially_copyable_v<Outcome>);

}  // namespace cariama::tasks

#endif  // CARIAMA_TASKS_JOIN_RECORD_H_
