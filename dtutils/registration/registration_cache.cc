#include "dtutils/registration/registration_cache.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <string>
#include <tuple>
#include <utility>

#include "dtutils/diagnostics.h"
#include "dtutils/error.h"
#include "dtutils/internal/byte_size.h"
#include "dtutils/internal/mapping_monitor.h"
#include "dtutils/internal/memory_limits.h"
#include "dtutils/internal/registration_entry.h"
#include "dtutils/internal/registration_trace.h"
#include "dtutils/internal/use_queue.h"

namespace cariama {
namespace {

// A registered range may be this many times as long as the message for which it is registered.
constexpr uint64_t kMostSlack = 8;

}  // namespace

namespace {

// Does not throw: the caller has changed the state of the cache.
absl::StatusOr<std::shared_ptr<MemoryRegion>> pin_or_fail(Pinner& pinner, std::byte* address,
                                                          size_t bytes) noexcept {
  try {
    return pinner.try_pin(address, bytes);
  } catch (const std::bad_alloc&) {  // not even for the text of an error
    return absl::Status(absl::StatusCode::kResourceExhausted, "");
  } catch (...) {
    return absl::Status(absl::StatusCode::kInternal, "the pinner threw no std::exception");
  }
}

}  // namespace

int64_t registration_clock() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

void RegistrationUse::release() {
  if (cache_ == nullptr) return;
  std::exchange(cache_, nullptr)->end(*static_cast<RegistrationCache::Entry*>(entry_), *this);
}

absl::StatusOr<std::unique_ptr<RegistrationCache>> RegistrationCache::create(
    std::shared_ptr<Pinner> pinner, RegistrationOptions options) {
  if (pinner == nullptr) {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                      "a registration cache without a pinner", "pass a DomainPinner");
  }
  if (options.clock == nullptr) options.clock = registration_clock;
  bool follows_memlock = false;
  if (options.max_bytes == 0) {
    const uint64_t memlock =
        pinner->counts_against_memlock() ? internal::memlock_limit() : UINT64_MAX;
    follows_memlock = memlock != UINT64_MAX;
    options.max_bytes = follows_memlock ? memlock / 10 * 8
                                        : static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) *
                                              internal::base_page() / 4;
  }
  if (options.max_regions == 0) {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                      "RegistrationOptions::max_regions is 0", "set it to 1 or more");
  }
  if (options.policy == nullptr) options.policy = make_registration_policy("lru").value();
  if (absl::Status valid = options.policy->validate(); !valid.ok()) return valid;
  std::unique_ptr<RegistrationCache> cache(
      new RegistrationCache(std::move(pinner), std::move(options)));
  if (cache->fork_page_ == nullptr) {
    return make_error(absl::StatusCode::kResourceExhausted, ErrorScope::kProcess,
                      "no page can be mapped that is cleared at fork");
  }
  cache->follows_memlock_ = follows_memlock;
  cache->attached_ = cache->options_.policy->take();
  if (!cache->attached_) {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                      "another registration cache uses this policy",
                      "create a policy for each cache");
  }
  cache->options_.policy->attach(cache.get());
  // In a forked child the cache may be destroyed although the CounterSet is not. The page is not.
  const auto read = [self = cache.get(), page = cache->fork_page_] {
    return internal::in_registering_process(page) ? self->counters() : CounterSet::Values{};
  };
  cache->counters_ =
      std::make_unique<CounterSet>("registration_cache", cache->options_.policy->name(), read);
  return cache;
}

RegistrationCache::RegistrationCache(std::shared_ptr<Pinner> pinner, RegistrationOptions options)
    : pinner_(std::move(pinner)),
      options_(std::move(options)),
      fork_page_(internal::make_fork_page()),
      trace_(internal::RegistrationTrace::get()),
      records_uses_(options_.policy->records_uses() || trace_ != nullptr),
      last_change_(options_.clock()) {
  if (options_.invalidation == Invalidation::kAutomatic ||
      options_.invalidation == Invalidation::kOneThread) {
    monitor_ = internal::MappingMonitor::get();
    awaits_unmapping_ = monitor_ != nullptr && options_.invalidation == Invalidation::kAutomatic;
    if (monitor_ == nullptr) {
      stays_ = false;
      report_once("registration.userfaultfd",
                  "registered memory cannot be watched, so it is registered anew for each transfer",
                  std::string(internal::MappingMonitor::refusal().message()));
    }
  }
  if (options_.invalidation == Invalidation::kNone) stays_ = false;
}

