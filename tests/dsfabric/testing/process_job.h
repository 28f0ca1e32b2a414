// A job of real processes, forked by the test, which may be killed.
//
//   run_process_job(3, {}, [](Fabric& fabric) { ... });
#ifndef CARIAMA_TESTS_DSFABRIC_TESTING_PROCESS_JOB_H_
#define CARIAMA_TESTS_DSFABRIC_TESTING_PROCESS_JOB_H_

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dsfabric/fabric.h"
#include "dsfabric/peers/broker.h"
#include "dtutils/process_group.h"

namespace cariama::testing {

// A socket broker.
[[nodiscard]] absl::StatusOr<std::unique_ptr<internal::Broker>> make_group_broker(
    Bootstrap& job, internal::Broker::Handler handler);
// Returns the fabric of the calling process of a run_processes() group.
[[nodiscard]] absl::StatusOr<std::unique_ptr<Fabric>> fabric_of_group(
    Exchange& exchange, const FabricOptions& options,
    const internal::BrokerMaker& broker_of = make_group_broker);

// Forks `count` processes, joins them to a job, and runs `body` in each, in worker thread 0. The
// Status is that of run_processes(): failures in the processes appear in it.
[[nodiscard]] absl::Status try_process_job(int count, const FabricOptions& options,
                                           const std::function<void(Fabric&)>& body,
                                           const RunOptions& run = {});

// As try_process_job(), for jobs in which nothing fails: finalizes after `body`, and expects
// success.
void run_process_job(int count, const FabricOptions& options,
                     const std::function<void(Fabric&)>& body, const RunOptions& run = {});

// As run_process_job(), without finalize(): rank `victim` may be killed, and the others continue
// without it.
void run_job_with_a_victim(int count, int victim, const std::function<void(Fabric&)>& body);
// For the victim: runs calls until it is killed. The test fails if it is not killed.
void wait_to_be_killed(Fabric& fabric);

}  // namespace cariama::testing

#endif  // CARIAMA_TESTS_DSFABRIC_TESTING_PROCESS_JOB_H_
