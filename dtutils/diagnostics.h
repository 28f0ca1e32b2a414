// What the library tells its user unasked: a step of degradation, said once per process, with its
// remedy ("no free 2 MiB huge page, using smaller pages: echo 64 > ...").
//
//   set_diagnostic_sink([](const Diagnostic& d) { log(d.what, d.remedy); });  // default: stderr
//   for (const Diagnostic& d : reported_diagnostics()) ...                    // for a status page
//
// Failures are no diagnostics: they are returned (error.h). All functions are thread-safe.
#ifndef CARIAMA_DTUTILS_DIAGNOSTICS_H_
#define CARIAMA_DTUTILS_DIAGNOSTICS_H_

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "dtutils/export.h"

namespace cariama {

struct Diagnostic {
  std::string key;     // names the kind of step ("pages.2MiB"); each is said once
  std::string what;    // what was wanted, and what is used in its place
  std::string remedy;  // what the user can do
};

// Records the step and hands it to the sink, unless one with this key was reported before. True if
// this call reported it. Takes a lock and may write to stderr: for set-up, never for a data path.
CARIAMA_DTUTILS_EXPORT bool report_once(std::string_view key, std::string_view what,
                                        std::string_view remedy);

// Everything reported so far by this process, oldest first.
[[nodiscard]] CARIAMA_DTUTILS_EXPORT std::vector<Diagnostic> reported_diagnostics();

using DiagnosticSink = std::function<void(const Diagnostic&)>;

// Replaces the sink; an empty one stands for stderr ("cariama: what: remedy"). Returns the former
// one. The sink is called without locks held, possibly by several threads at once.
CARIAMA_DTUTILS_EXPORT DiagnosticSink set_diagnostic_sink(DiagnosticSink sink);

}  // namespace cariama

#endif  // CARIAMA_DTUTILS_DIAGNOSTICS_H_
