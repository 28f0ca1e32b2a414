// A queue pair's part of the control segment of its device, for tests that change it as a peer
// would.
#ifndef CARIAMA_TESTS_DTUTILS_SHM_CONTROL_VIEW_H_
#define CARIAMA_TESTS_DTUTILS_SHM_CONTROL_VIEW_H_

#include <cstddef>

#include "dtutils/queue_pair.h"
#include "dtutils/shm/address.h"
#include "dtutils/shm/control_segment.h"
#include "dtutils/shm/layout.h"

namespace cariama::shm {

// Requires: the queue pair is of a device of this process.
struct ControlView {
  explicit ControlView(const QueuePair& queue_pair)
      : address(*decode(queue_pair.address())),
        control(find_local_segment(address.device)->base()),
        header(&queue_pair_table(control)[address.index]) {
    const auto* queue =
        reinterpret_cast<const ReceiveQueueHeader*>(control + header->receive_queue);
    receives = ReceiveQueueView(control + header->receive_queue, queue->entries, queue->slots,
                                queue->max_segments);
  }
  Address address;
  std::byte* control;
  QueuePairHeader* header;
  ReceiveQueueView receives;
};

}  // namespace cariama::shm

#endif  // CARIAMA_TESTS_DTUTILS_SHM_CONTROL_VIEW_H_
