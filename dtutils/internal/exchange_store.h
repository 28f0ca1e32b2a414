// The store of a process group, without its sockets: processes the messages of the ranks and
// produces the answers.
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
  struct Answer {
    int rank;  // destination of the message
    ExchangeMessage message;
  };

  // Error texts refer to a rank as labels[rank].
  explicit ExchangeStore(std::vector<std::string> labels);

  // Processes a message of `rank` and appends the answers that must be sent now. Error:
  // INVALID_ARGUMENT if a correct client does not send such a message; the store is unchanged then,
  // and after std::bad_alloc: no answer that `answers` then contains may be sent.
  [[nodiscard]] absl::Status handle(int rank, ExchangeMessage message,
                                    std::vector<Answer>& answers);

  // Records that `rank` has ended; `how` completes the sentence "LABEL ...". Appends an error
  // answer for each rank that waits for it. The values that it put stay available. Returns true if
  // the rank was watching the ends of the other ranks when it ended. Call it again after
  // std::bad_alloc; no answer that `answers` then contains may be sent.
  bool rank_ended(int rank, std::string how, std::vector<Answer>& answers);

  // Returns the value that `rank` has put under `key`, or nullptr.
  [[nodiscard]] const std::string* value(int rank, const std::string& key) const {
    const auto found = values_.find({rank, key});
    return found == values_.end() ? nullptr : &found->second;
  }

 private:
  static constexpr int kAllRanks = -1;
  struct Waiter {
    uint64_t request;
    int rank;  // rank that puts the value, or kAllRanks
    std::string key;
    int missing;  // number of values
  };
  struct Rank {
    std::string label;
    std::optional<std::string> ended;  // set when the process has ended: the text for "LABEL ..."
    std::optional<uint64_t> fence;     // request number of the fence in which the rank waits
    std::optional<Waiter> get;         // the get or get_all of the client; at most one at a time
    bool watches = false;              // the rank gets a kEnded for each end
  };

  // Answers the get or get_all of `sender`, or lets it wait.
  void get(int sender, Waiter waiter, std::vector<Answer>& answers);
  void check_fence(std::vector<Answer>& answers);
  [[nodiscard]] Answer end_notice(int to, int ended) const;
  static Answer value_answer(int to, uint64_t request, int owner, const std::string& value);
  static Answer error_answer(int to, uint64_t request, const Rank& culprit);

  std::vector<Rank> ranks_;
  std::optional<int>
      first_ended_;  // named in fence errors, since later ends may be its consequence
  std::map<std::pair<int, std::string>, std::string> values_;
};

}  // namespace cariama::internal

#endif  // CARIAMA_DTUTILS_INTERNAL_EXCHANGE_STORE_H_
