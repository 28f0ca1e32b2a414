#include "dtutils/internal/exchange_store.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtutils/error.h"

namespace cariama::internal {

ExchangeStore::ExchangeStore(std::vector<std::string> labels) {
  ranks_.resize(labels.size());
  for (size_t i = 0; i < labels.size(); ++i) ranks_[i].label = std::move(labels[i]);
}

ExchangeStore::Answer ExchangeStore::value_answer(int to, uint64_t request, int owner,
                                                  const std::string& value) {
  ExchangeMessage message;
  message.type = ExchangeType::kValue;
  message.request = request;
  message.rank = static_cast<uint32_t>(owner);
  message.value = value;
  return {to, std::move(message)};
}

ExchangeStore::Answer ExchangeStore::error_answer(int to, uint64_t request, const Rank& culprit) {
  ExchangeMessage message;
  message.type = ExchangeType::kError;
  message.request = request;
  message.code = static_cast<uint32_t>(absl::StatusCode::kUnavailable);
  message.value = absl::StrCat(culprit.label, " ", *culprit.ended);
  return {to, std::move(message)};
}

ExchangeStore::Answer ExchangeStore::end_notice(int to, int ended) const {
  ExchangeMessage message;
  message.type = ExchangeType::kEnded;
  message.rank = static_cast<uint32_t>(ended);
  message.value = *ranks_[ended].ended;
  return {to, std::move(message)};
}

absl::Status ExchangeStore::handle(int rank, ExchangeMessage message,
                                   std::vector<Answer>& answers) {
  Rank& sender = ranks_[rank];
  switch (message.type) {
    case ExchangeType::kPut: {
      const std::pair<int, std::string> key(rank, std::move(message.key));
      if (const auto there = values_.find(key); there != values_.end()) {
        there->second =
            std::move(message.value);  // a waiter waits only for values that do not exist
        return absl::OkStatus();
      }
      const auto awaits = [&](const Rank& other) {
        return other.get && (other.get->rank == rank || other.get->rank == kAllRanks) &&
               other.get->key == key.second;
      };
      for (int other = 0; other < static_cast<int>(ranks_.size()); ++other) {
        if (!awaits(ranks_[other])) continue;
        answers.push_back(value_answer(other, ranks_[other].get->request, rank, message.value));
      }
      values_.emplace(key, std::move(message.value));
      for (Rank& other : ranks_) {
        if (awaits(other) && --other.get->missing == 0) other.get.reset();
      }
      return absl::OkStatus();
    }

    case ExchangeType::kGet: {
      if (message.rank >= ranks_.size()) break;
      get(rank, {message.request, static_cast<int>(message.rank), std::move(message.key), 0},
          answers);
      return absl::OkStatus();
    }

    case ExchangeType::kGetAll:
      get(rank, {message.request, kAllRanks, std::move(message.key), 0}, answers);
      return absl::OkStatus();

    case ExchangeType::kFence:
      if (sender.fence) break;
      sender.fence = message.request;
      try {
        check_fence(answers);
      } catch (...) {
        sender.fence.reset();
        throw;
      }
      return absl::OkStatus();

    case ExchangeType::kWatch:
      if (message.code > 1) break;
      for (int other = 0; message.code == 1 && other < static_cast<int>(ranks_.size()); ++other) {
        if (ranks_[other].ended) answers.push_back(end_notice(rank, other));
      }
      sender.watches = message.code == 1;
      return absl::OkStatus();

    default:
      break;
  }
  return make_error(
      absl::StatusCode::kInvalidArgument, ErrorScope::kPeer,
      absl::StrCat(sender.label, " sent a message that is not valid in this state, type ",
                   static_cast<int>(message.type)));
}

void ExchangeStore::get(int sender, Waiter waiter, std::vector<Answer>& answers) {
  ranks_[sender].get.reset();  // a get whose deadline expired at the client
  const bool all = waiter.rank == kAllRanks;
  const int begin = all ? 0 : waiter.rank;
  const int end = all ? static_cast<int>(ranks_.size()) : waiter.rank + 1;
  for (int owner = begin; owner < end; ++owner) {
    if (const std::string* const found = value(owner, waiter.key); found != nullptr) {
      answers.push_back(value_answer(sender, waiter.request, owner, *found));
    } else if (ranks_[owner].ended) {
      answers.push_back(error_answer(sender, waiter.request, ranks_[owner]));
      return;
    } else {
      ++waiter.missing;
    }
  }
  if (waiter.missing != 0) ranks_[sender].get = std::move(waiter);
}

bool ExchangeStore::rank_ended(int rank, std::string how, std::vector<Answer>& answers) {
  Rank& gone = ranks_[rank];
  gone.fence.reset();
  gone.get.reset();
  const bool watched = gone.watches;
  const auto awaits = [&](const Rank& other) {
    return other.get && (other.get->rank == rank || other.get->rank == kAllRanks) &&
           value(rank, other.get->key) == nullptr;
  };
  // The answers contain the text.
  std::optional<std::string> before = std::exchange(gone.ended, std::move(how));
  const std::optional<int> first_before = first_ended_;
  if (!first_ended_) first_ended_ = rank;
  std::vector<Rank*> waiters;  // awaits() allocates
  try {
    for (int other = 0; other < static_cast<int>(ranks_.size()); ++other) {
      if (ranks_[other].watches && other != rank) answers.push_back(end_notice(other, rank));
      if (awaits(ranks_[other])) {
        waiters.push_back(&ranks_[other]);
        answers.push_back(error_answer(other, ranks_[other].get->request, gone));
      }
    }
    check_fence(answers);
  } catch (...) {
    gone.ended = std::move(before);
    first_ended_ = first_before;
    throw;
  }
  gone.watches = false;
  for (Rank* const waiter : waiters) waiter->get.reset();
  return watched;
}

// Allocates before it changes a fence.
void ExchangeStore::check_fence(std::vector<Answer>& answers) {
  const bool complete = std::all_of(ranks_.begin(), ranks_.end(),
                                    [](const Rank& rank) { return rank.fence.has_value(); });
  if (!first_ended_ && !complete) return;
  for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) {
    const std::optional<uint64_t>& fence = ranks_[rank].fence;
    if (!fence) continue;
    if (first_ended_) {
      answers.push_back(error_answer(rank, *fence, ranks_[*first_ended_]));
    } else {
      ExchangeMessage done;
      done.type = ExchangeType::kFenceDone;
      done.request = *fence;
      answers.push_back({rank, std::move(done)});
    }
  }
  for (Rank& rank : ranks_) rank.fence.reset();
}

}  // namespace cariama::internal
