// The participation rounds of finalize(), by which the processes of a job agree that the job has
// ended.
#ifndef CARIAMA_DSFABRIC_FABRIC_SHUTDOWN_H_
#define CARIAMA_DSFABRIC_FABRIC_SHUTDOWN_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dsfabric/bootstrap/fabric_job.h"
#include "dsfabric/calls/call_counts.h"
#include "dsfabric/calls/call_sources.h"
#include "dsfabric/fabric/participation.h"
#include "dsfabric/peers/peer_table.h"
#include "dsfabric/quiescence.h"
#include "dtutils/wait.h"

namespace cariama::internal {

// Thread-compatible. After its deadline, run() can be called again; it continues.
class Shutdown {
 public:
  // All arguments must outlive this object.
  Shutdown(FabricJob& job, PeerTable& peers, const CallCounts& counts, const CallSources& sources)
      : job_(job), peers_(peers), counts_(counts), sources_(sources) {}
  Shutdown(const Shutdown&) = delete;
  Shutdown& operator=(const Shutdown&) = delete;

  // Runs rounds until all processes know that no call is in flight; then closes the fabric, and
  // waits until all have closed theirs. Blocks. Other threads must run calls meanwhile: after each
  // round that found some, `calls_left` is called, in this thread. Errors: those of
  // Fabric::finalize().
  [[nodiscard]] absl::Status run(Deadline deadline, const std::function<void()>& calls_left);

 private:
  [[nodiscard]] absl::Status await_calls(Deadline deadline,
                                         const std::function<void()>& calls_left);
  [[nodiscard]] ParticipationReport report() const;
  template <typename T>
  [[nodiscard]] absl::StatusOr<T> wait_for(uint32_t rank, const std::string& key,
                                           Deadline deadline);
  [[nodiscard]] absl::StatusOr<ParticipationResult> run_round(const std::string& key,
                                                              const ParticipationReport& mine,
                                                              Deadline deadline);
  [[nodiscard]] absl::Status lost_to_lower_ranks() const;
  [[nodiscard]] absl::Status continue_without(const std::vector<uint32_t>& ranks);
  // Returns true if an earlier round has excluded the process.
  [[nodiscard]] bool was_left(uint32_t rank) const;
  // Returns the error of a round in which process `awaited` was not heard of by the deadline. It
  // names the processes that have put no report under `key`, or `awaited` if all have.
  [[nodiscard]] absl::Status report_missing(const std::string& key, uint32_t awaited);

  FabricJob& job_;
  PeerTable& peers_;
  const CallCounts& counts_;
  const CallSources& sources_;

  uint64_t round_ = 0;
  WaveComparison comparison_;
  std::vector<uint32_t> lost_before_;  // processes considered failed in the last round
  ParticipationResult result_;         // result of the last round
};

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_FABRIC_SHUTDOWN_H_
