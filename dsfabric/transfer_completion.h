// The completion objects of calls (completions.h) for one-sided transfers: a Synchronizer, a Future
// or a callback.
//
//   Synchronizer read;
//   check(transmitter.read(buffer, 0, n, theirs, &read));
//   Future<void> end;
//   check(notify_at_end(fabric, transmitter.queue(), read, end));
//   absl::Status status = co_await end;                     // or end.get(deadline)
//
// A Transmitter counts a Synchronizer down by itself, in the thread that polls its queue. With
// notify_at_end() the fabric polls.
#ifndef CARIAMA_DSFABRIC_TRANSFER_COMPLETION_H_
#define CARIAMA_DSFABRIC_TRANSFER_COMPLETION_H_

#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "dsfabric/call_result.h"
#include "dsfabric/completions.h"
#include "dsfabric/export.h"
#include "dsfabric/fabric.h"
#include "dsfabric/ids.h"
#include "dtutils/synchronizer.h"
#include "dtutils/transmitter.h"

namespace cariama {

namespace internal {

[[nodiscard]] CARIAMA_DSFABRIC_EXPORT absl::Status watch_transfers(Fabric& fabric,
                                                                   TransmitQueue& queue,
                                                                   Synchronizer& done,
                                                                   EventReceiver event);

template <typename T>
constexpr bool require_transfer_completion() {
  constexpr bool kWritten = std::is_same_v<std::remove_cvref_t<T>, RemoteObject<Synchronizer>>;
  static_assert(!kWritten && kCanComplete<T>,
                "cariama: the end of a transfer takes a Synchronizer or a Future<void> by "
                "reference, or a callback that takes a const absl::Status&");
  return !kWritten && kCanComplete<T>;
}

// Calls start(event), which returns whether it was accepted; `event` notifies `object`.
template <typename Object, typename Start>
[[nodiscard]] CallResult start_completing(Fabric& fabric, Object&& object, Start&& start) {
  EventReceiver event;
  EventObject<StoredCompletion<Object>> connected(
      fabric, kNoRank, kNoThread, store_completion<Object>(std::forward<Object>(object)), event);
  absl::Status accepted = start(event);
  connected.sent(accepted);
  return accepted;
}

}  // namespace internal

// Notifies `object`, once, when the operations that `done` counts have ended: transfers that were
// posted on `queue`. `object`: a Synchronizer& or a Future<void>&, or a callback of type
// void(const absl::Status&), as in completions.h. Never blocks. Any thread may call it.
//
// While the transfers are in flight, a thread of the fabric polls `queue`, and does not sleep;
// without service threads (FabricOptions::service_threads), the threads that wait or that poll for
// calls do. Other threads may poll, too. `done` counts only transfers of `queue`; both must live
// until the event, and if the fabric ends first, until it is destroyed.
//
// Errors: UNAVAILABLE (the fabric has ended), RESOURCE_EXHAUSTED (the thread cannot be created). A
// Synchronizer or a callback then gets no event, and a Future is ready with the error. The event
// has the transfers' own error, or UNAVAILABLE if the fabric ends first.
template <typename Object>
CallResult notify_at_end(Fabric& fabric, TransmitQueue& queue, Synchronizer& done,
                         Object&& object) {
  if constexpr (internal::require_transfer_completion<Object>()) {
    return internal::start_completing(
        fabric, std::forward<Object>(object), [&](const internal::EventReceiver& event) {
          return internal::watch_transfers(fabric, queue, done, event);
        });
  } else {
    return {};
  }
}

}  // namespace cariama

#endif  // CARIAMA_DSFABRIC_TRANSFER_COMPLETION_H_