RegistrationCache::~RegistrationCache() {
  if (fork_page_ == nullptr) return;
  if (!internal::in_registering_process(fork_page_)) {
    // The parent owns the registrations. The policy's thread does not exist in this process.
    const auto leak = [](auto owner) {
      static_cast<void>(std::make_unique<decltype(owner)>(std::move(owner)).release());
    };
    // A thread may change them at fork.
    leak(std::tuple(std::move(entries_), std::move(unused_), std::move(index_)));
    leak(std::move(changed_));
    leak(std::move(counters_));
    leak(std::move(options_.policy));
    return;
  }
  if (attached_) {
    options_.policy->attach(nullptr);
    options_.policy->give_back();
  }
  counters_.reset();
  Lock lock(mutex_);
  for (const auto& entry : entries_) {
    entry->region.reset();
    if (monitor_ != nullptr && entry->watch.slot != internal::MappingMonitor::kNoWatch) {
      monitor_->unwatch(entry->watch);
    }
  }
  internal::free_fork_page(fork_page_);
}

std::atomic<RegistrationCache::Entry*>& RegistrationCache::hint(uintptr_t start) const {
  static_assert(std::tuple_size_v<decltype(hints_)> == 512);
  return hints_[(start / 4096 * 0x9e3779b97f4a7c15) >> 55];
}

bool RegistrationCache::try_begin_use(Entry& entry, uintptr_t start, uintptr_t end) {
  // Acquire: pairs with the release in pin(), which published entry.region.
  uint64_t word = entry.word.load(std::memory_order_acquire);
  while ((word & (Entry::kRegistered | Entry::kBusy | Entry::kInvalidated)) == Entry::kRegistered) {
    if (start < entry.start.load(std::memory_order_relaxed) ||
        end > entry.end.load(std::memory_order_relaxed)) {
      return false;
    }
    // Succeeds only if the version is unchanged, so the bounds above were those of this version.
    if (entry.word.compare_exchange_weak(word, word + 1, std::memory_order_acq_rel,
                                         std::memory_order_acquire)) {
      return true;
    }
  }
  return false;
}

RegistrationUse RegistrationCache::begin(Entry& entry, bool hit, int64_t time,
                                         const UseContext& context, const void* frame) {
  RegistrationUse made;
  made.cache_ = this;
  made.entry_ = &entry;
  made.region_ = entry.region.get();
  made.hit_ = hit;
  made.use_.region = {entry.version() << 32 | entry.index};
  made.use_.address = entry.start.load(std::memory_order_relaxed);
  made.use_.bytes = entry.bytes();
  made.use_.begin = time;
  made.use_.next_use = context.next_use;
  if (records_uses_) {
    internal::number_use(made.use_);
    if (context.stack != nullptr) {
      made.use_.stack = *context.stack;
    } else {
      capture_call_stack(made.use_.stack, context.frame != nullptr ? context.frame : frame);
    }
  }
  entry.last_use.store(time, std::memory_order_relaxed);
  if (hit) entry.hits.fetch_add(1, std::memory_order_relaxed);
  return made;
}

// Writes the beginning of a use to the trace.
void RegistrationCache::record(RegistrationUse& made, const void* address, size_t bytes) const {
  if (trace_ != nullptr) made.trace_id_ = trace_->begin(address, bytes, made.use_.stack);
}

