// What parts of this layer keep for one fabric: made on first use, gone with the fabric. So that a
// call which arrives finds the state of its fabric, and several fabrics in one process do not meet.
#ifndef CARIAMA_DSFABRIC_INTERNAL_ATTACHMENTS_H_
#define CARIAMA_DSFABRIC_INTERNAL_ATTACHMENTS_H_

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace cariama {
class Fabric;
namespace internal {

// Thread-safe.
class Attachments {
 public:
  // The fabric's T, made as T(fabric) if there is none yet. T's constructor must not ask for
  // another.
  template <typename T>
  [[nodiscard]] T& get(Fabric& fabric) {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, object] : objects_) {
      if (key == &kKey<T>) return *static_cast<T*>(object.get());
    }
    auto made = std::make_shared<T>(fabric);
    objects_.emplace_back(&kKey<T>, made);
    return *made;
  }

 private:
  template <typename T>
  static inline char kKey = 0;

  std::mutex mutex_;
  std::vector<std::pair<const char*, std::shared_ptr<void>>> objects_;
};

}  // namespace internal
}  // namespace cariama

#endif  // CARIAMA_DSFABRIC_INTERNAL_ATTACHMENTS_H_
