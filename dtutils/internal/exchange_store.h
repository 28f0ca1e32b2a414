// The store of a process group, without its sockets: takes messages of ranks, says what to answer.
#ifndef CARIAMA_DTUTILS_INTERNAL_EXCHANGE_STORE_H_
#define CARIAMA_DTUTILS_INTERNAL_EXCHANGE_STORE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "dtutils/internal/exchange_message.h"

namespace cariama::internal {

// Thread-compatible.
class ExchangeStore {
 public:
  struct Reply {
    int rank;  // whom to send it to
    ExchangeMessage message;
  };

  // labels[rank] is what errors call that rank.
  explicit ExchangeStore(std::vector<std::string> labels);

  // Takes a message of `rank` and appends what has to be sent now. INVALID_ARGUMENT if a
  // well-behaved client does not send that; nothing has changed then.
  [[nodiscard]] absl::Status handle(int rank, ExchangeMessage message, std::vector<Reply>& replies);

  // Notes that `rank` has ended; `how` completes the sentence "LABEL ...". Appends an error for
  // everyone who waits for it. Whatever it put stays.
  void rank_ended(int rank, std::string how, std::vector<Reply>& replies);

 private:
  struct Waiter {
    uint64_t request;
    int rank;  // whose value
    std::string key;
  };
  struct Rank {
    std::string label;
    std::optional<std::string> ended;  // how
    std::optional<uint64_t> fence;     // the request it waits in
    std::optional<Waiter> get;         // a client waits for one value at a time
  };

  void check_fence(std::vector<Reply>& replies);
  static Reply error_reply(int to, uint64_t request, const Rank& culprit);

  std::vector<Rank> ranks_;
  std::optional<int>
      first_ended_;  // the others may have ended because of it: fences blame this one
  std::map<std::pair<int, std::string>, std::string> values_;
};

}  // namespace cariama::internal

#endif  // CARIAMA_DTUTILS_INTERNAL_EXCHANGE_STORE_H_