// Not inlined: the recorded call stack begins at the frame of this function, so that the frames of
// the library do not count.
[[gnu::noinline]] absl::StatusOr<RegistrationUse> RegistrationCache::acquire(
    const void* address, size_t bytes, const UseContext& context) {
  if (!internal::in_registering_process(fork_page_)) [[unlikely]] {
    return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kProcess,
                      "a registration cache of the parent process is used after fork",
                      "create a cache in the child");
  }
  // Another thread may be unmapping memory whose addresses are mapped again already. Where threads
  // unmap all the time, this range is registered anew. Where nothing can tell, no registration is
  // used again.
  if (awaits_unmapping_) {
    using Unmapping = internal::MappingMonitor::Unmapping;
    const Unmapping unmapping = monitor_->wait_for_unmapping();
    if (unmapping == Unmapping::kInProgress) [[unlikely]] {
      static_cast<void>(forget(address, bytes));
    } else if (unmapping == Unmapping::kUnknown) [[unlikely]] {
      static_cast<void>(forget(nullptr, UINTPTR_MAX));
    }
  }
  if (monitor_ != nullptr && monitor_->processed_sequence() !=
                                 seen_sequence_.load(std::memory_order_acquire)) [[unlikely]] {
    catch_up();
  }
  // Taken before the registration: a late one must not make the prediction of the next use late.
  const int64_t time = options_.clock();
  const auto from = reinterpret_cast<uintptr_t>(address);
  Entry* const near = hint(from).load(std::memory_order_acquire);
  if (near != nullptr && from + bytes > from && try_begin_use(*near, from, from + bytes))
      [[likely]] {
    RegistrationUse made = begin(*near, true, time, context, __builtin_frame_address(0));
    if (trace_ != nullptr) [[unlikely]]
      record(made, address, bytes);
    return made;
  }
  const uintptr_t page = internal::base_page();
  if (bytes == 0 || from == 0 || from > UINTPTR_MAX - page || bytes > UINTPTR_MAX - page - from) {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                      "registering a null, empty or impossible range", "pass mapped memory");
  }
  std::string unwatched;
  auto made =
      find_or_register(address, bytes, time, context, __builtin_frame_address(0), unwatched);
  // Without the lock: the sink may call the cache. A range that is not mapped has another error.
  if (!unwatched.empty() && made.ok()) {
    report_once("registration.unwatched",
                "some registered memory cannot be watched, so it is registered anew for each "
                "transfer",
                unwatched);
  }
  return made;
}

// acquire() with the lock. `unwatched`: receives the reason if the memory cannot be watched.
absl::StatusOr<RegistrationUse> RegistrationCache::find_or_register(const void* address,
                                                                    size_t bytes, int64_t time,
                                                                    const UseContext& context,
                                                                    const void* frame,
                                                                    std::string& unwatched) {
  const auto from = reinterpret_cast<uintptr_t>(address);
  const uintptr_t page = internal::base_page();
  const uintptr_t start = from / page * page;
  const uintptr_t end = internal::round_up(from + bytes, page);
  bool waited = false;
  Lock lock(mutex_);
  // Each round ends with a registration, an error, or after a change by another thread. More than a
  // few rounds happen only if the memory is unmapped repeatedly.
  while (true) {
    if (monitor_ != nullptr) sweep(lock);
    if (Entry* const entry = find(start, end, false);
        entry != nullptr && try_begin_use(*entry, start, end)) {
      hint(from).store(entry, std::memory_order_release);
      if (waited) ++statistics_.misses;
      RegistrationUse made = begin(*entry, !waited, time, context, frame);
      record(made, address, bytes);
      return made;
    }
    Entry* entry = find(start, end, true);
    if (entry != nullptr && (entry->word.load(std::memory_order_acquire) & Entry::kBusy) != 0) {
      waited = true;
      changed_->wait(lock);
      continue;
    }
    if (entry != nullptr && entry->is_registered()) continue;
    if (entry == nullptr) {
      if (replace_contained(lock, start, end)) continue;
      entry = add(start, end, unwatched);
    }
    const bool longer = entry->bytes() > end - start;
    absl::Status pinned = pin(lock, *entry, nullptr);
    // A longer range that cannot be registered is forgotten. The range itself may be.
    if (absl::IsAborted(pinned) || (longer && !pinned.ok())) continue;
    if (!pinned.ok()) return pinned;
    ++statistics_.misses;
    hint(from).store(entry, std::memory_order_release);
    RegistrationUse made = begin(*entry, false, time, context, frame);
    made.transient_ = context.transient;
    record(made, address, bytes);
    return made;
  }
}

