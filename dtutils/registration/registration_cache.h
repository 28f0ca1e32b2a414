// A cache of registrations of memory that the user owns.
//
//   auto pinner = std::make_shared<DomainPinner>(domain, Access::kAll);
//   auto cache = RegistrationCache::create(pinner, {.max_bytes = size_t{1} << 30});
//   {
//     absl::StatusOr<RegistrationUse> memory = (*cache)->acquire(buffer, bytes);
//     ... transfer with memory->region().local_key() ...
//   }  // the use ends: the policy decides whether the memory stays registered
//
// acquire() returns a use of a registration that contains the range. If there is none, it registers
// a known range that contains the range and is at most 8 times as long, else the whole pages of the
// range. A new range replaces each idle range that it contains, unless the new range is more than 8
// times as long. So messages of several lengths from one buffer share one registration. Memory
// stays registered while a RegistrationUse of it is valid. A range is known from its first
// acquire() until its memory changes, forget(), a longer range replaces it, or more than
// max_idle_ranges idle ranges are known. If all watches of the process are in use, each new range
// replaces the idle range that was used least recently.
//
// The budgets are hard. When they are full, idle registrations are ended, least recently used
// first, unless the policy is leave-pinned; if that does not suffice, acquire() fails.
//
// Invalidation. A registration names pages, not addresses, so after munmap and mmap at the same
// address it would read and write pages that the program no longer sees. By userfaultfd the cache
// detects that memory was unmapped (also in part), moved (mremap), mapped again or discarded
// (madvise DONTNEED, FREE, REMOVE), and never uses that registration again: an acquire() that
// starts after the memory has changed makes a new registration, also before the call that changed
// it has returned in its thread (Invalidation). The kernel raises no event for shmdt(2), for
// shmat(2) with SHM_REMAP, for remap_file_pages(2), for fallocate(2) with FALLOC_FL_PUNCH_HOLE on a
// memfd, for ftruncate(2) that shrinks a memfd, and for madvise(MADV_GUARD_INSTALL): call forget()
// before them.
// Memory that cannot be watched (backed by a file on disk, or where the system refuses userfaultfd)
// is registered at each use and never stays registered; one diagnostic message reports this.
//
// Fork. A child must not use the cache of its parent: acquire() returns FAILED_PRECONDITION, the
// other functions must not be called, and the destructor does not change the parent's
// registrations. A child may create its own caches.
//
// CARIAMA_TRACE_REGISTRATION=FILE writes one line for each use into a new file, for
// bench_registration --trace (docs/registration.md, "Recording a trace").
//
// Cost of a hit, without locks: acquire() makes two atomic read-modify-writes on the region (its
// count of uses, the paper's lock of a region, and its count of hits), release() one. With
// Invalidation::kAutomatic acquire() also makes a system call. A known range takes about 300 bytes.
#ifndef CARIAMA_DTUTILS_REGISTRATION_REGISTRATION_CACHE_H_
#define CARIAMA_DTUTILS_REGISTRATION_REGISTRATION_CACHE_H_

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtutils/export.h"
#include "dtutils/memory.h"
#include "dtutils/registration/pinner.h"
#include "dtutils/registration/policy.h"
#include "dtutils/statistics.h"

