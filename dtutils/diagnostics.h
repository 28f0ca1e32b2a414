// Diagnostics: reports of degradation that the library writes without being asked. Each kind of
// degradation step is reported once per process, with its remedy ("no free 2 MiB huge page, using
// smaller pages: echo 64 > ...").
//
//   set_diagnostic_sink([](const Diagnostic& d) { log(d.what, d.remedy); });  // default: stderr
//   for (const Diagnostic& d : reported_diagnostics()) ...                    // for a status page
//
// A failure is not a diagnostic; it is returned as a Status (error.h). All functions are
// thread-safe.
#ifndef CARIAMA_DTUTILS_DIAGNOSTICS_H_
#define CARIAMA_DTUTILS_DIAGNOSTICS_H_

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "dtutils/export.h"

namespace cariama {

struct Diagnostic {
  std::string key;     // names the kind of step ("pages.2MiB"); each key is reported once
  std::string what;    // the resource that was wanted, and the one that is used instead
  std::string remedy;  // the action that the user can take
};

// Records the step and passes it to the sink, unless a step with this key was reported before.
// Returns true if this call reported it. Takes a lock and may write to stderr: for set-up, never
// for a data path.
CARIAMA_DTUTILS_EXPORT bool report_once(std::string_view key, std::string_view what,
                                        std::string_view remedy);

// Returns all diagnostics that this process has reported so far, oldest first.
[[nodiscard]] CARIAMA_DTUTILS_EXPORT std::vector<Diagnostic> reported_diagnostics();

using DiagnosticSink = std::function<void(const Diagnostic&)>;

// Replaces the sink and returns the previous one. An empty sink writes to stderr ("cariama: what:
// remedy"). The sink is called without locks held, possibly by several threads at the same time.
CARIAMA_DTUTILS_EXPORT DiagnosticSink set_diagnostic_sink(DiagnosticSink sink);

}  // namespace cariama

#endif  // CARIAMA_DTUTILS_DIAGNOSTICS_H_
