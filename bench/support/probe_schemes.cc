#include "bench/support/probe_schemes.h"

#include <algorithm>
#include <array>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "dtutils/error.h"

namespace cariama::bench {
namespace {

constexpr uint64_t kNoKey = 0;

// A hashing scheme. Its functions return the round trips of an operation; 0: there was no room.
class ProbeScheme {
 public:
  virtual ~ProbeScheme() = default;
  virtual uint64_t insert(uint64_t key) = 0;
  virtual uint64_t find(uint64_t key) = 0;
};

uint64_t scheme_hash(uint64_t key, uint64_t seed, uint64_t buckets) {
  uint64_t hash = (key ^ seed) * 0xff51'afd7'ed55'8ccd;
  hash = (hash ^ hash >> 33) * 0xc4ce'b9fe'1a85'ec53;
  return (hash ^ hash >> 33) % buckets;
}

class LinearScheme final : public ProbeScheme {
 public:
  LinearScheme(uint64_t buckets, uint32_t chunk) : keys_(buckets), chunk_(chunk) {}
  uint64_t insert(uint64_t key) override {
    const auto [at, probed] = probe(key);
    keys_[at] = key;
    return (probed + chunk_ - 1) / chunk_ + 1;
  }
  uint64_t find(uint64_t key) override { return (probe(key).second + chunk_ - 1) / chunk_; }

 private:
  [[nodiscard]] std::pair<uint64_t, uint64_t> probe(uint64_t key) const {
    uint64_t at = scheme_hash(key, 0, keys_.size());
    uint64_t probed = 1;
    for (; keys_[at] != kNoKey && keys_[at] != key; ++probed) {
      at = at + 1 == keys_.size() ? 0 : at + 1;
    }
    return {at, probed};
  }

  std::vector<uint64_t> keys_;
  uint64_t chunk_;
};

class HopscotchScheme final : public ProbeScheme {
 public:
  HopscotchScheme(uint64_t buckets, uint32_t neighbours)
      : keys_(buckets), neighbours_(neighbours) {}
  uint64_t insert(uint64_t key) override {
    const uint64_t size = keys_.size();
    const uint64_t home = scheme_hash(key, 0, size);
    uint64_t distance = 0;
    while (keys_[(home + distance) % size] != kNoKey) {
      if (++distance == size) return 0;
    }
    // Reads until the empty bucket, neighbourhood by neighbourhood.
    uint64_t trips = distance / neighbours_ + 1;
    while (distance >= neighbours_) {
      // Move a key whose neighbourhood contains the empty bucket into it.
      const uint64_t empty = home + distance;
      uint64_t from = distance - neighbours_ + 1;
      for (; from < distance; ++from) {
        const uint64_t other = keys_[(home + from) % size];
        const uint64_t other_home = scheme_hash(other, 0, size);
        if ((empty % size + size - other_home) % size < neighbours_) break;
      }
      if (from == distance) return 0;
      keys_[empty % size] = keys_[(home + from) % size];
      keys_[(home + from) % size] = kNoKey;
      distance = from;
      trips += 2;
    }
    keys_[(home + distance) % size] = key;
    return trips + 1;
  }
  uint64_t find(uint64_t) override { return 1; }

 private:
  std::vector<uint64_t> keys_;
  uint64_t neighbours_;
};

class CuckooScheme final : public ProbeScheme {
 public:
  explicit CuckooScheme(uint64_t buckets) : buckets_(buckets / kSlots) {}
  uint64_t insert(uint64_t key) override {
    uint64_t trips = 1;  // both buckets are read at once
    for (int moves = 0; moves < 500; ++moves) {
      for (const uint64_t seed : kSeeds) {
        for (uint64_t& slot : buckets_[scheme_hash(key, seed, buckets_.size())]) {
          if (slot != kNoKey) continue;
          slot = key;
          return trips + 1;
        }
      }
      const uint64_t seed = kSeeds[random_() % 2];
      std::swap(key, buckets_[scheme_hash(key, seed, buckets_.size())][random_() % kSlots]);
      trips += 3;
    }
    return 0;
  }
  uint64_t find(uint64_t key) override {
    const Bucket& first = buckets_[scheme_hash(key, kSeeds[0], buckets_.size())];
    return std::find(first.begin(), first.end(), key) != first.end() ? 1 : 2;
  }

 private:
  static constexpr size_t kSlots = 4;
  static constexpr std::array<uint64_t, 2> kSeeds = {1, 0x1234'5678'9abc};
  using Bucket = std::array<uint64_t, kSlots>;
  std::vector<Bucket> buckets_;
  std::mt19937_64 random_{1};
};

class ChainedScheme final : public ProbeScheme {
 public:
  explicit ChainedScheme(uint64_t buckets) : lists_(buckets) {}
  uint64_t insert(uint64_t key) override {
    auto& list = lists_[scheme_hash(key, 0, lists_.size())];
    list.push_back(key);
    // The list is read to its end; the element is written, then linked.
    return std::max<uint64_t>(1, list.size() - 1) + (list.size() == 1 ? 1 : 2);
  }
  uint64_t find(uint64_t key) override {
    const auto& list = lists_[scheme_hash(key, 0, lists_.size())];
    return static_cast<uint64_t>(std::find(list.begin(), list.end(), key) - list.begin()) + 1;
  }

 private:
  std::vector<std::vector<uint64_t>> lists_;
};

std::unique_ptr<ProbeScheme> make_scheme(std::string_view name, uint64_t buckets, uint32_t chunk) {
  if (name == "linear") return std::make_unique<LinearScheme>(buckets, chunk);
  if (name == "hopscotch") return std::make_unique<HopscotchScheme>(buckets, chunk);
  if (name == "cuckoo-2-4") return std::make_unique<CuckooScheme>(buckets);
  if (name == "chained") return std::make_unique<ChainedScheme>(buckets);
  return nullptr;
}

}  // namespace

absl::StatusOr<RoundTrips> simulate_scheme(std::string_view scheme, uint64_t buckets, double load,
                                           uint32_t chunk) {
  const std::unique_ptr<ProbeScheme> table = make_scheme(scheme, buckets, chunk);
  if (table == nullptr) {
    return make_error(
        absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
        "--scheme: '" + std::string(scheme) + "' is not linear, hopscotch, cuckoo-2-4 or chained");
  }
  std::mt19937_64 random(1);
  std::vector<uint64_t> keys(static_cast<size_t>(load * static_cast<double>(buckets)));
  const size_t counted = keys.size() / 20;
  RoundTrips trips;
  for (size_t i = 0; i < keys.size(); ++i) {
    keys[i] = random() | 1;
    const uint64_t insert = table->insert(keys[i]);
    if (insert == 0) {
      return make_error(absl::StatusCode::kResourceExhausted, ErrorScope::kOperation,
                        std::string(scheme) + " cannot reach load " + std::to_string(load));
    }
    if (i + counted >= keys.size()) trips.insert += static_cast<double>(insert);
  }
  for (size_t i = 0; i < counted; ++i) {
    trips.find += static_cast<double>(table->find(keys[random() % keys.size()]));
  }
  trips.insert /= static_cast<double>(counted);
  trips.find /= static_cast<double>(counted);
  return trips;
}

}  // namespace cariama::bench
