// The parts of a fabric, for code that has only the Fabric: calls that have arrived, and the parts
// of this layer that implement its public headers (invocation/, memory/, collectives/). A source
// file includes this header and those of the parts that it uses. Defined in fabric/fabric_core.cc,
// which composes the parts.
#ifndef CARIAMA_DSFABRIC_CALLS_FABRIC_PARTS_H_
#define CARIAMA_DSFABRIC_CALLS_FABRIC_PARTS_H_

#include "dsfabric/calls/attachments.h"

namespace cariama {
class Fabric;
}  // namespace cariama

namespace cariama::internal {

class CallCounts;
class CallSender;
class CallSources;
class Dispatch;
class FabricJob;
class FabricMemory;
class Ports;
class Pulls;
class RejectedCalls;
class Replies;
class Workers;

[[nodiscard]] const FabricJob& job_of(Fabric& fabric);
[[nodiscard]] FabricMemory& memory_of(Fabric& fabric);
[[nodiscard]] Ports& ports_of(Fabric& fabric);
[[nodiscard]] const CallCounts& counts_of(Fabric& fabric);
[[nodiscard]] RejectedCalls& rejected_calls_of(Fabric& fabric);
[[nodiscard]] Workers& workers_of(Fabric& fabric);
[[nodiscard]] CallSources& sources_of(Fabric& fabric);
[[nodiscard]] CallSender& sender_of(Fabric& fabric);
[[nodiscard]] Replies& replies_of(Fabric& fabric);
[[nodiscard]] Pulls& pulls_of(Fabric& fabric);
[[nodiscard]] Dispatch& dispatch_of(Fabric& fabric);
[[nodiscard]] Attachments& attachments_of(Fabric& fabric);

// Returns the fabric's T; see Attachments::get().
template <typename T>
[[nodiscard]] T& attachment_of(Fabric& fabric) {
  return attachments_of(fabric).get<T>(fabric);
}

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_CALLS_FABRIC_PARTS_H_
