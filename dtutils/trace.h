// Records events with their times, in the trace-event format that Chrome (chrome://tracing) and
// Perfetto (ui.perfetto.dev) display.
//
//   CARIAMA_TRACE=trace.json ./program            // or start_trace("trace.json")
//
//   name_trace_thread("worker 3");
//   { TraceScope scope("riutils", "flush", "bytes", n);  ... }      // a bar as long as the block
//   trace_instant("transmitter", "queue full");
//   trace_counter("outstanding", n);
//
// While tracing is off, each of these calls costs one relaxed load and a branch. While it is on, a
// call costs a clock read and 56 bytes in the thread's own buffer, without locks or system calls
// (one allocation per 1024 events). Buffers are bounded; events that do not fit are dropped and
// counted, and the file states their number.
//
// All processes that name one file share it: each appends its events, under a lock of the file. The
// first process creates the file, or replaces the trace of processes that have all ended. "%p" in
// the path stands for the process id, so that each process has its own file.
//
// The file is valid JSON from start_trace() on, and after each write. A process writes at exit(),
// by stop_trace() and by write_trace(). A process that ends by _exit() or a signal leaves what
// its last write_trace() wrote. If it is killed inside a write, the file ends with a part of that
// write, which the next process that writes removes. A write that fails, for example because the
// disk is full, leaves the file as it was. A forked child starts with empty buffers.
//
// Times are CLOCK_MONOTONIC, which the processes of one host share. dsfabric aligns the clocks of
// several hosts (dtutils/internal/trace_clock.h). Format: "Trace Event Format", Google, 2016.
#ifndef CARIAMA_DTUTILS_TRACE_H_
#define CARIAMA_DTUTILS_TRACE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "dtutils/export.h"

namespace cariama {

// The largest number of recorded events of one thread, and of all threads of the process together;
// 56 bytes each.
inline constexpr size_t kMaxTraceEventsPerThread = size_t{1} << 18;
inline constexpr size_t kMaxTraceEvents = size_t{1} << 20;

namespace internal {
CARIAMA_DTUTILS_EXPORT extern std::atomic<bool> trace_on;
CARIAMA_DTUTILS_EXPORT uint64_t trace_now();  // ns, never 0
// Calls the observer (dtutils/internal/trace_observer.h), and returns trace_now().
CARIAMA_DTUTILS_EXPORT uint64_t trace_begin(const char* category, const char* name);
// `duration` in ns for 'X', else 0. For 's' and 'f' `value` is the id of the arrow.
CARIAMA_DTUTILS_EXPORT void trace_record(char phase, const char* category, const char* name,
                                         uint64_t start, uint64_t duration, const char* argument,
                                         uint64_t value);
}  // namespace internal

// Returns true if events are being recorded. Costs one relaxed load.
[[nodiscard]] inline bool trace_enabled() {
  return internal::trace_on.load(std::memory_order_relaxed);
}

// Starts recording into `path`, and creates the file immediately ("%p" stands for the process id).
// Errors: FAILED_PRECONDITION (a trace is being recorded), ALREADY_EXISTS (the file is no trace),
// or the error of writing the file. This function and all functions below are thread-safe.
[[nodiscard]] CARIAMA_DTUTILS_EXPORT absl::Status start_trace(std::string_view path);

// Writes the events recorded so far and continues recording. OK if no trace is being recorded.
// Blocks while this process or another one writes, at most 30 s for the others.
CARIAMA_DTUTILS_EXPORT absl::Status write_trace();

// Writes the file a last time and stops recording. Events that other threads record meanwhile may
// be lost. OK if no trace is being recorded.
CARIAMA_DTUTILS_EXPORT absl::Status stop_trace();

// Returns the number of events dropped since start_trace() because buffers were full.
[[nodiscard]] CARIAMA_DTUTILS_EXPORT uint64_t dropped_trace_events();

// Set the names that the viewer shows for this process and for the calling thread. The text is
// copied. The names are stored whether a trace is being recorded or not; a thread's name until the
// thread ends.
CARIAMA_DTUTILS_EXPORT void name_trace_process(std::string_view name);
CARIAMA_DTUTILS_EXPORT void name_trace_thread(std::string_view name);

// For all functions below, `category`, `name` and `argument` must have static storage (literals):
// they are read when the file is written. `argument` names `value`; nullptr means that there is no
// value.

// Records a point in time.
inline void trace_instant(const char* category, const char* name, const char* argument = nullptr,
                          uint64_t value = 0) {
  if (trace_enabled()) [[unlikely]] {
    const uint64_t now = internal::trace_begin(category, name);
    internal::trace_record('i', category, name, now, 0, argument, value);
  }
}

// Records a value that changes over time; the viewer draws it as a curve named `name`.
inline void trace_counter(const char* name, uint64_t value) {
  if (trace_enabled()) [[unlikely]] {
    internal::trace_record('C', "counter", name, internal::trace_now(), 0, "value", value);
  }
}

// Record the two ends of an arrow, which the viewer draws between the events (TraceScope) around
// them. Both ends have the same category, name and id, and no other arrow has all three. `id` is
// less than 2^53, so that every viewer reads it exactly.
inline void trace_arrow_begin(const char* category, const char* name, uint64_t id) {
  if (trace_enabled()) [[unlikely]] {
    internal::trace_record('s', category, name, internal::trace_now(), 0, nullptr, id);
  }
}
inline void trace_arrow_end(const char* category, const char* name, uint64_t id) {
  if (trace_enabled()) [[unlikely]] {
    internal::trace_record('f', category, name, internal::trace_now(), 0, nullptr, id);
  }
}

// Records the time from its construction to its destruction, on the same thread.
class TraceScope {
 public:
  TraceScope(const char* category, const char* name, const char* argument = nullptr,
             uint64_t value = 0)
      : start_(trace_enabled() ? internal::trace_begin(category, name) : 0),
        category_(category),
        name_(name),
        argument_(argument),
        value_(value) {}
  ~TraceScope() {
    if (start_ != 0) [[unlikely]] {
      internal::trace_record('X', category_, name_, start_, internal::trace_now() - start_,
                             argument_, value_);
    }
  }
  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;

 private:
  uint64_t start_;  // 0: not recorded
  const char* category_;
  const char* name_;
  const char* argument_;
  uint64_t value_;
};

}  // namespace cariama

#endif  // CARIAMA_DTUTILS_TRACE_H_
