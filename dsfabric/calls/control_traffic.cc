#include "dsfabric/calls/control_traffic.h"

#include "dsfabric/fabric.h"

namespace cariama::internal {

ControlTraffic::ControlTraffic(Fabric& fabric) : counts_(fabric.size()) {}

}  // namespace cariama::internal
