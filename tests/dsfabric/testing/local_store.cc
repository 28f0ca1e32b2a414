#include "tests/dsfabric/testing/local_store.h"

#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtutils/error.h"

namespace cariama::testing {

// The data that the processes of a job share before they are connected.
struct LocalStore {
  explicit LocalStore(uint32_t processes) : ranks(processes) {
    for (uint32_t rank = 0; rank < processes; ++rank) {
      labels.push_back("rank " + std::to_string(rank));
    }
  }

  struct Rank {
    bool ended = false;
    std::mutex handling;  // held while its handler runs
    internal::Broker::Handler handler;
    std::atomic<uint64_t> operations{0};
  };
  std::mutex mutex;
  Doorbell changed;
  // The values that the processes have put under one key. A value wakes only the threads that wait
  // for one of its key: rank 0 would otherwise wake all processes with each value that it awaits.
  struct Values {
    explicit Values(size_t processes) : by_rank(processes) {}
    std::vector<std::optional<std::string>> by_rank;
    size_t count = 0;
    Doorbell changed;
  };
  std::map<std::string, Values, std::less<>> values;
  std::vector<Rank> ranks;
  std::vector<std::string> labels;  // by rank; constant
  std::atomic<uint32_t> ends{0};    // of processes
  std::vector<uint64_t> fences = std::vector<uint64_t>(ranks.size());

  // Requires: the caller holds `mutex`.
  Values& values_of(std::string_view key) {
    const auto known = values.find(key);
    if (known != values.end()) return known->second;
    return values.try_emplace(std::string(key), ranks.size()).first->second;
  }
  // Requires: the caller holds `mutex`.
  void set_ended(Rank& rank) {
    if (!rank.ended) ++ends;
    rank.ended = true;
    changed.ring();
    for (auto& [key, of_key] : values) of_key.changed.ring();
  }
  absl::Status ended(int rank) const {
    return make_error(absl::StatusCode::kUnavailable, ErrorScope::kPeer,
                      "rank " + std::to_string(rank) + " has ended");
  }
};

namespace {

class LocalBootstrap final : public Bootstrap {
 public:
  LocalBootstrap(std::shared_ptr<LocalStore> store, uint32_t rank)
      : store_(std::move(store)), rank_(static_cast<int>(rank)) {}
  ~LocalBootstrap() override {
    const std::lock_guard lock(store_->mutex);
    store_->set_ended(store_->ranks[rank_]);
  }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(store_->ranks.size()); }
  const std::string& label(int rank) const override { return store_->labels[rank]; }

  absl::Status put(std::string_view key, std::string_view value) override {
    count_operation();
    const std::lock_guard lock(store_->mutex);
    LocalStore::Values& values = store_->values_of(key);
    if (!values.by_rank[rank_].has_value()) ++values.count;
    values.by_rank[rank_] = value;
    values.changed.ring();
    return absl::OkStatus();
  }
  absl::StatusOr<std::vector<std::string>> get_all(std::string_view key,
                                                   Deadline deadline) override {
    count_operation();
    LocalStore::Values& values = values_of(key);
    // Copies no value before all have been put, so that the copies of waiting processes take no
    // memory.
    const auto look = [&]() -> absl::StatusOr<bool> {
      if (values.count == store_->ranks.size()) return true;
      if (store_->ends == 0) return false;
      for (int rank = 0; rank < size(); ++rank) {
        if (!values.by_rank[rank].has_value() && store_->ranks[rank].ended) {
          return store_->ended(rank);
        }
      }
      return false;
    };
    const absl::Status all = wait(deadline, "a value", values.changed, look);
    if (!all.ok()) return all;
    const std::lock_guard lock(store_->mutex);
    std::vector<std::string> copies;
    copies.reserve(store_->ranks.size());
    for (const auto& value : values.by_rank) copies.push_back(*value);
    return copies;
  }
  absl::StatusOr<std::string> get(int rank, std::string_view key, Deadline deadline) override {
    count_operation();
    LocalStore::Values& values = values_of(key);
    std::string value;
    const auto look = [&]() -> absl::StatusOr<bool> {
      if (values.by_rank[rank].has_value()) {
        value = *values.by_rank[rank];
        return true;
      }
      if (store_->ranks[rank].ended) return store_->ended(rank);
      return false;
    };
    const absl::Status found = wait(deadline, "a value", values.changed, look);
    if (!found.ok()) return found;
    return value;
  }
  absl::Status fence(Deadline deadline) override {
    count_operation();
    {
      const std::lock_guard lock(store_->mutex);
      if (!fenced_) ++store_->fences[rank_];
      fenced_ = true;
      store_->changed.ring();
    }
    const auto look = [&]() -> absl::StatusOr<bool> {
      for (int i = 0; i < size(); ++i) {
        if (store_->fences[i] >= store_->fences[rank_]) continue;
        if (store_->ranks[i].ended) return store_->ended(i);
        return false;
      }
      return true;
    };
    absl::Status left = wait(deadline, "a fence", store_->changed, look);
    if (!absl::IsDeadlineExceeded(left)) fenced_ = false;
    return left;
  }