namespace cariama {

namespace internal {
class MappingMonitor;
class RegistrationTrace;
struct RegistrationEntry;
}  // namespace internal

class RegistrationCache;

enum class Invalidation : uint8_t {
  // By userfaultfd, for all threads: acquire() waits while a thread unmaps watched memory, for
  // 0.1 ms at most; then it registers its range anew. It makes one system call to find out. If the
  // system refuses userfaultfd, no registration outlives its use.
  kAutomatic,
  // As kAutomatic, without that system call: while one thread unmaps or frees memory that the
  // program has transferred, no other thread maps memory. Else the program gets wrong data.
  kOneThread,
  // The program calls forget() before it unmaps, discards or moves memory that it has transferred.
  // A program that does not gets wrong data.
  kExplicit,
  // No registration outlives its use.
  kNone,
};

// Returns the time of steady_clock in ns: the default of RegistrationOptions::clock.
[[nodiscard]] CARIAMA_DTUTILS_EXPORT int64_t registration_clock();

struct RegistrationOptions {
  // The largest number of bytes that are registered at a time, in whole pages. 0: 80 % of
  // RLIMIT_MEMLOCK if that limit is set, the process has no CAP_IPC_LOCK and the pinner's memory
  // counts against the limit; else a quarter of the machine's memory.
  uint64_t max_bytes = 0;
  // The largest number of regions that are registered at a time. Adapters, and the default of
  // vm.max_map_count (65530), permit some tens of thousands.
  size_t max_regions = 4096;
  // The number of ranges that the cache remembers although they are not registered, so that a
  // policy can register them ahead.
  size_t max_idle_ranges = 4096;
  Invalidation invalidation = Invalidation::kAutomatic;
  std::shared_ptr<RegistrationPolicy> policy{};  // default: lru
  int64_t (*clock)() = registration_clock;       // ns; simulations replace it
  // The place of the policy's helper on the board of the host. A fabric sets it, unless
  // it has a board already.
  HelperPlace place{};
  // Called after each change of the registered bytes with (time in ns, bytes), for plots. The
  // caller holds a lock, so the function must not call the cache, and must not throw.
  std::function<void(int64_t, uint64_t)> on_change{};
};

struct RegistrationStatistics {
  uint64_t hits = 0;  // acquire() found the memory registered
  // Calls of acquire() that registered, or waited for a registration in progress: of a message in
  // pieces, each piece counts.
  uint64_t misses = 0;
  uint64_t registrations = 0;  // by acquire() and ahead of a use
  uint64_t deregistrations = 0;
  uint64_t registered_ahead = 0;  // by the policy
  uint64_t evictions = 0;         // ended because of a budget
  uint64_t invalidations = 0;     // ended because the memory changed, or by forget()
  uint64_t registered_bytes = 0;  // now
  uint64_t registered_regions = 0;
  uint64_t peak_bytes = 0;
  double byte_seconds = 0;  // integral of registered_bytes
};

// Facts about a use that the caller passes to the policy, beside its time.
struct UseContext {
  // The call stack of the use, for a replay; read only during the call that gets the context.
  // nullptr: acquire() walks over the stack of the calling thread.
  const CallStack* stack = nullptr;
  int64_t next_use = INT64_MAX;  // RegionUse::next_use
  // If true, a registration that this use makes ends with the use, unless another use is in
  // progress, and the policy does not learn from the use. A use that finds its memory registered is
  // an ordinary one.
  bool transient = false;
  // Without `stack`: where the walk begins. __builtin_frame_address(0) of the function that the
  // program has called, so that call sites within the library do not count. nullptr: acquire().
  const void* frame = nullptr;
};

// A use of registered memory, from acquire() until destruction. Movable. Thread-compatible; any
// thread may destroy it.
class CARIAMA_DTUTILS_EXPORT RegistrationUse {
 public:
  RegistrationUse() = default;
  RegistrationUse(RegistrationUse&& other) noexcept { *this = std::move(other); }
  RegistrationUse& operator=(RegistrationUse&& other) noexcept {
    if (this == &other) return *this;
    release();
    cache_ = std::exchange(other.cache_, nullptr);
    entry_ = other.entry_;
    region_ = other.region_;
    hit_ = other.hit_;
    transient_ = other.transient_;
    trace_id_ = other.trace_id_;
    use_ = other.use_;
    return *this;
  }
  ~RegistrationUse() { release(); }

  // Returns the registration of the pages that contain the range. Requires: valid().
  [[nodiscard]] const MemoryRegion& region() const { return *region_; }
  [[nodiscard]] bool valid() const { return cache_ != nullptr; }
  // Returns true if the memory was registered when acquire() was called.
  [[nodiscard]] bool was_hit() const { return hit_; }
  // Ends the use now. The policy decides whether the memory is deregistered.
  void release();

 private:
  friend class RegistrationCache;
  RegistrationCache* cache_ = nullptr;
  void* entry_ = nullptr;
  const MemoryRegion* region_ = nullptr;
  bool hit_ = false;
  bool transient_ = false;  // made the registration, and ends it
  uint64_t trace_id_ = 0;   // of internal::RegistrationTrace; 0: not traced
  RegionUse use_;
};

// Thread-safe. Several caches may exist in a process, also for the same memory. Must outlive its
// RegistrationUses.
class CARIAMA_DTUTILS_EXPORT RegistrationCache final : private RegionControl {
 public:
  // Errors: INVALID_ARGUMENT (no pinner; max_regions is 0; a policy that another cache uses;
  // options of a helper out of their range), RESOURCE_EXHAUSTED (no page for fork detection).
  // Without a thread for the policy, memory stays registered within the budget; without one for
  // invalidation, each registration ends with its use. A diagnostic reports both.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<RegistrationCache>> create(
      std::shared_ptr<Pinner> pinner, RegistrationOptions options = {});
  // Deregisters everything. Requires: no RegistrationUse of this cache is valid.
  ~RegistrationCache() override;
  RegistrationCache(const RegistrationCache&) = delete;
  RegistrationCache& operator=(const RegistrationCache&) = delete;

