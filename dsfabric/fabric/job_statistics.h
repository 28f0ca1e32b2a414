// Implements CARIAMA_STATISTICS: shows the counters of the job's processes while they run and at
// the end.
#ifndef CARIAMA_DSFABRIC_FABRIC_JOB_STATISTICS_H_
#define CARIAMA_DSFABRIC_FABRIC_JOB_STATISTICS_H_

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dsfabric/bootstrap/fabric_job.h"
#include "dtutils/statistics_service.h"
#include "dtutils/wait.h"

namespace cariama::internal {

// CARIAMA_STATISTICS: a list, separated by commas.
struct StatisticsRequest {
  bool is_off = false;        // "off": no service, not even for cariama-top
  bool table_at_end = false;  // "exit"
  std::string socket_path;    // "unix:PATH"
  std::string file_path;      // any other word
};

// In paths %r stands for the rank and %p for the process id. Error: INVALID_ARGUMENT (several
// processes would use one path; a word is empty).
[[nodiscard]] absl::StatusOr<StatisticsRequest> parse_statistics_request(std::string_view text,
                                                                         uint32_t rank,
                                                                         uint32_t size);

// Thread-compatible.
class JobStatistics {
 public:
  // Reads CARIAMA_STATISTICS and starts the statistics service of this process. Several fabrics of
  // one process share the service; the first fabric determines its labels. Without
  // CARIAMA_STATISTICS, a service that cannot start is no error. Errors: those of
  // parse_statistics_request() and StatisticsService::start().
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<JobStatistics>> start(const FabricJob& job);

  // With "exit": puts the sums of this process into the bootstrap's store, for rank 0. Called when
  // this process enters finalize().
  void put_sums();
  // With "exit", in rank 0: prints the table of all processes to standard error. Names the
  // processes whose sums are missing. Called after all processes have entered finalize().
  void print_table(Deadline deadline);

 private:
  JobStatistics(const FabricJob& job, StatisticsRequest request)
      : job_(job), request_(std::move(request)) {}

  const FabricJob& job_;
  const StatisticsRequest request_;
  std::shared_ptr<StatisticsService> service_;
};

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_FABRIC_JOB_STATISTICS_H_