  BootstrapKind kind() const override { return BootstrapKind::kLocal; }
  const JobSecret& secret() const override { return secret_; }
  std::optional<uint32_t> threads() const override { return std::nullopt; }
  absl::Status finalize(Deadline) override { return absl::OkStatus(); }

 private:
  void count_operation() { ++store_->ranks[rank_].operations; }
  LocalStore::Values& values_of(std::string_view key) {
    const std::lock_guard lock(store_->mutex);
    return store_->values_of(key);
  }
  // Blocks until `look` returns true or an error. `look` is called with the store's mutex held.
  // `changed` is rung when its result changes.
  template <typename Look>
  absl::Status wait(Deadline deadline, const char* what, Doorbell& changed, const Look& look) {
    absl::StatusOr<bool> answer = false;
    DoorbellSleeper sleeper(changed);
    const bool came = wait_until(
        [&] {
          const std::lock_guard lock(store_->mutex);
          answer = look();
          return !answer.ok() || *answer;
        },
        deadline, &sleeper);
    if (came) return answer.status();
    return make_error(absl::StatusCode::kDeadlineExceeded, ErrorScope::kPeer,
                      std::string(what) + " did not come in time");
  }

  std::shared_ptr<LocalStore> store_;
  const int rank_;
  JobSecret secret_{};
  bool fenced_ = false;
};

// A broker that runs the handler of the other process in the calling thread.
class LocalBroker final : public internal::Broker {
 public:
  LocalBroker(std::shared_ptr<LocalStore> store, int rank, Handler handler)
      : store_(std::move(store)), rank_(rank) {
    const std::lock_guard lock(store_->mutex);
    store_->ranks[rank_].handler = std::move(handler);
    store_->changed.ring();
  }
  ~LocalBroker() override { stop(); }

  void stop() override {
    LocalStore::Rank& self = store_->ranks[rank_];
    const std::lock_guard running(self.handling);
    const std::lock_guard lock(store_->mutex);
    self.handler = nullptr;
    store_->set_ended(self);
  }

  absl::StatusOr<std::string> request(int rank, std::string_view request,
                                      Deadline deadline) override {
    LocalStore::Rank& peer = store_->ranks[rank];
    DoorbellSleeper sleeper(store_->changed);
    bool ended = false;
    const auto ready = [&] {
      const std::lock_guard lock(store_->mutex);
      ended = peer.ended;
      return ended || peer.handler != nullptr;
    };
    if (!wait_until(ready, deadline, &sleeper)) {
      return make_error(absl::StatusCode::kDeadlineExceeded, ErrorScope::kPeer,
                        "rank " + std::to_string(rank) + " does not answer");
    }
    const std::lock_guard running(peer.handling);
    if (ended || peer.handler == nullptr) return store_->ended(rank);
    return peer.handler(rank_, request);
  }

 private:
  std::shared_ptr<LocalStore> store_;
  const int rank_;
};

}  // namespace

std::shared_ptr<LocalStore> make_local_store(uint32_t processes) {
  return std::make_shared<LocalStore>(processes);
}
void mark_ended(LocalStore& store, uint32_t rank) {
  const std::lock_guard lock(store.mutex);
  store.set_ended(store.ranks[rank]);
}
uint64_t store_operations(const LocalStore& store, uint32_t rank) {
  return store.ranks[rank].operations.load();
}
std::unique_ptr<Bootstrap> make_local_bootstrap(std::shared_ptr<LocalStore> store, uint32_t rank) {
  return std::make_unique<LocalBootstrap>(std::move(store), rank);
}
std::unique_ptr<internal::Broker> make_local_broker(std::shared_ptr<LocalStore> store,
                                                    uint32_t rank,
                                                    internal::Broker::Handler handler) {
  return std::make_unique<LocalBroker>(std::move(store), static_cast<int>(rank),
                                       std::move(handler));
}

}  // namespace cariama::testing
