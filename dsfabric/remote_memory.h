// Registered memory of another process, allocated and freed from here: by process and NUMA node, or
// beside one of its threads.
//
//   auto memory = RemoteMemory::allocate(fabric, 3, 4096, deadline);      // of process 3
//   auto near = RemoteMemory::allocate_near(fabric, 17, 4096, deadline);  // on thread 17's node
//   transmitter.write(local, 0, 64, memory->locator());                   // use it by hand, or
//   global_memory.rput(value, global_ptr<int>(memory->address()));        // see global_memory.h
//
// The owning process takes part by a service call and by nothing else: its threads may be busy.
#ifndef CARIAMA_DSFABRIC_REMOTE_MEMORY_H_
#define CARIAMA_DSFABRIC_REMOTE_MEMORY_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dsfabric/export.h"
#include "dsfabric/fabric.h"
#include "dtutils/allocators/superpages.h"
#include "dtutils/memory.h"
#include "dtutils/wait.h"

namespace cariama {

// A place in registered memory, under a name that every process of the job can use: plain data, 32
// bytes. Which of the keys serves depends on how a process reaches the owner.
struct GlobalAddress {
  uint64_t address = 0;             // in the owner; 0: nowhere
  std::array<RemoteKey, 2> keys{};  // for those that reach the owner in memory, and over verbs
  uint32_t rank = 0;                // the owner
  uint32_t reserved = 0;

  friend bool operator==(const GlobalAddress&, const GlobalAddress&) = default;
};
static_assert(sizeof(GlobalAddress) == 32 && std::is_trivially_copyable_v<GlobalAddress>);

// [place, place + bytes) as `fabric`'s process names it in its own transfers.
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT RemoteMemoryLocator locator_of(const Fabric& fabric,
                                                                     const GlobalAddress& place,
                                                                     uint64_t bytes);

// Owns a piece of memory of a process, our own perhaps. Movable; thread-compatible. The fabric must
// outlive it.
//
// Memory of a process that dies is gone. Memory that a dead process had allocated elsewhere stays
// until its owner's fabric ends: others may use it.
class CARIAMA_DSFABRIC_EXPORT RemoteMemory {
 public:
  // `bytes` of zeros at a multiple of 64, in process `rank`, on its NUMA node `numa_node`. Waits
  // for the answer, and runs calls meanwhile; not inside of calls. The owner's service thread
  // clears the memory, so allocate once and much. Errors: OUT_OF_RANGE (no such process),
  // RESOURCE_EXHAUSTED and INVALID_ARGUMENT (the owner's allocator says why: its budget, no such
  // node), UNAVAILABLE, DEADLINE_EXCEEDED (what is allocated later all the same is freed at once).
  [[nodiscard]] static absl::StatusOr<RemoteMemory> allocate(Fabric& fabric, uint32_t rank,
                                                             size_t bytes, Deadline deadline,
                                                             int numa_node = kAnyNode);
  // On the node of thread `thread` (a global id), which must stay a worker meanwhile. Further
  // error: FAILED_PRECONDITION (it is none yet).
  [[nodiscard]] static absl::StatusOr<RemoteMemory> allocate_near(Fabric& fabric, uint32_t thread,
                                                                  size_t bytes, Deadline deadline);

  RemoteMemory() = default;
  // Frees, without waiting for the owner. Transfers to it must be over.
  ~RemoteMemory() { free(); }
  RemoteMemory(RemoteMemory&& other) noexcept { swap(other); }
  RemoteMemory& operator=(RemoteMemory&& other) noexcept {
    RemoteMemory(std::move(other)).swap(*this);
    return *this;
  }

  [[nodiscard]] uint32_t rank() const { return address_.rank; }
  [[nodiscard]] size_t size() const { return bytes_; }  // bytes
  [[nodiscard]] const GlobalAddress& address() const { return address_; }
  // For transfers by hand, over fabric.connection(rank()). Not for our own memory.
  [[nodiscard]] RemoteMemoryLocator locator() const {
    return locator_of(*fabric_, address_, bytes_);
  }

  void free();
  // Gives the memory up without freeing it: whoever has the address calls adopt().
  GlobalAddress release() { return std::exchange(address_, {}); }
  [[nodiscard]] static RemoteMemory adopt(Fabric& fabric, const GlobalAddress& address,
                                          size_t bytes) {
    return RemoteMemory(fabric, address, bytes);
  }

 private:
  RemoteMemory(Fabric& fabric, const GlobalAddress& address, size_t bytes)
      : fabric_(&fabric), address_(address), bytes_(bytes) {}
  void swap(RemoteMemory& other) {
    std::swap(fabric_, other.fabric_);
    std::swap(address_, other.address_);
    std::swap(bytes_, other.bytes_);
  }

  Fabric* fabric_ = nullptr;
  GlobalAddress address_;
  size_t bytes_ = 0;
};

}  // namespace cariama

#endif  // CARIAMA_DSFABRIC_REMOTE_MEMORY_H_
