// Attachments: the state of parts of this layer, and of the layers above, for one fabric, created
// on first use and destroyed with the fabric. An arriving call finds the state of its own fabric in
// them, so several fabrics in one process stay separate.
#ifndef CARIAMA_DSFABRIC_INTERNAL_ATTACHMENTS_H_
#define CARIAMA_DSFABRIC_INTERNAL_ATTACHMENTS_H_

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "dsfabric/export.h"

namespace cariama {
class Fabric;
namespace internal {

// Thread-safe.
class Attachments {
 public:
  // Returns the fabric's T, and creates it as T(fabric) on first use. T's constructor must not call
  // get().
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

// Thread-safe. The reference is valid as long as the fabric.
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT Attachments& attachments_of(Fabric& fabric);

}  // namespace internal
}  // namespace cariama

#endif  // CARIAMA_DSFABRIC_INTERNAL_ATTACHMENTS_H_