void RegistrationCache::end(Entry& entry, const RegistrationUse& use) {
  if (!internal::in_registering_process(fork_page_)) return;
  if (use.trace_id_ != 0) [[unlikely]]
    trace_->end(use.trace_id_);
  // Release: the use happens-before the deregistration by another thread.
  const uint64_t word = entry.word.fetch_sub(1, std::memory_order_acq_rel);
  // After the decrement, so that the policy's thread finds the region idle. An invalidated region's
  // name means nothing to the policy any more.
  const bool keep =
      !use.transient_ && (word & Entry::kInvalidated) == 0 && options_.policy->ended(use.use_);
  if ((word & Entry::kUses) == 1 && !keep) {
    Lock lock(mutex_);
    static_cast<void>(unpin(lock, entry, Entry::version_of(word)));
  }
}

void RegistrationCache::catch_up() {
  Lock lock(mutex_);
  sweep(lock);
}

// Removes the entries whose memory has changed. May release the lock.
void RegistrationCache::sweep(Lock& lock) {
  const uint64_t sequence = monitor_->processed_sequence();
  if (sequence == seen_sequence_.load(std::memory_order_relaxed)) return;
  std::vector<std::pair<Entry*, uint64_t>> changed;
  for (const auto& [start, entry] : index_) {
    if (entry->watch.slot != internal::MappingMonitor::kNoWatch &&
        !monitor_->is_intact(entry->watch)) {
      changed.emplace_back(entry, entry->version());
    }
  }
  for (const auto& [entry, version] : changed) detach(*entry);
  statistics_.invalidations += changed.size();
  // All entries whose memory has changed are invalidated, so threads may look up without the lock.
  seen_sequence_.store(sequence, std::memory_order_release);
  for (const auto& [entry, version] : changed) finish_detached(lock, *entry, version);
}

// Returns a registered entry that contains the range. With `known`, returns the longest known entry
// that contains the range and is at most kMostSlack times as long. So messages of several lengths
// from one buffer are one region, whose uses a policy can predict.
RegistrationCache::Entry* RegistrationCache::find(uintptr_t start, uintptr_t end,
                                                  bool known) const {
  Entry* longest = nullptr;
  auto position = index_.upper_bound(start);
  while (position != index_.begin()) {
    --position;
    if (position->first + longest_ < end) break;
    Entry* const entry = position->second;
    if (entry->end.load(std::memory_order_relaxed) < end) continue;
    if (known) {
      if (entry->bytes() <= kMostSlack * (end - start) &&
          (longest == nullptr || entry->bytes() > longest->bytes())) {
        longest = entry;
      }
    } else if (entry->is_registered()) {
      return entry;
    }
  }
  return longest;
}

// Forgets the known ranges that a new range contains and is to replace. Returns true if it released
// the lock.
bool RegistrationCache::replace_contained(Lock& lock, uintptr_t start, uintptr_t end) {
  std::vector<std::pair<Entry*, uint64_t>> contained;
  for (auto position = index_.lower_bound(start); position != index_.end() && position->first < end;
       ++position) {
    Entry* const entry = position->second;
    const uint64_t word = entry->word.load(std::memory_order_acquire);
    if (entry->end.load(std::memory_order_relaxed) <= end &&
        end - start <= kMostSlack * entry->bytes() && (word & (Entry::kUses | Entry::kBusy)) == 0) {
      contained.emplace_back(entry, entry->version());
    }
  }
  for (const auto& [entry, version] : contained) detach(*entry);
  for (const auto& [entry, version] : contained) finish_detached(lock, *entry, version);
  return !contained.empty();
}

// Adds a range that is not registered: to the known ranges, if its memory can be watched.
RegistrationCache::Entry* RegistrationCache::add(uintptr_t start, uintptr_t end,
                                                 std::string& unwatched) {
  trim_known();
  Entry* entry = nullptr;
  if (unused_.empty()) {
    // recycle() must not need memory.
    if (unused_.capacity() <= entries_.size()) unused_.reserve(2 * entries_.size() + 16);
    entries_.push_back(std::make_unique<Entry>());
    entry = entries_.back().get();
    entry->index = static_cast<uint32_t>(entries_.size() - 1);
  } else {
    entry = unused_.back();
    unused_.pop_back();
  }
  entry->start.store(start, std::memory_order_relaxed);
  entry->end.store(end, std::memory_order_relaxed);
  bool stays = stays_;
  entry->watch = {};
  if (monitor_ != nullptr) {
    auto watch = monitor_->watch(start, end);
    // All watches of the process are in use, or its mappings are too many.
    if (absl::IsResourceExhausted(watch.status()) && forget_idle_range()) {
      watch = monitor_->watch(start, end);
    }
    if (watch.ok()) {
      entry->watch = *watch;
    } else {
      stays = false;
      unwatched = std::string(watch.status().message());
    }
  }
  if (!stays) {
    entry->word.fetch_or(Entry::kInvalidated, std::memory_order_acq_rel);
    return entry;
  }
  entry->known = true;
  index_.emplace(start, entry);
  longest_ = std::max(longest_, end - start);
  return entry;
}

