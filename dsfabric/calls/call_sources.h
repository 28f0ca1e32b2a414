// The call sources of a fabric: calls that a layer above delivers on a path of its own
// (call_source.h). Every function finds no calls until that layer has created its registry.
#ifndef CARIAMA_DSFABRIC_CALLS_CALL_SOURCES_H_
#define CARIAMA_DSFABRIC_CALLS_CALL_SOURCES_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "dsfabric/calls/workers.h"
#include "dsfabric/internal/call_source.h"

namespace cariama {
class Fabric;
}  // namespace cariama

namespace cariama::internal {

// Thread-safe. Its mutex is held while the registry is created, and at no other time.
class CallSources {
 public:
  // `workers` must outlive this object.
  explicit CallSources(Workers& workers) : workers_(workers) {}
  CallSources(const CallSources&) = delete;
  CallSources& operator=(const CallSources&) = delete;

  using Maker = std::unique_ptr<CallSourceRegistry> (*)(Fabric& fabric);
  // Returns the registry. Creates it by `make` if there is none, and gives each worker its source.
  [[nodiscard]] CallSourceRegistry& registry(Fabric& fabric, Maker make) {
    if (CallSourceRegistry* const there = get(); there != nullptr) return *there;
    const std::lock_guard lock(mutex_);
    if (owned_ == nullptr) {
      owned_ = make(fabric);
      for (uint32_t i = 0; i < workers_.count(); ++i) {
        workers_.at(i).source.store(&owned_->source(i), std::memory_order_release);
      }
      registry_.store(owned_.get(), std::memory_order_release);
      // The sleepers of workers that are already asleep have not fenced the new sources' senders.
      for (uint32_t i = 0; i < workers_.count(); ++i) workers_.wake(i);
    }
    return *owned_;
  }

  // As the functions of CallSourceRegistry.
  void event(uint32_t from, uint32_t value) {
    if (CallSourceRegistry* const there = get(); there != nullptr) there->event(from, value);
  }
  void peer_died(uint32_t rank) {
    if (CallSourceRegistry* const there = get(); there != nullptr) there->peer_died(rank);
  }
  [[nodiscard]] uint64_t begun(uint32_t rank) const {
    CallSourceRegistry* const there = get();
    return there == nullptr ? 0 : there->begun(rank);
  }
  [[nodiscard]] uint64_t ended(uint32_t rank) const {
    CallSourceRegistry* const there = get();
    return there == nullptr ? 0 : there->ended(rank);
  }
  void finalized() {
    if (CallSourceRegistry* const there = get(); there != nullptr) there->finalized();
  }
  void stop() {
    if (CallSourceRegistry* const there = get(); there != nullptr) there->stop();
  }
  // Disconnects the registry: no function of the registry is called after the return. The registry
  // is destroyed with this object.
  void disconnect() {
    if (CallSourceRegistry* const there = get(); there != nullptr) there->disconnect();
    registry_.store(nullptr, std::memory_order_release);
  }

 private:
  [[nodiscard]] CallSourceRegistry* get() const {
    return registry_.load(std::memory_order_acquire);
  }

  Workers& workers_;
  std::mutex mutex_;
  std::unique_ptr<CallSourceRegistry> owned_;
  std::atomic<CallSourceRegistry*> registry_{nullptr};
};

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_CALLS_CALL_SOURCES_H_
