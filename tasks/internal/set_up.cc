#include "tasks/internal/set_up.h"

#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>

#include "dsfabric/topology.h"
#include "dtutils/error.h"
#include "dtutils/exchange_connect.h"
#include "dtutils/internal/boot_id.h"

namespace cariama::tasks {
namespace {

// Returns a digest that differs between hosts: of the boot id and the process name space.
uint64_t host_digest() {
  std::string identity = cariama::internal::boot_id();
  struct stat space {};
  if (stat("/proc/self/ns/pid", &space) == 0) identity += std::to_string(space.st_ino);
  return std::hash<std::string>()(identity);
}

}  // namespace

uint64_t shadow_stack_features() {
  uint64_t features = 0;
  // The headers of older systems do not have these numbers.
#if defined(__x86_64__)
  constexpr int kStatus = 0x5005;  // ARCH_SHSTK_STATUS
  if (syscall(SYS_arch_prctl, kStatus, &features) != 0) return 0;
#else
  constexpr int kStatus = 74;  // PR_GET_SHADOW_STACK_STATUS
  if (prctl(kStatus, &features, 0, 0, 0) != 0) return 0;
#endif
  return features;
}

absl::Status check_shadow_stack(uint64_t features) {
  if ((features & 1) == 0) return absl::OkStatus();
  return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kProcess,
                    "this process has a shadow stack, with which stacks cannot migrate",
                    "compile the program with -fcf-protection=branch, or start it with "
                    "GLIBC_TUNABLES=glibc.cpu.x86_shstk=off");
}

WorkerPlace this_place() {
  const absl::StatusOr<Neighbourhood> here = this_neighbourhood();
  if (!here.ok()) return {host_digest(), -1, -1};
  return {host_digest(), here->numa_node, here->core_complex};
}

// Rank 0 puts a number before the fence, so all ranks get this number after it. The next runtime
// replaces the number only after the last fence of this create().
absl::StatusOr<std::string> agree_on_name(Exchange& exchange, const std::string& kind,
                                          Exchange::Deadline deadline) {
  const std::string key = kind + " runtime";
  if (exchange.rank() == 0) {
    const auto now =
        static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
    const absl::Status status = put_value(exchange, key, now);
    if (!status.ok()) return status;
  }
  const absl::Status status = exchange.fence(deadline);
  if (!status.ok()) return status;
  const auto number = get_value<uint64_t>(exchange, 0, key, deadline);
  if (!number.ok()) return number.status();
  return kind + " " + std::to_string(*number);
}

absl::StatusOr<bool> serves_atomics(Exchange& exchange, RemoteAtomics wanted, const Device& device,
                                    const std::string& name, Exchange::Deadline deadline) {
  if (wanted != RemoteAtomics::kAutomatic) return wanted == RemoteAtomics::kServed;
  const absl::Status status = put_value(exchange, name + " atomics", device.limits().atomics);
  if (!status.ok()) return status;
  bool all = true;
  for (int peer = 0; peer < exchange.size(); ++peer) {
    const auto theirs = get_value<bool>(exchange, peer, name + " atomics", deadline);
    if (!theirs.ok()) return theirs.status();
    all = all && *theirs;
  }
  return !all;
}

absl::StatusOr<std::shared_ptr<Device>> open_common_device(bool one_host) {
  DeviceOptions wanted;
  if (std::getenv("CARIAMA_TRANSPORT") == nullptr) {
    wanted.transport = one_host ? Transport::kShm : Transport::kVerbs;
  }
  return open_device(wanted);
}

}  // namespace cariama::tasks
