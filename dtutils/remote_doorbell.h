// The sleeper's end of remote doorbells (doorbell.h): for a thread that polls memory into which
// processes of other hosts WRITE.
//
// The sleeper arms a remote doorbell by a WRITE into the ringer's memory, then READs the ringer's
// published count: step S2. The queue pair executes a READ after earlier WRITEs. If the ringer has
// published more than the sleeper has consumed, a message is in flight, and the thread must not
// sleep. The ringer's event is posted behind the WRITEs of the message, so it arrives after them.
//
// Cost: two operations per ringer and attempt to sleep; the operations of all ringers are in flight
// at the same time.
#ifndef CARIAMA_DTUTILS_REMOTE_DOORBELL_H_
#define CARIAMA_DTUTILS_REMOTE_DOORBELL_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "dtutils/doorbell.h"
#include "dtutils/export.h"
#include "dtutils/memory.h"
#include "dtutils/synchronizer.h"
#include "dtutils/transmitter.h"

namespace cariama {

// The sleeper's end of one RemoteDoorbell. A channel derives from it and supplies its counts.
// Thread-compatible.
class CARIAMA_DTUTILS_EXPORT RemoteSleeper {
 public:
  static constexpr uint64_t kScratchBytes = 16;

  // Requires: finish() was called after the last arm().
  virtual ~RemoteSleeper() = default;

  // Posts the WRITE and the READ. Throws no std::bad_alloc.
  void arm();
  // Waits for the READ. Returns true if the ringer has published more than was consumed, and also
  // if its doorbell is not armed: because arm() was not called since the last recheck(), or because
  // it could not post the operations (no memory). Exception: if the connection has failed, returns
  // false, since its ringer cannot send either.
  [[nodiscard]] bool recheck();
  RemoteSleeper(const RemoteSleeper&) = delete;
  RemoteSleeper& operator=(const RemoteSleeper&) = delete;
  // Blocks until the operations of arm() have ended.
  void finish();

 protected:
  // `doorbell` is the ringer's RemoteDoorbell.
  explicit RemoteSleeper(const RemoteMemoryLocator& doorbell) : doorbell_(doorbell) {}

  // Returns the transmitter to the ringer. UNAVAILABLE means that the connection has failed.
  [[nodiscard]] virtual absl::StatusOr<Transmitter*> path() = 0;
  // Returns registered memory of this process, of which kScratchBytes at scratch_offset() are used.
  [[nodiscard]] virtual RDMAMemory& scratch() = 0;
  [[nodiscard]] virtual uint64_t scratch_offset() const = 0;
  // Returns the count that the ringer would have published if nothing were in flight.
  [[nodiscard]] virtual uint64_t consumed() const = 0;

 private:
  void post();

  const RemoteMemoryLocator doorbell_;
  Synchronizer read_{0};
  Transmitter* through_ = nullptr;  // while the READ is in flight
  bool armed_ = false;              // arm() was called since the last recheck()
  bool failed_ = false;             // the last arm() found the connection failed
};

// The remote doorbells of one thread. Thread-compatible.
class CARIAMA_DTUTILS_EXPORT RemoteSleepers {
 public:
  // Requires: `sleeper` is removed before it is destroyed.
  void add(RemoteSleeper* sleeper) { sleepers_.push_back(sleeper); }
  void remove(RemoteSleeper* sleeper) { std::erase(sleepers_, sleeper); }

  // See Sleeper. A sleeper that was added after arm() makes recheck() return true.
  void arm() {
    for (RemoteSleeper* const sleeper : sleepers_) sleeper->arm();
  }
  [[nodiscard]] bool recheck() {
    bool in_flight = false;
    for (RemoteSleeper* const sleeper : sleepers_) in_flight |= sleeper->recheck();
    return in_flight;
  }

 private:
  std::vector<RemoteSleeper*> sleepers_;
};

}  // namespace cariama

#endif  // CARIAMA_DTUTILS_REMOTE_DOORBELL_H_
