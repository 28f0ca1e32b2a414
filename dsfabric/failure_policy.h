// What a process does when another process of its job has failed.
#ifndef CARIAMA_DSFABRIC_FAILURE_POLICY_H_
#define CARIAMA_DSFABRIC_FAILURE_POLICY_H_

#include <cstdint>

namespace cariama {

// The action of a process that detects that another process of the job is dead.
enum class FailurePolicy : uint8_t {
  kAbort,     // the process prints which process is dead, and exits with code 1; a worker that
              // detects it in a run of a TaskRuntime exits with code 70
  kContinue,  // operations in flight to the dead process end with UNAVAILABLE; the rest continues
};

}  // namespace cariama

#endif  // CARIAMA_DSFABRIC_FAILURE_POLICY_H_
