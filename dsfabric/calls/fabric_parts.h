// Accessors of the parts of a Fabric. Handlers of received calls, and the sources of invocation/,
// memory/ and collectives/, have a Fabric& and use these instead of FabricCore. The parts are only
// declared here: include the header of each part that you use. Thread-safe. The references are
// valid as long as the fabric. Defined in fabric/fabric_core.cc, which composes the parts.
#ifndef CARIAMA_DSFABRIC_CALLS_FABRIC_PARTS_H_
#define CARIAMA_DSFABRIC_CALLS_FABRIC_PARTS_H_

#include "dsfabric/internal/attachments.h"

namespace cariama {
class Fabric;
}  // namespace cariama

namespace cariama::internal {

class AwaitedTransfers;
class CallCounts;
class CallSender;
class CallSources;
class Dispatch;
class FabricJob;
class FabricMemory;
class Ports;
class Pulls;
class RejectedCalls;
class Answers;
class Workers;

[[nodiscard]] const FabricJob& job_of(Fabric& fabric);
[[nodiscard]] FabricMemory& memory_of(Fabric& fabric);
[[nodiscard]] Ports& ports_of(Fabric& fabric);
[[nodiscard]] const CallCounts& counts_of(Fabric& fabric);
[[nodiscard]] RejectedCalls& rejected_calls_of(Fabric& fabric);
[[nodiscard]] Workers& workers_of(Fabric& fabric);
[[nodiscard]] CallSources& sources_of(Fabric& fabric);
[[nodiscard]] CallSender& sender_of(Fabric& fabric);
[[nodiscard]] Answers& answers_of(Fabric& fabric);
[[nodiscard]] AwaitedTransfers& transfers_of(Fabric& fabric);
[[nodiscard]] Pulls& pulls_of(Fabric& fabric);
[[nodiscard]] Dispatch& dispatch_of(Fabric& fabric);

// Returns the fabric's object of type T, which the first call creates (attachments.h).
template <typename T>
[[nodiscard]] T& attachment_of(Fabric& fabric) {
  return attachments_of(fabric).get<T>(fabric);
}

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_CALLS_FABRIC_PARTS_H_