  // Begins a use of [address, address + bytes). Blocks while this or another thread registers or
  // deregisters memory for it. If the memory is registered: lock-free while the look-up table's
  // slot for `address` names the region; two ranges in use whose addresses share one of the 512
  // slots replace each other there, and then acquire() takes the cache's lock. Errors:
  // INVALID_ARGUMENT (an empty range, or part of it is not mapped),
  // RESOURCE_EXHAUSTED (the budget, RLIMIT_MEMLOCK or vm.max_map_count: the text names it and the
  // value needed), FAILED_PRECONDITION (in a forked child).
  [[nodiscard]] absl::StatusOr<RegistrationUse> acquire(const void* address, size_t bytes,
                                                        const UseContext& context = {});

  // Ends all registrations that overlap the range: those in use when their use ends. Returns their
  // number. An acquire() that starts later registers anew.
  size_t forget(const void* address, size_t bytes);

  // Returns the number of registrations, in use or not, that overlap the range.
  [[nodiscard]] size_t overlapping(const void* address, size_t bytes) const;

  // Deregisters all memory that is not in use. Returns the number of bytes that this call has
  // deregistered.
  uint64_t deregister_all_idle();

  [[nodiscard]] RegistrationStatistics statistics() const;
  [[nodiscard]] RegistrationPolicy& policy() const { return *options_.policy; }
  [[nodiscard]] const RegistrationOptions& options() const { return options_; }
  // Returns true if the cache detects that memory is unmapped.
  [[nodiscard]] bool watches() const { return monitor_ != nullptr; }

 private:
  friend class RegistrationUse;
  using Entry = internal::RegistrationEntry;
  using Lock = std::unique_lock<std::mutex>;

  RegistrationCache(std::shared_ptr<Pinner> pinner, RegistrationOptions options);

  // RegionControl
  [[nodiscard]] RegisterAheadResult register_ahead(RegionName region,
                                                   const ExpectedUse& use) override;
  [[nodiscard]] DeregisterResult deregister_idle(RegionName region) override;
  [[nodiscard]] uint64_t registered_bytes() const override;
  [[nodiscard]] uint64_t max_bytes() const override { return options_.max_bytes; }
  [[nodiscard]] int64_t now() const override { return options_.clock(); }
  [[nodiscard]] HelperPlace place() const override { return options_.place; }

  [[nodiscard]] static bool try_begin_use(Entry& entry, uintptr_t start, uintptr_t end);
  [[nodiscard]] std::atomic<Entry*>& hint(uintptr_t start) const;
  // `frame`: that of acquire(), unless the context has another. The call stack must not depend on
  // whether the use is a hit.
  [[nodiscard]] RegistrationUse begin(Entry& entry, bool hit, int64_t time,
                                      const UseContext& context, const void* frame);
  [[nodiscard]] absl::StatusOr<RegistrationUse> find_or_register(const void* address, size_t bytes,
                                                                 int64_t time,
                                                                 const UseContext& context,
                                                                 const void* frame,
                                                                 std::string& unwatched);
  void record(RegistrationUse& made, const void* address, size_t bytes) const;
  void end(Entry& entry, const RegistrationUse& use);
  void catch_up();
  void sweep(Lock& lock);
  [[nodiscard]] Entry* find(uintptr_t start, uintptr_t end, bool known) const;
  [[nodiscard]] bool replace_contained(Lock& lock, uintptr_t start, uintptr_t end);
  [[nodiscard]] std::vector<Entry*> entries_in(const void* address, size_t bytes) const;
  [[nodiscard]] Entry* named(RegionName region) const;
  [[nodiscard]] Entry* add(uintptr_t start, uintptr_t end, std::string& unwatched);
  struct Usage {
    uint64_t bytes;
    size_t regions;
  };
  // `ahead`, here and in the next five: the use ahead of which memory is registered; nullptr: the
  // caller begins a use.
  [[nodiscard]] absl::Status pin(Lock& lock, Entry& entry, const ExpectedUse* ahead);
  [[nodiscard]] absl::Status reserve(Lock& lock, uint64_t bytes, const ExpectedUse* ahead);
  [[nodiscard]] Usage usage_without_idle(const ExpectedUse* ahead) const;
  [[nodiscard]] bool await_room(Lock& lock, const ExpectedUse* ahead);
  [[nodiscard]] Entry* least_recently_used(uint64_t mask, uint64_t bits,
                                           const ExpectedUse* ahead) const;
  [[nodiscard]] bool evict_one(Lock& lock, const ExpectedUse* ahead);
  void trim_known();
  bool forget_idle_range();
  [[nodiscard]] bool unpin(Lock& lock, Entry& entry, uint64_t version);
  void detach(Entry& entry);
  void finish_detached(Lock& lock, Entry& entry, uint64_t version);
  void recycle(Entry& entry);
  void account(int64_t bytes, int regions);
  [[nodiscard]] CounterSet::Values counters() const;

