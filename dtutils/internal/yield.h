// Yielding the core in a loop that waits, without losing it for a time slice at each turn.
#ifndef CARIAMA_DTUTILS_INTERNAL_YIELD_H_
#define CARIAMA_DTUTILS_INTERNAL_YIELD_H_

#include "dtutils/export.h"

namespace cariama::internal {

// Lets other threads run on the core of the calling thread, then returns: after microseconds if
// these threads wait too. If they compute, a yield may cost a whole time slice (Linux 6.18: 4 ms
// for more than a tenth of the yields), in any step of an exchange of messages. A thread that
// wakes up from a sleep gets its core back soon. So after a long yield the thread sleeps for about
// 80 us instead of yielding, and tries to yield again after 50 ms.
CARIAMA_DTUTILS_EXPORT void yield_core();

// Returns true while yield_core() sleeps in this thread: a wait that can sleep until an event
// should do so now.
[[nodiscard]] bool yields_are_long();

}  // namespace cariama::internal

#endif  // CARIAMA_DTUTILS_INTERNAL_YIELD_H_
