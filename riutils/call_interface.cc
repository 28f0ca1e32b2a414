#include "riutils/call_interface.h"

#include "dsfabric/send_call.h"

namespace cariama::internal {

CallResult send_on_channel(OutgoingChannel& channel, OutgoingCall call, WhenNoRoom when, bool batch,
                           CallEnd& end) {
  Fabric& fabric = channel.fabric();
  const Rank rank = channel.rank();
  absl::Status there = check_destination(fabric, rank, channel.destination());
  if (!there.ok()) return there;
  if (absl::Status expected = end.expect(fabric, rank, call); !expected.ok()) return expected;
  // A failed process may accept stores for a while. Its failure ends the calls that wait for it
  // once: look only after the call was registered.
  CallResult sent = fabric.peer_status(rank);
  if (sent.ok()) sent = channel.sender().send_slowly(call, when, batch, end.transmitted);
  if (sent.ok()) return sent;
  return end.refused(fabric, rank, call, sent.status());
}

}  // namespace cariama::internal