// Registers an entry that is neither registered nor busy. Releases the lock during the system call.
// On an error the entry is gone, unless `ahead` is given and the error is RESOURCE_EXHAUSTED.
// ABORTED: the memory changed meanwhile.
absl::Status RegistrationCache::pin(Lock& lock, Entry& entry, const ExpectedUse* ahead) {
  entry.word.fetch_or(Entry::kBusy, std::memory_order_acq_rel);
  uint64_t evicted = 0;  // bytes, for this registration
  const uint64_t bytes = entry.bytes();
  absl::Status status;
  try {
    status = reserve(lock, bytes, ahead);
  } catch (...) {  // no memory for the text of an error: the entry must not stay busy
    const uint64_t version = entry.version();
    entry.word.fetch_and(~Entry::kBusy, std::memory_order_acq_rel);
    if (!entry.known) finish_detached(lock, entry, version);
    changed_->notify_all();
    throw;
  }
  if (status.ok()) {
    account(static_cast<int64_t>(bytes), 1);
    auto* const address = reinterpret_cast<std::byte*>(entry.start.load(std::memory_order_relaxed));
    while (true) {
      pinning_ahead_ += ahead == nullptr ? 0 : 1;
      const uint64_t ended = statistics_.deregistrations;
      lock.unlock();
      auto region = pin_or_fail(*pinner_, address, bytes);
      lock.lock();
      pinning_ahead_ -= ahead == nullptr ? 0 : 1;
      status = region.status();
      if (status.ok()) entry.region = *std::move(region);
      // The limit of the process may be lower than the budget, or other registrations use it up.
      if (!absl::IsResourceExhausted(status) || !options_.policy->evicts()) break;
      if (statistics_.deregistrations != ended) continue;  // there may be room now
      // More room than it takes does not help a registration that nothing needs yet.
      if (ahead != nullptr && evicted >= bytes) break;
      const uint64_t before = statistics_.registered_bytes;
      if (!evict_one(lock, ahead) && !await_room(lock, ahead)) break;
      evicted += before - std::min(before, statistics_.registered_bytes);
    }
    // An event before this point may mean that other pages were pinned.
    if (status.ok() && monitor_ != nullptr &&
        entry.watch.slot != internal::MappingMonitor::kNoWatch) {
      static_cast<void>(monitor_->processed_sequence());
      if (!monitor_->is_intact(entry.watch)) {
        status = absl::Status(absl::StatusCode::kAborted, "");
        entry.region.reset();
        ++statistics_.invalidations;
      }
    }
    if (!status.ok()) account(-static_cast<int64_t>(bytes), -1);
  }
  if (status.ok()) {
    ++statistics_.registrations;
    if (ahead != nullptr) {
      // Memory that is registered ahead is used next: it must not be the first one that is evicted.
      entry.registered_ahead = options_.clock();
      entry.expected = *ahead;
      entry.last_use.store(entry.registered_ahead, std::memory_order_relaxed);
    }
    const uint64_t word = entry.word.load(std::memory_order_relaxed);
    // Release: pairs with the acquire in try_begin_use(). No other thread changes a busy entry's
    // word without the lock. From here on a use may begin, which stores its time.
    entry.word.store(((word & ~Entry::kBusy) | Entry::kRegistered) + (ahead == nullptr ? 1 : 0),
                     std::memory_order_release);
    // If the range was forgotten meanwhile and has no use, no later call would end its
    // registration.
    if (ahead != nullptr && (word & Entry::kInvalidated) != 0) {
      finish_detached(lock, entry, Entry::version_of(word));
    }
  } else {
    const uint64_t version = entry.version();
    entry.word.fetch_and(~Entry::kBusy, std::memory_order_acq_rel);
    // A registration ahead that finds no room may succeed later: the policy still knows the range.
    const bool later = ahead != nullptr && absl::IsResourceExhausted(status);
    if (entry.known && !later) detach(entry);
    if (!entry.known) finish_detached(lock, entry, version);
  }
  changed_->notify_all();
  return status;
}

