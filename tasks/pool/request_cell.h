// RequestCellOwner: the victim's side of its request cell, by which thieves ask for tasks.
//
//   state       changed by   to                when
//   kBlocked    owner        kOpen             it has tasks to hand over: a store
//   kOpen       owner        kBlocked          it has none any more: a compare-and-swap
//   kOpen       thief        request id        it asks for tasks: a compare-and-swap
//   request id  owner        kBlocked, kOpen   it is about to answer this request: a store
//
// Peers change the cell only from kOpen, so all their compare-and-swaps fail while the cell is
// kBlocked or holds a request id. But a failed compare-and-swap of a device may undo a store of the
// owner (RemoteAccess): the cell then has the value again that it had before the store. It can have
// no other value, because a device executes one atomic operation on a word at a time, and the
// owner's compare-and-swap is an operation of the device, too. If kBlocked returns, the owner opens
// the cell again. If the last request id returns, the owner recognizes it, and does not answer it
// twice. The owner's own compare-and-swap may find it, too.
//
// tests/tasks/pool/request_cell_interleavings_test.cc runs this code in every interleaving of small
// instances.
#ifndef CARIAMA_TASKS_POOL_REQUEST_CELL_H_
#define CARIAMA_TASKS_POOL_REQUEST_CELL_H_

#include <atomic>
#include <cstdint>

#include "tasks/pool.h"

namespace cariama::tasks {

// Not a request id: see request_id_of().
inline constexpr uint64_t kNoRequestId = pool::internal::kOpen;

// `Memory` has load (acquire), store (release), and compare_swap, which returns the old value and
// is atomic with the compare-and-swaps of the peers.
template <typename Memory>
class RequestCellOwner {
 public:
  RequestCellOwner(Memory& memory, std::atomic<uint64_t>& cell) : memory_(memory), cell_(cell) {}

  // Call one of these two: open() if the worker has tasks to hand over, close() if it has none.
  // Returns the request id of a thief, or kNoRequestId. The caller then calls take() with the
  // request id, and answers the request.
  [[nodiscard]] uint64_t open() {
    const uint64_t request = checked(memory_.load(cell_));
    if (request != pool::internal::kBlocked) return request;  // kOpen is kNoRequestId
    memory_.store(cell_, pool::internal::kOpen);
    return kNoRequestId;
  }
  [[nodiscard]] uint64_t close() {
    uint64_t request = checked(memory_.load(cell_));
    if (request == pool::internal::kOpen) {
      request =
          checked(memory_.compare_swap(cell_, pool::internal::kOpen, pool::internal::kBlocked));
    }
    return request == pool::internal::kBlocked ? kNoRequestId : request;
  }

  // Removes the request id from the cell. `next` is kOpen or kBlocked.
  void take(uint64_t request_id, uint64_t next) {
    taken_ = request_id;
    memory_.store(cell_, next);
  }

 private:
  // Returns the contents of the cell. If the last request id has returned to it, closes it.
  [[nodiscard]] uint64_t checked(uint64_t request) {
    if (request != taken_) return request;
    memory_.store(cell_, pool::internal::kBlocked);
    return pool::internal::kBlocked;
  }

  Memory& memory_;
  std::atomic<uint64_t>& cell_;
  uint64_t taken_ = ~uint64_t{0};  // the last request id; initially a value that is none
};

}  // namespace cariama::tasks

#endif  // CARIAMA_TASKS_POOL_REQUEST_CELL_H_
