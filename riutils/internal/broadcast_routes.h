// The routes by which a worker forwards the broadcasts that arrive at it (broadcast.h).
#ifndef CARIAMA_RIUTILS_INTERNAL_BROADCAST_ROUTES_H_
#define CARIAMA_RIUTILS_INTERNAL_BROADCAST_ROUTES_H_

#include <cstdint>
#include <mutex>
#include <vector>

namespace cariama::internal {

class BroadcastRoute;

// Thread-safe.
class BroadcastRoutes {
 public:
  void add(uint32_t worker, uint32_t kind, BroadcastRoute& route) {
    const std::lock_guard lock(mutex_);
    routes_.push_back({worker, kind, &route});
  }
  void remove(const BroadcastRoute& route) {
    const std::lock_guard lock(mutex_);
    std::erase_if(routes_, [&](const Entry& entry) { return entry.route == &route; });
  }
  // Returns the newest route of that kind, or nullptr.
  [[nodiscard]] BroadcastRoute* find(uint32_t worker, uint32_t kind) {
    const std::lock_guard lock(mutex_);
    for (auto entry = routes_.rbegin(); entry != routes_.rend(); ++entry) {
      if (entry->worker == worker && entry->kind == kind) return entry->route;
    }
    return nullptr;
  }

 private:
  struct Entry {
    uint32_t worker;
    uint32_t kind;
    BroadcastRoute* route;
  };
  std::mutex mutex_;
  std::vector<Entry> routes_;
};

}  // namespace cariama::internal

#endif  // CARIAMA_RIUTILS_INTERNAL_BROADCAST_ROUTES_H_