// Deregisters an idle entry of that version. Releases the lock during the system call. Returns
// false if the entry is in use, not registered, or another one.
bool RegistrationCache::unpin(Lock& lock, Entry& entry, uint64_t version) {
  uint64_t word = entry.word.load(std::memory_order_acquire);
  do {
    if (Entry::version_of(word) != version || (word & Entry::kUses) != 0 ||
        (word & Entry::kRegistered) == 0) {
      return false;
    }
  } while (!entry.word.compare_exchange_weak(word, (word & ~Entry::kRegistered) | Entry::kBusy,
                                             std::memory_order_acq_rel));
  std::shared_ptr<MemoryRegion> region = std::move(entry.region);
  entry.region.reset();
  const auto bytes = static_cast<int64_t>(entry.bytes());
  ++unpinning_;
  lock.unlock();
  region.reset();
  lock.lock();
  --unpinning_;
  account(-bytes, -1);
  ++statistics_.deregistrations;
  word = entry.word.fetch_and(~Entry::kBusy, std::memory_order_acq_rel);
  if (!entry.known) recycle(entry);
  changed_->notify_all();
  return true;
}

// Takes the entry out of the index. finish_detached() or recycle() must follow.
void RegistrationCache::detach(Entry& entry) {
  const auto [first, last] = index_.equal_range(entry.start.load(std::memory_order_relaxed));
  index_.erase(std::find_if(first, last, [&](const auto& one) { return one.second == &entry; }));
  entry.known = false;
  const uint64_t word = entry.word.fetch_or(Entry::kInvalidated, std::memory_order_acq_rel);
  options_.policy->forgotten({Entry::version_of(word) << 32 | entry.index});
}

// Deregisters or recycles a detached entry. Does nothing if the entry is in use or busy: the end of
// its last use, or the busy thread, calls this function again.
void RegistrationCache::finish_detached(Lock& lock, Entry& entry, uint64_t version) {
  const uint64_t word = entry.word.load(std::memory_order_acquire);
  if (Entry::version_of(word) != version || (word & Entry::kBusy) != 0) return;
  if ((word & Entry::kRegistered) != 0) {
    static_cast<void>(unpin(lock, entry, version));
  } else if (!entry.known) {
    recycle(entry);
  }
}

// Makes a detached entry that is not registered available for another range.
void RegistrationCache::recycle(Entry& entry) {
  if (entry.watch.slot != internal::MappingMonitor::kNoWatch) monitor_->unwatch(entry.watch);
  entry.watch = {};
  const uint64_t next = entry.version() + 1;
  entry.word.store(next << Entry::kVersionShift, std::memory_order_release);
  unused_.push_back(&entry);
}

void RegistrationCache::account(int64_t bytes, int regions) {
  const int64_t time = options_.clock();
  statistics_.byte_seconds += static_cast<double>(statistics_.registered_bytes) *
                              static_cast<double>(time - last_change_) * 1e-9;
  last_change_ = time;
  statistics_.registered_bytes += static_cast<uint64_t>(bytes);
  statistics_.registered_regions += static_cast<uint64_t>(static_cast<int64_t>(regions));
  statistics_.peak_bytes = std::max(statistics_.peak_bytes, statistics_.registered_bytes);
  registered_.store(statistics_.registered_bytes, std::memory_order_relaxed);
  if (options_.on_change) options_.on_change(time, statistics_.registered_bytes);
}

RegistrationCache::Entry* RegistrationCache::named(RegionName region) const {
  const uint64_t index = region.value & 0xffffffff;
  if (index >= entries_.size()) return nullptr;
  Entry* const entry = entries_[index].get();
  return entry->known && entry->version() == region.value >> 32 ? entry : nullptr;
}

