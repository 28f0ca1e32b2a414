// Creates a fabric with a given bootstrap and broker: for jobs that a launcher does not start, such
// as simulated ones.
#ifndef CARIAMA_DSFABRIC_FABRIC_CREATE_FABRIC_H_
#define CARIAMA_DSFABRIC_FABRIC_CREATE_FABRIC_H_

#include <memory>

#include "absl/status/statusor.h"
#include "dsfabric/bootstrap.h"
#include "dsfabric/bootstrap/job_directory.h"
#include "dsfabric/export.h"
#include "dsfabric/fabric.h"
#include "dsfabric/fabric_options.h"
#include "dsfabric/peers/broker.h"

namespace cariama::internal {

// As Fabric::create(). `broker_of` is called once. `directory`: see FabricJob::join(). Must outlive
// the call.
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT absl::StatusOr<std::unique_ptr<Fabric>> create_fabric(
    const FabricOptions& options, std::unique_ptr<Bootstrap> bootstrap,
    const BrokerMaker& broker_of, SharedJobDirectory* directory = nullptr);

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_FABRIC_CREATE_FABRIC_H_
