// The shm transport: the contract between processes of one host, over memory passed by descriptor.
#ifndef CARIAMA_DTUTILS_SHM_SHM_DEVICE_H_
#define CARIAMA_DTUTILS_SHM_SHM_DEVICE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "dtutils/device.h"

namespace cariama {

// Opens the shared-memory device of this host. It needs no hardware and always exists; errors come
// from exhausted descriptors or memory only. Blocking: system calls.
[[nodiscard]] absl::StatusOr<std::shared_ptr<Device>> open_shm_device();

}  // namespace cariama

#endif  // CARIAMA_DTUTILS_SHM_SHM_DEVICE_H_
