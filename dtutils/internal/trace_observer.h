// Observes the events of a trace (trace.h) as they begin. The sweep of faults (tests/sweep) stops,
// kills or forks a process at each of them.
#ifndef CARIAMA_DTUTILS_INTERNAL_TRACE_OBSERVER_H_
#define CARIAMA_DTUTILS_INTERNAL_TRACE_OBSERVER_H_

namespace cariama::internal {

// Is called where a TraceScope begins and where an instant event is recorded, by the thread that
// records it. The thread may hold locks of the library.
using TraceObserver = void (*)(const char* category, const char* name);

// Sets the observer, or none (nullptr). It is called only while a trace is being recorded.
// Thread-safe. Other threads may still be inside of the former observer.
void set_trace_observer(TraceObserver observer);

}  // namespace cariama::internal

#endif  // CARIAMA_DTUTILS_INTERNAL_TRACE_OBSERVER_H_
