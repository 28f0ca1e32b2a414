// Join records: a child stores its result in a join record if its parent continued without it.
// Not for users.
//
// A child that ends while its parent is still above it on the stack returns the result directly and
// needs no record, unless it threw or its result is packed. The owner of a deque allocates the
// record of another child when it makes the entry of the parent public, so that the thief and the
// child both have the reference to it, or when the child suspends. (This resembles
// Weave's lazily allocated futures, but needs no message from the thief to the child.)
//
// Greedy join. The child writes its result to the record and then adds 1 to `arrivals`. The joiner
// copies its frames out, writes their location to the record and then adds 1 to `arrivals`. The one
// that arrives second (its addition returns 1) knows that the data of the other are complete, and
// its worker continues the joiner: if it is the child, immediately after the end of the child. A
// joiner that reads `arrivals` != 0 before it waits takes the result and adds nothing. So each
// record has at most one waiter, which is continued exactly once. Source: MassiveThreads/DM (Endo
// and Taura, CLUSTER'22).
//
// A record is named by a Reference: the rank of its owner and its address, in one word.
#ifndef CARIAMA_TASKS_JOIN_RECORD_H_
#define CARIAMA_TASKS_JOIN_RECORD_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace cariama::tasks {

// The address at which the pinned area of every worker begins. An area has less than 2^kAreaBits
// bytes.
inline constexpr uint64_t kPinnedAddress = 0x7ea000000000;
inline constexpr int kAreaBits = 38;

// The rank of a worker and an address in its pinned area, encoded in one word. 0 is no reference,
// so the first byte of rank 0's area has none. At most 2^26 ranks.
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

// A suspended task. Its frames are in a block of a pinned area (StackScheme::kIso: in place). Plain
// data; any worker may continue the task with it, once.
struct Suspended {
  uint64_t frames = 0;  // Reference to the copy of the frames; 0: no task
  uint64_t sp = 0;      // the frames run at the addresses [sp, top)
  uint64_t top = 0;
  uint64_t report = 0;  // Reference to the record for the task's own result
};

enum class TaskResultKind : uint32_t {
  kNone,    // the child has not ended
  kValue,   // a value, stored in TaskResult::value
  kFar,     // a value, stored in a separate block
  kFailed,  // an exception, stored in a separate block
};

// The result of a child.
struct TaskResult {
  static constexpr size_t kInlineBytes = 56;
  TaskResultKind kind = TaskResultKind::kNone;
  uint32_t bytes = 0;  // size of the value, or of the contents of the block
  uint64_t block = 0;  // kFar, kFailed: Reference to the block
  std::byte value[kInlineBytes];
};

// Lies in a block of a pinned area.
struct JoinRecord {
  std::atomic<uint64_t> arrivals;  // 0, 1 or 2: how many of child and joiner have arrived
  Suspended waiter;                // written by a joiner before it arrives
  TaskResult result;               // written by the child before it arrives
};
static_assert(sizeof(JoinRecord) == 112 && std::is_trivially_copyable_v<Suspended> &&
              std::is_trivially_copyable_v<TaskResult>);

}  // namespace cariama::tasks

#endif  // CARIAMA_TASKS_JOIN_RECORD_H_
