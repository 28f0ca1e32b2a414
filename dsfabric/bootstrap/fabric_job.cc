#include "dsfabric/bootstrap/fabric_job.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <climits>
#include <exception>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dsfabric/bootstrap/handshake.h"
#include "dsfabric/bootstrap/introduction.h"
#include "dsfabric/function_table.h"
#include "dtutils/error.h"
#include "dtutils/internal/boot_id.h"
#include "dtutils/internal/exception_error.h"
#include "dtutils/internal/shared_diagnostics.h"
#include "dtutils/system_info.h"

namespace cariama::internal {
namespace {

// A lease must not end because one sign of life, or two, came late.
constexpr int kHeartbeatsOfLease = 4;

constexpr const char* kIntroductionKey = "fabric";

// Time limit for asking the store whether one process has put a value.
constexpr std::chrono::milliseconds kSearchForMissing{50};

// Identifies a host for shm: the boot id, and the name spaces of PIDs and of the network, in which
// the names of local sockets are. shm needs all of them to be equal.
std::string host_identity() {
  std::string identity = boot_id();
  for (const char* const path : {"/proc/self/ns/pid", "/proc/self/ns/net"}) {
    struct stat space {};
    if (stat(path, &space) == 0) identity += "/" + std::to_string(space.st_ino);
  }
  return identity;
}

std::string host_name() {
  std::array<char, HOST_NAME_MAX + 1> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown host";
}

}  // namespace

FabricJob::FabricJob(const FabricOptions& options, std::unique_ptr<Bootstrap> bootstrap)
    : options_(options),
      bootstrap_(std::move(bootstrap)),
      rank_(static_cast<uint32_t>(bootstrap_->rank())),
      size_(static_cast<uint32_t>(bootstrap_->size())),
      threads_(options.threads.value_or(bootstrap_->threads().value_or(1))),
      node_of_worker_(options.queue_pair_sharing == QueuePairSharing::kNumaNode
                          ? std::make_unique<std::atomic<uint32_t>[]>(threads_)
                          : nullptr) {
  if (options.queue_pair_sharing == QueuePairSharing::kThread) options_.queue_pairs = threads_;
  if (options.queue_pair_sharing == QueuePairSharing::kNumaNode) {
    const std::vector<int>& nodes = numa_nodes();
    options_.queue_pairs =
        nodes.empty() ? 1
                      : static_cast<uint32_t>(*std::max_element(nodes.begin(), nodes.end())) + 1;
  }
}

absl::StatusOr<std::unique_ptr<FabricJob>> FabricJob::join(const FabricOptions& options,
                                                           std::unique_ptr<Bootstrap> bootstrap,
                                                           SharedJobDirectory* shared) {
  if (options.receive_units == 0 || options.reserved_units == 0 || options.send_depth < 2 ||
      options.receive_unit_bytes < 256 || options.receive_unit_bytes % 8 != 0) {
    return make_error(
        absl::StatusCode::kInvalidArgument, ErrorScope::kProcess,
        "a fabric needs receive_units, reserved_units, a send_depth of 2 at least, and "
        "receive_unit_bytes of 256 at least, a multiple of 8");
  }
  const uint32_t threads = options.threads.value_or(bootstrap->threads().value_or(1));
  for (const auto& [name, value, least] : {std::tuple("threads", threads, 1u),
                                           {"helper_threads", options.helper_threads, 0u},
                                           {"queue_pairs", options.queue_pairs, 1u},
                                           {"receive_units", options.receive_units, 1u}}) {
    if (value >= least && value <= FabricOptions::kMaxPerProcess) continue;
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kProcess,
                      absl::StrCat("FabricOptions::", name, " is ", value),
                      absl::StrCat("use ", least, " to ", FabricOptions::kMaxPerProcess));
  }
  if (threads >= kNoThread / static_cast<uint32_t>(bootstrap->size())) {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kProcess,
                      absl::StrCat("FabricOptions::threads is ", threads, " in ", bootstrap->size(),
                                   " processes: a job has less than 2^32 threads"),
                      "use fewer threads per process");
  }
  // With a heartbeat of 0 between service threads, barriers miss their deadlines.
  const int64_t least_heartbeat = options.service_threads == 0 ? 0 : 1;
  for (const auto& [name, value, least] :
       {std::tuple("heartbeat", options.heartbeat, least_heartbeat),
        {"timeout", options.timeout, int64_t{1}},
        {"return_units_after", options.return_units_after, int64_t{0}},
        {"retry_timeout", options.retry_timeout, int64_t{0}}}) {
    if (value.count() >= least) continue;
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kProcess,
                      absl::StrCat("FabricOptions::", name, " is ", value.count(), " ms"),
                      absl::StrCat("use at least ", least, " ms"));
  }
  if (options.lease.count() != 0 &&
      (options.heartbeat.count() == 0 || options.lease < kHeartbeatsOfLease * options.heartbeat ||
       options.lease.count() > UINT32_MAX)) {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kProcess,
                      "a lease of " + std::to_string(options.lease.count()) +
                          " ms, but a heartbeat of " + std::to_string(options.heartbeat.count()) +
                          " ms: a lease is four heartbeats at least",
                      "use a longer FabricOptions::lease, or a shorter heartbeat");
  }
  if (absl::Status built = FunctionTable::build(); !built.ok()) return built;
  if (bootstrap->size() > 1) share_diagnostics(job_name(bootstrap->secret(), "diagnostics"));
  std::unique_ptr<FabricJob> job(new FabricJob(options, std::move(bootstrap)));
  const absl::Status exchanged =
      job->exchange_introductions(shared, deadline_after(options.timeout));
  if (!exchanged.ok()) return exchanged;
  return job;
}

