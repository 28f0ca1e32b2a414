#include "dtutils/diagnostics.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <functional>
#include <mutex>
#include <utility>

#include "dtutils/internal/file_descriptor.h"
#include "dtutils/internal/shared_diagnostics.h"

namespace cariama {
namespace {

struct Registry {
  std::mutex mutex;
  std::vector<Diagnostic> reported;
  DiagnosticSink sink;
  std::string job;                     // of share_diagnostics(); "": none
  std::vector<FileDescriptor> claims;  // sockets of claim(), open until the process ends
};

// Never destroyed: objects with static storage may still report while the program ends.
Registry& registry() {
  static auto* const instance = new Registry;
  return *instance;
}

// Returns a descriptor if this process is the one of its job that writes the key to stderr, else
// none. The claim is the name of an abstract socket: the kernel gives a name to one socket only,
// and frees it when the process ends, so that no file can be left behind. If the kernel gives no
// socket at all, every process claims the key: a diagnostic must not get lost.
struct Claim {
  bool granted = true;
  FileDescriptor descriptor;
};
Claim claim(const std::string& job, const std::string& key) {
  Claim claim;
  if (job.empty()) return claim;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // The leading 0 selects the abstract name space. The processes of a job run the same program, so
  // they compute the same hash.
  const std::string name = std::string(1, '\0') + "cariama-diagnostic/" + job + "/" +
                           std::to_string(std::hash<std::string>()(key));
  const size_t length = std::min(name.size(), sizeof address.sun_path);
  std::memcpy(address.sun_path, name.data(), length);
  claim.descriptor = FileDescriptor(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!claim.descriptor.valid()) return claim;
  claim.granted = bind(claim.descriptor.get(), reinterpret_cast<const sockaddr*>(&address),
                       static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + length)) == 0 ||
                  errno != EADDRINUSE;
  return claim;
}

}  // namespace

bool report_once(std::string_view key, std::string_view what, std::string_view remedy) {
  Registry& all = registry();
  Diagnostic diagnostic;
  DiagnosticSink sink;
  std::string job;
  {
    const std::lock_guard lock(all.mutex);
    const bool known = std::any_of(all.reported.begin(), all.reported.end(),
                                   [key](const Diagnostic& d) { return d.key == key; });
    if (known) return false;
    diagnostic = {std::string(key), std::string(what), std::string(remedy)};
    all.reported.push_back(diagnostic);
    sink = all.sink;
    job = all.job;
  }
  if (sink) {
    sink(diagnostic);
    return true;
  }
  Claim claimed = claim(job, diagnostic.key);
  if (!claimed.granted) return true;
  std::fprintf(stderr, "cariama: %s: %s\n", diagnostic.what.c_str(), diagnostic.remedy.c_str());
  if (claimed.descriptor.valid()) {
    const std::lock_guard lock(all.mutex);
    all.claims.push_back(std::move(claimed.descriptor));
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

void internal::share_diagnostics(std::string_view job) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  all.job = job;
}

}  // namespace cariama
