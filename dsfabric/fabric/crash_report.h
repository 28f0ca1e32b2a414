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

// Installs handlers: SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGABRT print a report and then end the
// process, as without a handler; an uncaught std::bad_alloc prints its line. Does not replace the
// handler of a signal that has one or is ignored, and not a handler of std::set_terminate(). Does
// nothing if CARIAMA_CRASH_REPORT is 0, or after the first call. `label` names the process.
// Thread-safe.
void report_crashes(std::string_view label);
// Makes the report also work if the stack of the calling thread overflows. The first line then ends
// with "(stack overflow?)". Takes 64 KiB of address space until the thread ends. report_crashes()
// calls it for its own thread. Requires: report_crashes() was called.
void report_overflows_of_this_thread();

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_FABRIC_CRASH_REPORT_H_
