// The shm transport: the contract between processes of one host, over memory passed by descriptor.
//
// One-sided operations are done by the initiator on the peer's mapped memory, without the target's
// CPU: they complete while it is stopped. So do messages into receives that it has posted. Memory
// without a descriptor is reached through process_vm_readv(2): slower, without atomics
// (kRemoteInvalid), and only where the kernel allows it (Yama's ptrace_scope 0; else
// kRemoteOperation with EPERM). Between two devices of one process all memory is reached directly.
//
// What it costs. A device: a thread that sleeps, a socket with an abstract name, a sparse 1 GiB
// memfd of which a few pages exist. A connected peer device: 1 GiB + 0.5 MiB of address space, a
// socket and a pidfd, a mapping for each of its regions; and one more thread for every 127 peers. A
// queue pair: 128 bytes, plus 32 bytes and 32 + 24 * segments (rounded up to 64) for each receive.
// An ended registration keeps address space, no memory, in each peer until the connection ends.
//
// Death of a peer is noticed by a robust futex, well below 1 ms after the kill however much memory
// the victim held; pending operations end with kPeerDied, then kFlushed. Memory that it could still
// be writing to is used again only when its pidfd tells that the whole process has ended. A request
// of a shared receive queue that it had taken and not finished is posted again; one of a queue
// pair's own queue completes with kPeerDied. A queue pair whose peer was destroyed in order ends
// with kRetryExceeded, then kFlushed.
//
// fork: a child must not use a device that its parent opened; destroying the copy there is
// harmless. The child keeps the parent's memory and socket alive until it ends or execs.
#ifndef CARIAMA_DTUTILS_SHM_SHM_DEVICE_H_
#define CARIAMA_DTUTILS_SHM_SHM_DEVICE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "dtutils/device.h"

namespace cariama {

// Opens a shared-memory device of this host; each call makes an independent one. It needs no
// hardware and always exists; errors come from exhausted descriptors or memory only. Blocking:
// system calls.
[[nodiscard]] absl::StatusOr<std::shared_ptr<Device>> open_shm_device();

}  // namespace cariama

#endif  // CARIAMA_DTUTILS_SHM_SHM_DEVICE_H_
