// Service calls that deferred_bytes does not limit, for this library's own protocols, in this layer
// and above.
#ifndef CARIAMA_DSFABRIC_INTERNAL_UNLIMITED_CALL_H_
#define CARIAMA_DSFABRIC_INTERNAL_UNLIMITED_CALL_H_

#include <utility>

#include "dsfabric/call_encoding.h"
#include "dsfabric/call_options.h"
#include "dsfabric/call_result.h"
#include "dsfabric/fabric.h"
#include "dsfabric/ids.h"
#include "dsfabric/send_call.h"

namespace cariama::internal {

// As service_call<RetryAsync>(), but calls to other processes that have used up deferred_bytes do
// not make the call refused. Never waits for credit. For calls that the sender does not repeat: the
// report of a death (one for each pair of processes), the report of lost calls (one for each pair),
// the freeing of remote memory (one for each allocation). Errors: those of connecting, UNAVAILABLE.
template <typename F, typename... Args>
[[nodiscard]] CallResult unlimited_service_call(Fabric& fabric, Rank rank, F&& function,
                                                Args&&... arguments) {
  const auto made = make_call(function, std::forward<Args>(arguments)...);
  const auto& call = owned(made);
  OutgoingCall outgoing = OutgoingCall::of(call);
  outgoing.is_unlimited = true;
  return send_call(fabric, rank, kService, outgoing, WhenFull::kRetryAsync);
}

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_INTERNAL_UNLIMITED_CALL_H_
