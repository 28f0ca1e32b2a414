#include <memory>
#include <utility>

#include "dsfabric/fabric.h"
#include "dsfabric/internal/broker.h"

namespace cariama {

absl::StatusOr<std::unique_ptr<Fabric>> Fabric::create(const FabricOptions& options) {
  auto bootstrap = make_bootstrap({.kind = {}, .timeout = options.timeout});
  if (!bootstrap.ok()) return bootstrap.status();
  const Deadline deadline = deadline_after(options.timeout);
  return create(options, *std::move(bootstrap), [&](Bootstrap& job, auto handler) {
    return internal::make_socket_broker(job, std::move(handler), deadline);
  });
}

}  // namespace cariama
