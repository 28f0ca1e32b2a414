#include "bench/support/set_tables.h"

#include <mutex>

#include "absl/container/flat_hash_set.h"

#if defined(CARIAMA_BENCH_TBB)
#include <tbb/concurrent_unordered_set.h>
#endif

namespace cariama::bench {
namespace {

class LockedSet final : public SharedSet {
 public:
  explicit LockedSet(size_t keys) { set_.reserve(keys); }
  void put(std::span<const TableKey<1>> keys) override {
    for (const TableKey<1>& key : keys) {
      const std::scoped_lock lock(mutex_);
      set_.insert(key[0]);
    }
  }

 private:
  std::mutex mutex_;
  absl::flat_hash_set<uint64_t> set_;
};

#if defined(CARIAMA_BENCH_TBB)
class TbbSet final : public SharedSet {
 public:
  explicit TbbSet(size_t keys) : set_(keys) {}
  void put(std::span<const TableKey<1>> keys) override {
    for (const TableKey<1>& key : keys) set_.insert(key[0]);
  }

 private:
  tbb::concurrent_unordered_set<uint64_t> set_;
};
#endif

}  // namespace

std::unique_ptr<SharedSet> make_locked_set(size_t keys) {
  return std::make_unique<LockedSet>(keys);
}

std::unique_ptr<SharedSet> make_tbb_set([[maybe_unused]] size_t keys) {
#if defined(CARIAMA_BENCH_TBB)
  return std::make_unique<TbbSet>(keys);
#else
  return nullptr;
#endif
}

}  // namespace cariama::bench
