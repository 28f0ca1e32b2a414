// The shm transport: the contract between processes of one host, over memory passed by descriptor.
//
// The initiator executes one-sided operations on the peer's mapped memory, without the target's
// CPU: they complete while the target is stopped. Messages into receives that it has posted
// complete as well. Memory without a descriptor is accessed through process_vm_readv(2): slower,
// without atomics (kRemoteInvalid), and only where the kernel permits it (Yama's ptrace_scope 0;
// else kRemoteOperation with EPERM). Between two devices of one process all memory is accessed
// directly.
//
// Cost. A device: a sleeping thread, a socket with an abstract name, and a sparse 1 GiB memfd of
// which a few pages exist. A connected peer device: 1 GiB + 4 MiB of address space, a socket, a
// pidfd, and a mapping for each of its regions; and one more thread for every 127 peers. A queue
// pair: 128 bytes, plus 32 bytes and 32 + 24 * segments (rounded up to 64) for each receive. A
// registration that has ended occupies address space, but no memory, in each peer until the
// connection ends.
//
// A robust futex detects the death of a peer, well below 1 ms after the kill, independent of the
// amount of memory of the killed process. Pending operations end with kPeerDied, then kFlushed.
// Memory to which the peer could still be writing is reused only when its pidfd reports that the
// whole process has ended. A request of a shared receive queue that the peer had taken and not
// finished is posted again; a request of a queue pair's own receive queue completes with kPeerDied.
// If the peer's queue pair was destroyed in an orderly way, operations end with kRetryExceeded,
// then kFlushed.
//
// fork: a child must not use a device that its parent opened; destroying the child's copy is
// harmless. The child keeps the parent's memory and socket alive until it ends or execs.
#ifndef CARIAMA_DTUTILS_SHM_SHM_DEVICE_H_
#define CARIAMA_DTUTILS_SHM_SHM_DEVICE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "dtutils/device.h"

namespace cariama {

// Opens a shared-memory device of this host; each call creates an independent one. It needs no
// hardware, so it fails only when descriptors or memory are exhausted. Blocks for the time of a few
// system calls.
[[nodiscard]] absl::StatusOr<std::shared_ptr<Device>> open_shm_device();

}  // namespace cariama

#endif  // CARIAMA_DTUTILS_SHM_SHM_DEVICE_H_
