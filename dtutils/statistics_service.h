// Shows the counters of this process (statistics.h) to other programs of this host while it runs:
// cariama-top, curl, or an agent of Prometheus.
//
//   auto service = StatisticsService::start({.labels = {{"rank", "3"}}});
//   $ cariama-top
//
// The service is a thread that sleeps until a program connects: it costs nothing before that,
// unless it writes a file (file_path). It listens on a Unix socket in the abstract namespace, whose
// name begins with kStatisticsSocket and ends with the process id, so that readers find all
// processes in /proc/net/unix. It answers each request with the text of statistics_prometheus(), as
// a response of HTTP/1.0. Only processes of the same user and of root get an answer.
#ifndef CARIAMA_DTUTILS_STATISTICS_SERVICE_H_
#define CARIAMA_DTUTILS_STATISTICS_SERVICE_H_

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtutils/export.h"
#include "dtutils/statistics.h"

namespace cariama {

// The start of the names of the sockets, without the zero byte in front.
inline constexpr std::string_view kStatisticsSocket = "cariama-statistics/";

struct StatisticsServiceOptions {
  // Labels of every line. The service adds `pid` and `program`.
  StatisticsLabels labels{};
  // Besides the socket in the abstract namespace: a socket in the file system that serves the same,
  // for programs that need a path (curl --unix-socket PATH http://localhost/). "": none. A socket
  // that exists under this path and has no listener is replaced.
  std::string socket_path{};
  // A file that gets the text once a second and at the end of the service ("": none), as the text
  // file collector of Prometheus' node_exporter reads it. Each write replaces the file as a whole.
  std::string file_path{};
};

// Thread-safe.
class CARIAMA_DTUTILS_EXPORT StatisticsService {
 public:
  // Starts the thread. One service at a time in a process. Errors: ALREADY_EXISTS (this process has
  // one; another process listens at socket_path), RESOURCE_EXHAUSTED (descriptors, threads), or the
  // error of writing the file.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<StatisticsService>> start(
      StatisticsServiceOptions options = {});
  // Writes the file a last time, removes socket_path, and ends the thread. In a child of fork(),
  // which has no such thread, it only closes the child's descriptors.
  ~StatisticsService();
  StatisticsService(const StatisticsService&) = delete;
  StatisticsService& operator=(const StatisticsService&) = delete;

 private:
  struct State;
  explicit StatisticsService(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace cariama

#endif  // CARIAMA_DTUTILS_STATISTICS_SERVICE_H_
