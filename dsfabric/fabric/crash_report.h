// A report of the signal that ends a process of a job: its rank, and the function in which the
// signal came with its callers.
//
//   cariama: rank 1 (on node1, pid 4711) dies of signal 11 (Segmentation fault) at address 0x8
//   cariama: rank 1 (on node1, pid 4711) was in Board::play(int), called from main
//
// If several threads crash, each prints its first line, and the first of them its callers. If the
// search for the callers faults too, the second line is missing.
//
// A std::bad_alloc that no function catches, or that leaves a noexcept function, ends the process
// with exit code 1 instead of a signal:
//
//   cariama: rank 1 (on node1, pid 4711) cannot allocate memory (std::bad_alloc): raise ...
#ifndef CARIAMA_DSFABRIC_FABRIC_CRASH_REPORT_H_
#define CARIAMA_DSFABRIC_FABRIC_CRASH_REPORT_H_

#include <string_view>

namespace cariama::internal {

// Makes SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGABRT print a report before they end the process as
// they would have done, and handles std::bad_alloc as above. Leaves a signal alone that has a
// handler or is ignored, and a handler of std::set_terminate(). Does nothing if
// CARIAMA_CRASH_REPORT is 0, or after the first call. `label` names the process. Thread-safe.
void report_crashes(std::string_view label);
// After report_crashes(): the report also works if the calling thread's stack overflows. The first
// line then ends with "(stack overflow?)". Takes 64 KiB of address space until the thread ends.
// report_crashes() does it for its caller.
void report_overflows_of_this_thread();

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_FABRIC_CRASH_REPORT_H_