RegisterAheadResult RegistrationCache::register_ahead(RegionName region, const ExpectedUse& use) {
  Lock lock(mutex_);
  if (monitor_ != nullptr) sweep(lock);
  Entry* const entry = named(region);
  if (entry == nullptr) return RegisterAheadResult::kUnknown;
  const uint64_t word = entry->word.load(std::memory_order_acquire);
  if ((word & Entry::kBusy) != 0) return RegisterAheadResult::kRefused;
  if ((word & Entry::kRegistered) != 0) return RegisterAheadResult::kAlreadyRegistered;
  if (!pin(lock, *entry, &use).ok()) return RegisterAheadResult::kRefused;
  ++statistics_.registered_ahead;
  return RegisterAheadResult::kRegistered;
}

DeregisterResult RegistrationCache::deregister_idle(RegionName region) {
  Lock lock(mutex_);
  Entry* const entry = named(region);
  if (entry == nullptr) return DeregisterResult::kUnknown;
  if (unpin(lock, *entry, region.value >> 32)) return DeregisterResult::kDeregistered;
  // unpin() has not released the lock, so the entry is still that of the region.
  return entry->is_registered() ? DeregisterResult::kInUse : DeregisterResult::kNotRegistered;
}

uint64_t RegistrationCache::registered_bytes() const {
  return registered_.load(std::memory_order_relaxed);
}

// Returns the known entries that overlap the range.
std::vector<RegistrationCache::Entry*> RegistrationCache::entries_in(const void* address,
                                                                     size_t bytes) const {
  const auto start = reinterpret_cast<uintptr_t>(address);
  const uintptr_t end = start + std::min(bytes, UINTPTR_MAX - start);
  std::vector<Entry*> found;
  for (const auto& [from, entry] : index_) {
    if (from >= end) break;
    if (entry->end.load(std::memory_order_relaxed) > start) found.push_back(entry);
  }
  return found;
}

size_t RegistrationCache::forget(const void* address, size_t bytes) {
  Lock lock(mutex_);
  std::vector<std::pair<Entry*, uint64_t>> hit;
  size_t registered = 0;
  for (Entry* const entry : entries_in(address, bytes)) {
    hit.emplace_back(entry, entry->version());
    registered += entry->is_registered() ? 1 : 0;
  }
  for (const auto& [entry, version] : hit) detach(*entry);
  statistics_.invalidations += hit.size();
  for (const auto& [entry, version] : hit) finish_detached(lock, *entry, version);
  return registered;
}

size_t RegistrationCache::overlapping(const void* address, size_t bytes) const {
  const Lock lock(mutex_);
  const std::vector<Entry*> found = entries_in(address, bytes);
  return static_cast<size_t>(std::count_if(
      found.begin(), found.end(), [](const Entry* entry) { return entry->is_registered(); }));
}

uint64_t RegistrationCache::deregister_all_idle() {
  Lock lock(mutex_);
  uint64_t bytes = 0;
  while (Entry* const idle =
             least_recently_used(Entry::kRegistered | Entry::kUses, Entry::kRegistered, nullptr)) {
    const uint64_t own = idle->bytes();
    if (unpin(lock, *idle, idle->version())) bytes += own;
  }
  return bytes;
}

CounterSet::Values RegistrationCache::counters() const {
  const RegistrationStatistics now = statistics();
  return {{"hits", now.hits},
          {"misses", now.misses},
          {"registrations", now.registrations},
          {"registered_ahead", now.registered_ahead},
          {"deregistrations", now.deregistrations},
          {"evictions", now.evictions},
          {"invalidations", now.invalidations},
          {"registered_bytes", now.registered_bytes, true},
          {"registered_regions", now.registered_regions, true},
          {"peak_bytes", now.peak_bytes, true}};
}

RegistrationStatistics RegistrationCache::statistics() const {
  const Lock lock(mutex_);
  RegistrationStatistics result = statistics_;
  result.byte_seconds += static_cast<double>(result.registered_bytes) *
                         static_cast<double>(options_.clock() - last_change_) * 1e-9;
  for (const auto& entry : entries_) result.hits += entry->hits.load(std::memory_order_relaxed);
  return result;
}

}  // namespace cariama
