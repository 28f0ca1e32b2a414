// Operations that their owners execute (OperationsBy): calls to the service of an owner, each of
// which carries many operations. Not for users: TableEngine uses it.
//
// send() sends at most kCallsInFlight calls to an owner, each with as many of the collected
// operations as it has room for. It is called when the access is polled, or a function of the
// access waits. Meanwhile operations are collected. So the number of messages falls as the load
// rises, and no clock is needed.
#ifndef CARIAMA_DHT_INTERNAL_OWNER_CALLS_H_
#define CARIAMA_DHT_INTERNAL_OWNER_CALLS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dht/table_core.h"
#include "dht/table_options.h"

namespace cariama {

// A share in the memory of the owner that executes a call.
struct CalledShare {
  uint64_t address;
  uint64_t buckets;
  uint64_t probe_limit;
  uint64_t words;  // of a key
};

// Executes the operations of a call in their order, in the owner. Returns the words of the answer;
// none if the call is malformed, and then executes nothing. Requires: the share is memory of this
// process, words are 1 to kMaxKeyWords, probe_limit <= buckets < 2^48. Thread-safe.
//
// An operation in a call: its position and mode, then the words of the key; a kRead has the first
// one only. In the answer: position and outcome, then the words of the bucket; only a kRead has
// more than the first one.
[[nodiscard]] std::vector<uint64_t> execute_operations(const CalledShare& share,
                                                       std::span<const uint64_t> call);

// What the first word of an operation says in an answer.
struct OperationOutcome {
  TableOutcome outcome;
  uint64_t position;  // of the bucket, with kFound and kInserted
};
// Returns what the word says, or nullopt if no owner answers an operation of this mode with it.
// `asked`: the position of a kRead, ignored for other modes. Thread-safe.
[[nodiscard]] std::optional<OperationOutcome> decode_outcome(uint64_t word, TableOperation mode,
                                                             uint64_t asked, uint64_t buckets);

// Belongs to the thread of its engine.
class OwnerCalls {
 public:
  using Mode = TableOperation;
  class Call;
  // An operation in a call. Empty: no operation.
  struct Operation {
    std::shared_ptr<Call> call;
    size_t at = 0;  // of its words in the answer
    Mode mode = Mode::kFind;
    uint64_t position = 0;  // as in add()
  };
  struct Answer {
    TableOutcome outcome;
    uint64_t position;      // of the bucket, with kFound and kInserted
    const uint64_t* words;  // of the bucket, for a kRead; valid as long as the operation
  };

  // Calls to one owner in flight. With two, the owner has work while an answer travels.
  static constexpr size_t kCallsInFlight = 2;
  // Limits of a call, which carries at least one operation: the number of operations, and the sum
  // of their probe limits. A short receive unit lowers the number further. The service thread of
  // the owner does nothing else meanwhile.
  static constexpr size_t kOperationsOfCall = 64;
  static constexpr uint64_t kBucketsOfCall = uint64_t{1} << 21;

  OwnerCalls(TableCore& core, TableStatistics& statistics);

  // Adds an operation to the next call to `owner`. `position`: the bucket of a kRead, else the home
  // of the key, whose encoded words are `stored`. Requires: core.attach(owner) has returned OK.
  // Throws std::bad_alloc, and then has added nothing.
  [[nodiscard]] Operation add(uint32_t owner, Mode mode, uint64_t position, const uint64_t* stored);
  // Sends the calls for which there is room. Never blocks. An owner that has no receive posted for
  // a further call gets it by a later send().
  void send();
  // Returns true if the operation has ended, or could not be sent. Never blocks.
  [[nodiscard]] static bool has_ended(const Operation& operation);
  // Requires: has_ended(). Errors: those of a call; FAILED_PRECONDITION (the owner has no such
  // share, or refused the call as malformed); INTERNAL (the answer is malformed).
  [[nodiscard]] absl::StatusOr<Answer> answer(const Operation& operation) const;
  // For an operation that ends by its deadline. If a call was not sent, and all its operations have
  // ended so, it is not sent any more.
  static void end_late(const Operation& operation);
  // Adds the calls in flight to those for which the table waits (TableCore::add_execution). Calls
  // that were not sent are dropped.
  void leave_to_core();

 private:
  struct CallsToOwner {
    std::deque<std::shared_ptr<Call>> unsent;                     // in order
    std::array<std::shared_ptr<Call>, kCallsInFlight> in_flight;  // nullptr: none
    uint32_t skip = 0;  // calls of send() that leave the owner out, since it had no receive
  };

  // Sends a call. Returns false if the owner has no receive posted for it.
  [[nodiscard]] bool send(const std::shared_ptr<Call>& call);

  TableCore& core_;
  TableStatistics& statistics_;
  std::map<uint32_t, CallsToOwner> calls_;  // by owner; those without calls are removed
  bool sending_ = false;
};

}  // namespace cariama

#endif  // CARIAMA_DHT_INTERNAL_OWNER_CALLS_H_
