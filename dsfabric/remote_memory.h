// Registered memory of another process, which this process allocates and frees: on a NUMA node of
// that process, or on the node of one of its threads.
//
//   auto memory = RemoteMemory::allocate(fabric, 3, 4096, deadline);      // of process 3
//   auto near = RemoteMemory::allocate_near(fabric, 17, 4096, deadline);  // on thread 17's node
//   transmitter.write(local, 0, 64, memory->locator());                   // for own transfers, or
//   global_memory.rput(value, global_ptr<int>(memory->address()));        // see global_memory.h
//
// The owner's service thread executes the allocation; the owner's other threads are not involved
// and may be busy.
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

// A place in registered memory, in a form that every process of the job can use: trivially
// copyable, 32 bytes. A process uses the key that matches how it reaches the owner.
struct GlobalAddress {
  uint64_t address = 0;  // in the owner; 0: null
  // The keys for processes that reach the owner by shared memory, and for those that reach it over
  // verbs.
  std::array<RemoteKey, 2> keys{};
  Rank rank = 0;  // the owner
  uint32_t reserved = 0;

  friend bool operator==(const GlobalAddress&, const GlobalAddress&) = default;
};
static_assert(sizeof(GlobalAddress) == 32 && std::is_trivially_copyable_v<GlobalAddress>);

// Returns the locator of [place, place + bytes) for transfers by `fabric`'s process.
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT RemoteMemoryLocator locator_of(const Fabric& fabric,
                                                                     const GlobalAddress& place,
                                                                     uint64_t bytes);

// Owns a piece of memory of some process, possibly this one. Movable; thread-compatible. The fabric
// must outlive it.
//
// The memory of a process is lost when the process dies. Memory that a dead process had allocated
// in another process stays allocated until the fabric of that process ends, because other processes
// may use the memory.
class CARIAMA_DSFABRIC_EXPORT RemoteMemory {
 public:
  // Allocates `bytes` zeroed bytes, aligned to 64, in process `rank` on its NUMA node `numa_node`.
  // Blocks until the owner has answered; runs calls meanwhile. Not to be called inside of calls.
  // The owner's service thread clears the memory, so allocate rarely and in large pieces. Errors:
  // OUT_OF_RANGE (no such process), RESOURCE_EXHAUSTED and INVALID_ARGUMENT (the owner's allocator
  // gives the reason: its budget, no such node), UNAVAILABLE, DEADLINE_EXCEEDED (if the owner
  // allocates the memory later, it is freed immediately).
  [[nodiscard]] static absl::StatusOr<RemoteMemory> allocate(Fabric& fabric, Rank rank,
                                                             size_t bytes, Deadline deadline,
                                                             int numa_node = kAnyNode);
  // Allocates on the node of thread `thread`, which must stay a worker meanwhile.
  // Further error: FAILED_PRECONDITION (the thread is not a worker yet).
  [[nodiscard]] static absl::StatusOr<RemoteMemory> allocate_near(Fabric& fabric, ThreadId thread,
                                                                  size_t bytes, Deadline deadline);

  RemoteMemory() = default;
  // Frees the memory, without waiting for the owner. Requires: all transfers to it have ended.
  ~RemoteMemory() { free(); }
  RemoteMemory(RemoteMemory&& other) noexcept { swap(other); }
  RemoteMemory& operator=(RemoteMemory&& other) noexcept {
    RemoteMemory(std::move(other)).swap(*this);
    return *this;
  }

  [[nodiscard]] Rank rank() const { return address_.rank; }
  [[nodiscard]] size_t size() const { return bytes_; }  // bytes
  [[nodiscard]] const GlobalAddress& address() const { return address_; }
  // Returns the locator for the program's own transfers over fabric.connection(rank()). Requires:
  // rank() is not this process.
  [[nodiscard]] RemoteMemoryLocator locator() const {
    return locator_of(*fabric_, address_, bytes_);
  }

  // Names. Processes that do not have the address of a piece of memory find it by the name under
  // which its owner has published it. So no process needs the addresses of all processes.
  // Returns a name that no process of the job has got before.
  [[nodiscard]] static uint64_t new_name(Fabric& fabric);
  // Names the memory until it is freed or named again. Requires: rank() is this process.
  void publish(uint64_t name) const;
  // Returns the address of the memory that process `rank` has published under `name`. Blocks until
  // the owner has answered; runs no calls if the fabric has service threads. Errors: NOT_FOUND;
  // OUT_OF_RANGE, UNAVAILABLE and DEADLINE_EXCEEDED as allocate().
  [[nodiscard]] static absl::StatusOr<GlobalAddress> find(Fabric& fabric, Rank rank, uint64_t name,
                                                          Deadline deadline);

  // Returns true if [address, address + bytes) lies in memory of this process that was allocated by
  // allocate(), here or in another process. Checks an address that has come with a call.
  // Thread-safe.
  [[nodiscard]] static bool contains(Fabric& fabric, uint64_t address, size_t bytes);

  void free();
  // Gives up ownership without freeing. To free the memory, pass the address to adopt().
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
