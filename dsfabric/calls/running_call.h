// The call that a thread is running: its fabric, and the process that sent it.
#ifndef CARIAMA_DSFABRIC_CALLS_RUNNING_CALL_H_
#define CARIAMA_DSFABRIC_CALLS_RUNNING_CALL_H_

#include <cstdint>

namespace cariama {
class Fabric;
}  // namespace cariama

namespace cariama::internal {

struct RunningCall {
  Fabric* fabric = nullptr;      // nullptr: the thread runs no call
  uint32_t source = UINT32_MAX;  // rank; kNoRank
};

extern constinit thread_local RunningCall this_running_call;

// During its lifetime, the calling thread counts as running a call from process `source`.
class RunningScope {
 public:
  RunningScope(Fabric& fabric, uint32_t source) : outer_(this_running_call) {
    this_running_call = {&fabric, source};
  }
  ~RunningScope() { this_running_call = outer_; }
  RunningScope(const RunningScope&) = delete;
  RunningScope& operator=(const RunningScope&) = delete;

 private:
  const RunningCall outer_;
};

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_CALLS_RUNNING_CALL_H_