  const std::shared_ptr<Pinner> pinner_;
  RegistrationOptions options_;
  const std::atomic<uint64_t>* fork_page_;
  internal::MappingMonitor* monitor_ = nullptr;
  internal::RegistrationTrace* trace_ = nullptr;  // if uses are recorded in a file
  bool attached_ = false;                         // the policy decides for this cache
  bool stays_ = true;                             // registrations may outlive their use
  bool awaits_unmapping_ = false;                 // Invalidation::kAutomatic, with a monitor_
  bool records_uses_ = false;
  bool follows_memlock_ = false;  // max_bytes is the default, a part of RLIMIT_MEMLOCK
  std::atomic<uint64_t> seen_sequence_{0};
  // Entries by the hash of an address, which acquire() reads without a lock. A slot may name an
  // entry of another range; try_begin_use() checks this.
  mutable std::array<std::atomic<Entry*>, 512> hints_{};

  mutable std::mutex mutex_;
  // Notified when an entry is no longer busy. A forked child leaks it: its destructor waits for the
  // threads that wait for it, which the child does not have.
  std::unique_ptr<std::condition_variable> changed_ = std::make_unique<std::condition_variable>();
  std::deque<std::unique_ptr<Entry>>
      entries_;  // never freed while the cache lives: hints point there
  std::vector<Entry*> unused_;
  std::multimap<uintptr_t, Entry*> index_;  // by first address: known entries
  uintptr_t longest_ = 0;                   // length of the longest entry so far
  size_t unpinning_ = 0;                    // threads that deregister an entry
  size_t pinning_ahead_ = 0;                // threads that register memory that nothing uses
  RegistrationStatistics statistics_;
  int64_t last_change_ = 0;
  std::atomic<uint64_t> registered_{0};  // statistics_.registered_bytes
  // Last: it reads the members above. A forked child leaks it, as its lock may be held.
  std::unique_ptr<CounterSet> counters_;
};

// Registers a long message in pieces. At most two pieces are in use: the piece in transfer and the
// next one; a piece that does not begin at a page takes one page more. With `pipeline` no other
// piece is registered. With a helper the first two pieces may still be registered too, so at most
// four; the helper registers only these two ahead, the others are registered during the transfer of
// the piece before. The other policies leave all pieces registered.
//
//   ChunkedRegistration pieces(cache, data, bytes, size_t{1} << 20);
//   while (!pieces.done()) {
//     auto piece = pieces.next();   // ends the use of the piece before the previous one
//     ... transfer piece->region, [piece->address, piece->address + piece->bytes) ...
//   }
//
// Requires: the transfer of a piece has ended when next() is called for the second time after it.
// Thread-compatible.
class CARIAMA_DTUTILS_EXPORT ChunkedRegistration {
 public:
  struct Piece {
    const MemoryRegion* region;
    const std::byte* address;
    size_t bytes;
    bool was_hit;
  };
  // `piece_bytes`: 0 is the whole message. Ignores context.transient and context.frame. Copies
  // context.stack. Without a stack, that of a piece begins with the call of next().
  ChunkedRegistration(RegistrationCache& cache, const void* address, size_t bytes,
                      size_t piece_bytes, const UseContext& context = {});
  [[nodiscard]] bool done() const { return position_ == end_; }
  // Errors: those of acquire(). Requires: !done().
  [[nodiscard]] absl::StatusOr<Piece> next();

 private:
  RegistrationCache& cache_;
  const std::byte* position_;
  const std::byte* const end_;
  const size_t piece_bytes_;
  const std::optional<CallStack> stack_;
  const int64_t next_use_;
  size_t begun_ = 0;                     // pieces
  std::array<RegistrationUse, 2> uses_;  // the older first
};

}  // namespace cariama

#endif  // CARIAMA_DTUTILS_REGISTRATION_REGISTRATION_CACHE_H_
