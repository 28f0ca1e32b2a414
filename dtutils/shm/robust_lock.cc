#include "dtutils/shm/robust_lock.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <span>
#include <thread>
#include <utility>

#include "dtutils/internal/futex.h"
#include "dtutils/internal/missing_memory.h"
#include "dtutils/internal/start_thread.h"

namespace cariama::shm {
namespace {

// FUTEX_WAITV_MAX is 128; one word is for wake-ups of this thread.
constexpr size_t kPeersPerThread = 127;
constexpr auto kFallbackPeriod = std::chrono::milliseconds(5);

}  // namespace

RobustLock::RobustLock(ControlHeader* header) : header_(header) {
  // The list itself stays in private memory: peers see only the futex word.
  head_.list.next = &node_;
  node_.next = &head_.list;
  head_.futex_offset =
      reinterpret_cast<char*>(&header->owner_lock) - reinterpret_cast<char*>(&node_);
  head_.list_op_pending = nullptr;
  syscall(SYS_get_robust_list, 0, &previous_, &previous_length_);
  // Fails only if the kernel does not support robust lists; then deaths are detected by pidfds
  // alone, later.
  syscall(SYS_set_robust_list, &head_, sizeof head_);
  header->owner_lock.store(static_cast<uint32_t>(syscall(SYS_gettid)));
}

RobustLock::~RobustLock() {
  header_->closed.store(1);
  header_->owner_lock.store(0);
  if (previous_ != nullptr) syscall(SYS_set_robust_list, previous_, previous_length_);
  internal::futex_wake(&header_->owner_lock);
}

PeerWatch::~PeerWatch() {
  for (auto& group : groups_) {
    group->stop.store(true);
    bump(*group);
    group->thread.join();
  }
}

void PeerWatch::bump(Group& group) {
  group.changes.fetch_add(1);
  internal::futex_wake(&group.changes);
}

absl::Status PeerWatch::add(const std::shared_ptr<Link>& link) {
  std::lock_guard lock(mutex_);
  for (auto& group : groups_) {
    if (group->links.size() >= kPeersPerThread) continue;
    group->links.push_back(link);
    bump(*group);
    return absl::OkStatus();
  }
  groups_.reserve(groups_.size() + 1);  // push_back() must not throw once the thread runs
  auto group = std::make_unique<Group>();
  group->links.push_back(link);
  auto thread = internal::start_quiet_thread([this, raw = group.get()] { run(*raw); });
  if (!thread.ok()) return thread.status();
  group->thread = *std::move(thread);
  groups_.push_back(std::move(group));
  return absl::OkStatus();
}

void PeerWatch::remove(const Link* link) {
  std::lock_guard lock(mutex_);
  for (auto& group : groups_) {
    const auto removed =
        std::erase_if(group->links, [link](const auto& other) { return other.get() == link; });
    if (removed != 0) bump(*group);
  }
}

void PeerWatch::run(Group& group) {
  bool has_waitv = true;
  for (;;) {
    // Loaded before `stop`. The destructor sets `stop` before it changes `changes`, so if this
    // thread misses `stop`, its wait on the old value of `changes` returns immediately.
    const uint32_t changes = group.changes.load();
    if (group.stop.load()) return;
    std::array<std::shared_ptr<Link>, kPeersPerThread> links;  // needs no memory
    size_t link_count = 0;
    {
      std::lock_guard lock(mutex_);
      for (const std::shared_ptr<Link>& link : group.links) links[link_count++] = link;
    }
    std::array<futex_waitv, kPeersPerThread + 1> entries;  // shared words: no FUTEX_PRIVATE_FLAG
    uint32_t count = 0;
    entries[count++] = {changes, reinterpret_cast<uint64_t>(&group.changes), FUTEX_32, 0};
    for (const std::shared_ptr<Link>& link : std::span(links).first(link_count)) {
      ControlHeader* header = control_header(link->control());
      uint32_t word = header->owner_lock.load();
      // The waiters' bit makes the kernel wake a sleeper when the owner dies. One attempt: if the
      // word has changed meanwhile, the wait below returns immediately. Each process that maps the
      // segment can change it, as often as it wants.
      if ((word & FUTEX_TID_MASK) != 0 && (word & (FUTEX_OWNER_DIED | FUTEX_WAITERS)) == 0) {
        header->owner_lock.compare_exchange_strong(word, word | FUTEX_WAITERS);
      }
      if ((word & FUTEX_OWNER_DIED) != 0 || (word & FUTEX_TID_MASK) == 0) {
        // The kernel wakes only one sleeper, which must wake the remaining ones.
        internal::futex_wake(&header->owner_lock);
        PeerState alive = PeerState::kAlive;
        const bool closed = header->closed.load() != 0;
        link->state.compare_exchange_strong(alive, closed ? PeerState::kClosed : PeerState::kDead);
        if (internal::has_memory_for("shm.watch.memory",
                                     "this process lacks memory for the end of a peer over shm",
                                     [&] { ended_(link); })) {
          remove(link.get());
        } else {
          std::this_thread::sleep_for(internal::kMemoryPause);
          bump(group);  // the wait below returns, and the thread tries again
        }
        continue;
      }
      entries[count++] = {word | FUTEX_WAITERS, reinterpret_cast<uint64_t>(&header->owner_lock),
                          FUTEX_32, 0};
    }
    if (has_waitv) {
      if (syscall(SYS_futex_waitv, entries.data(), count, 0, nullptr, 0) < 0 &&
          (errno == ENOSYS || errno == EPERM)) {
        has_waitv = false;
      }
    } else {
      const auto deadline = std::chrono::steady_clock::now() + kFallbackPeriod;
      internal::futex_wait(&group.changes, changes, deadline);
    }
  }
}

}  // namespace cariama::shm
