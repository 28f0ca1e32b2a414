#include "dsfabric/bootstrap/lifecycle.h"

#include <pthread.h>

#include <mutex>
#include <vector>

#include "dtutils/error.h"

namespace cariama::internal {
namespace {

struct LiveFabrics {
  std::mutex mutex;
  std::vector<Lifecycle*> all;
};

LiveFabrics& live_fabrics() {
  static auto* const all = new LiveFabrics;  // never destroyed: a fabric may outlive static objects
  return *all;
}

}  // namespace

Lifecycle::Lifecycle() {
  static const int prepared =
      pthread_atfork([] { live_fabrics().mutex.lock(); }, [] { live_fabrics().mutex.unlock(); },
                     [] {
                       for (Lifecycle* one : live_fabrics().all) {
                         one->inherited_.store(true);
                         one->closed_.store(true);
                       }
                       live_fabrics().mutex.unlock();
                     });
  static_cast<void>(prepared);  // ENOMEM: a child is not recognised
  const std::lock_guard lock(live_fabrics().mutex);
  live_fabrics().all.push_back(this);
}

Lifecycle::~Lifecycle() {
  const std::lock_guard lock(live_fabrics().mutex);
  std::erase(live_fabrics().all, this);
}

absl::Status Lifecycle::closed_error() const {
  if (is_inherited()) {
    return make_error(absl::StatusCode::kUnavailable, ErrorScope::kProcess,
                      "this process is a child of fork(): the fabric belongs to its parent",
                      "call exec or _exit in the child");
  }
  return make_error(absl::StatusCode::kUnavailable, ErrorScope::kProcess,
                    "the fabric was finalized");
}

}  // namespace cariama::internal
