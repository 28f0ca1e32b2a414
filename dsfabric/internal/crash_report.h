// A report of the signal that ends a process of a job: its rank, and the function in which the
// signal came with its callers.
//
//   cariama: rank 1 (on node1, pid 4711) dies of signal 11 (Segmentation fault) at address 0x8, in
//     Board::play(int), called from Engine::think(), called from main
#ifndef CARIAMA_DSFABRIC_INTERNAL_CRASH_REPORT_H_
#define CARIAMA_DSFABRIC_INTERNAL_CRASH_REPORT_H_

#include <string_view>

namespace cariama::internal {

// Makes SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGABRT print a report before they end the process as
// they would have done. Leaves a signal alone that has a handler or is ignored. Does nothing if
// CARIAMA_CRASH_REPORT is 0, or after the first call. `label` names the process. Thread-safe.
void report_crashes(std::string_view label);

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_INTERNAL_CRASH_REPORT_H_
