#include "dtutils/diagnostics.h"

#include <algorithm>
#include <cstdio>
#include <mutex>
#include <utility>

namespace cariama {
namespace {

struct Registry {
  std::mutex mutex;
  std::vector<Diagnostic> reported;
  DiagnosticSink sink;
};

// Never destroyed: objects with static storage may still degrade while the program ends.
Registry& registry() {
  static auto* const instance = new Registry;
  return *instance;
}

}  // namespace

bool report_once(std::string_view key, std::string_view what, std::string_view remedy) {
  Registry& all = registry();
  Diagnostic diagnostic;
  DiagnosticSink sink;
  {
    const std::lock_guard lock(all.mutex);
    const bool known = std::any_of(all.reported.begin(), all.reported.end(),
                                   [key](const Diagnostic& d) { return d.key == key; });
    if (known) return false;
    diagnostic = {std::string(key), std::string(what), std::string(remedy)};
    all.reported.push_back(diagnostic);
    sink = all.sink;
  }
  if (sink) {
    sink(diagnostic);
  } else {
    std::fprintf(stderr, "cariama: %s: %s\n", diagnostic.what.c_str(), diagnostic.remedy.c_str());
  }
  return true;
}

std::vector<Diagnostic> reported_diagnostics() {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  return all.reported;
}

DiagnosticSink set_diagnostic_sink(DiagnosticSink sink) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  return std::exchange(all.sink, std::move(sink));
}

}  // namespace cariama
