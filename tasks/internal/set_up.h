// The steps that TaskRuntime::create() and TaskPool::create() share: a common name for the keys in
// the exchange, the place of this worker, and the device that connects all workers.
#ifndef CARIAMA_TASKS_INTERNAL_SET_UP_H_
#define CARIAMA_TASKS_INTERNAL_SET_UP_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtutils/device.h"
#include "dtutils/process_group.h"
#include "tasks/internal/victims.h"
#include "tasks/runtime.h"

namespace cariama::tasks {

// Returns the shadow stack features of this thread, as the kernel reports them: bit 0 is set if the
// thread has a shadow stack. Returns 0 on kernels without shadow stacks.
[[nodiscard]] uint64_t shadow_stack_features();

// Returns FAILED_PRECONDITION if these features have bit 0 set: a shadow stack does not contain the
// return addresses of frames that have migrated, so their first return would end the process.
[[nodiscard]] absl::Status check_shadow_stack(uint64_t features);

// Returns the place of this worker. If hwloc cannot determine it, only the host is known.
[[nodiscard]] WorkerPlace this_place();

// Returns a prefix "KIND NUMBER" for the keys of a new runtime of this kind that no earlier runtime
// on this exchange has. Collective. Errors: those of Exchange.
[[nodiscard]] absl::StatusOr<std::string> agree_on_name(Exchange& exchange, const std::string& kind,
                                                        Exchange::Deadline deadline);

// Opens the device that connects all workers: the transport that CARIAMA_TRANSPORT names; without
// it, shm if all workers are on one host, else verbs. Errors: those of open_device().
[[nodiscard]] absl::StatusOr<std::shared_ptr<Device>> open_common_device(bool one_host);

// Returns true if threads of the workers execute the atomics (RemoteAtomics::kServed). `name` is
// the prefix of the keys in the exchange. Collective. Errors: those of Exchange.
[[nodiscard]] absl::StatusOr<bool> serves_atomics(Exchange& exchange, RemoteAtomics wanted,
                                                  const Device& device, const std::string& name,
                                                  Exchange::Deadline deadline);

}  // namespace cariama::tasks

#endif  // CARIAMA_TASKS_INTERNAL_SET_UP_H_