std::vector<uint32_t> FabricJob::ranks_without(const std::string& key) const {
  std::vector<uint32_t> missing;
  for (uint32_t rank = 0; rank < size_ && missing.size() < kMostNamed; ++rank) {
    if (rank == rank_) continue;
    const auto put =
        bootstrap_->get(static_cast<int>(rank), key, deadline_after(kSearchForMissing));
    if (absl::IsDeadlineExceeded(put.status())) missing.push_back(rank);
  }
  return missing;
}

absl::Status FabricJob::missing_ranks_error() const {
  const std::vector<uint32_t> missing = ranks_without(kIntroductionKey);
  std::string subject = "not every process has";
  if (!missing.empty()) {
    subject = absl::StrCat(missing.size() == 1 ? "rank " : "ranks ", absl::StrJoin(missing, ", "),
                           missing.size() == 1 ? " has" : " have");
  }
  const double seconds = std::chrono::duration<double>(options_.timeout).count();
  return make_error(absl::StatusCode::kDeadlineExceeded, ErrorScope::kPeer,
                    absl::StrCat(subject, " not joined within ", seconds, " s"),
                    bootstrap_->kind() == BootstrapKind::kEnvironment
                        ? "start each rank, or check WORLD_SIZE"
                        : "create the fabric in every process, or raise FabricOptions::timeout");
}

absl::Status FabricJob::await_directory(const SharedJobDirectory& shared, Deadline deadline) {
  board_.forgo();  // rank 0 opens its own
  const auto first = bootstrap_->get(0, kIntroductionKey, deadline);
  if (!first.ok() && !absl::IsDeadlineExceeded(first.status())) return first.status();
  const auto is_shared = [&] {
    directory_ = shared.get();
    return directory_ != nullptr;
  };
  return wait_until(is_shared, deadline) ? absl::OkStatus() : missing_ranks_error();
}

absl::Status FabricJob::exchange_introductions(SharedJobDirectory* shared, Deadline deadline) {
  const HostBoard::Offer offer = board_.offer(threads_ + options_.helper_threads);
  const Introduction self{.program = FunctionTable::fingerprint(),
                          .threads = threads_,
                          .queue_pairs = options_.queue_pairs,
                          .lease = static_cast<uint32_t>(options_.lease.count()),
                          .pid = offer.pid,
                          .board = offer.descriptor,
                          .busy_threads = offer.busy_threads,
                          .cpus = offer.cpus,
                          .host = host_name(),
                          .host_identity = host_identity()};
  if (absl::Status put = bootstrap_->put(kIntroductionKey, encode(self)); !put.ok()) return put;
  if (shared != nullptr && rank_ != 0) return await_directory(*shared, deadline);

  const auto introductions = bootstrap_->get_all(kIntroductionKey, deadline);
  if (absl::IsDeadlineExceeded(introductions.status())) return missing_ranks_error();
  if (!introductions.ok()) return introductions.status();
  auto directory = std::make_shared<JobDirectory>(size_);
  for (uint32_t rank = 0; rank < size_; ++rank) {
    Introduction other;
    try {
      other = load_introduction((*introductions)[rank]);
    } catch (const std::exception& error) {
      return exception_error(error, "decoding the set-up data of rank " + std::to_string(rank),
                             make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kPeer,
                                        "rank " + std::to_string(rank) +
                                            " published set-up data that cannot be decoded",
                                        "start the same executable in every process"));
    }
    const std::string label = JobDirectory::label(rank, other.host, other.pid);
    if (absl::Status same = FunctionTable::check(other.program, label); !same.ok()) return same;
    if (other.threads != threads_ || other.queue_pairs != options_.queue_pairs) {
      return make_error(
          absl::StatusCode::kFailedPrecondition, ErrorScope::kPeer,
          label + " has " + std::to_string(other.threads) + " threads and " +
              std::to_string(other.queue_pairs) + " queue pairs per process, this process has " +
              std::to_string(threads_) + " and " + std::to_string(options_.queue_pairs),
          "give every process the same options");
    }
    if (other.lease != self.lease) {
      return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kPeer,
                        label + " has a lease of " + std::to_string(other.lease) +
                            " ms, this process one of " + std::to_string(self.lease) + " ms",
                        "give every process the same FabricOptions::lease");
    }
    if (other.host_identity == self.host_identity) {
      board_.add({.pid = other.pid,
                  .descriptor = other.board,
                  .busy_threads = other.busy_threads,
                  .cpus = other.cpus},
                 rank == rank_);
    }
    directory->add(other.pid, other.host, other.host_identity);
  }
  directory->complete();
  directory_ = std::move(directory);
  board_.open();
  // After open(): the others close the descriptors from which it opens the board.
  if (shared != nullptr) shared->share(directory_);
  return absl::OkStatus();
}

}  // namespace cariama::internal
