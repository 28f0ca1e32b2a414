#include "dsfabric/calls/control_traffic.h"

#include "dsfabric/fabric.h"

namespace cariama::internal {

ControlTraffic::ControlTraffic(Fabric& fabric) : begun_(fabric.size()), ended_(fabric.size()) {}

}  // namespace cariama::internal
