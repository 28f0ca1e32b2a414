#include "dsfabric/fabric/fabric_core.h"

#include <atomic>
#include <string>
#include <thread>
#include <utility>

#include "dsfabric/calls/control_traffic.h"
#include "dsfabric/calls/fabric_parts.h"
#include "dsfabric/calls/running_call.h"
#include "dsfabric/fabric/crash_report.h"
#include "dsfabric/fabric/job_trace.h"
#include "dsfabric/internal/unlimited_call.h"
#include "dtutils/error.h"
#include "dtutils/internal/exception_error.h"
#include "dtutils/internal/start_thread.h"
#include "dtutils/trace.h"

namespace cariama::internal {

const FabricJob& job_of(Fabric& fabric) { return core_of(fabric).job(); }
FabricMemory& memory_of(Fabric& fabric) { return core_of(fabric).memory(); }
Ports& ports_of(Fabric& fabric) { return core_of(fabric).ports(); }
const CallCounts& counts_of(Fabric& fabric) { return core_of(fabric).counts(); }
RejectedCalls& rejected_calls_of(Fabric& fabric) { return core_of(fabric).rejected(); }
Workers& workers_of(Fabric& fabric) { return core_of(fabric).workers(); }
CallSources& sources_of(Fabric& fabric) { return core_of(fabric).sources(); }
CallSender& sender_of(Fabric& fabric) { return core_of(fabric).sender(); }
Answers& answers_of(Fabric& fabric) { return core_of(fabric).answers(); }
AwaitedTransfers& transfers_of(Fabric& fabric) { return core_of(fabric).transfers(); }
Pulls& pulls_of(Fabric& fabric) { return core_of(fabric).pulls(); }
Dispatch& dispatch_of(Fabric& fabric) { return core_of(fabric).dispatch(); }
Attachments& attachments_of(Fabric& fabric) { return core_of(fabric).attachments(); }

FabricCore::FabricCore(std::unique_ptr<FabricJob> job)
    : job_(std::move(job)),
      ports_(*job_, memory_, *this),
      peers_(*job_, ports_, *this),
      counts_(job_->size()),
      rejected_(*job_),
      workers_(*job_, counts_),
      sender_(*job_, ports_, peers_, workers_, counts_, *this),
      answers_(*job_, peers_, workers_, counts_, sender_, rejected_),
      sources_(workers_),
      transfers_(*job_, workers_),
      pulls_(*job_, memory_, workers_, counts_, sender_, answers_),
      dispatch_(*job_, ports_, workers_, counts_, answers_, pulls_, transfers_, rejected_),
      shutdown_(*job_, peers_, counts_, sources_) {
  counts_.reserve(job_->rank());
}

absl::StatusOr<std::unique_ptr<FabricCore>> FabricCore::create(const FabricOptions& options,
                                                               std::unique_ptr<Bootstrap> bootstrap,
                                                               SharedJobDirectory* directory) {
  auto job = FabricJob::join(options, std::move(bootstrap), directory);
  if (!job.ok()) return job.status();
  trace_instant("dsfabric", "join job");
  // Before the first thread is started.
  if ((*job)->size() > 1) report_crashes((*job)->label((*job)->rank()));
  std::unique_ptr<FabricCore> core(new FabricCore(*std::move(job)));
  if (absl::Status opened = core->ports_.open(); !opened.ok()) return opened;
  const FabricOptions& effective = core->job().options();
  absl::Status opened = core->memory_.open(
      core->ports_.domains(), effective.superpages, effective.general_memory,
      {.bounce_bytes = effective.bounce_bytes, .registration = effective.registration},
      [&job = core->job()](uint32_t device) { return job.host_board().place(device); });
  if (!opened.ok()) return opened;
  if (absl::Status placed = core->workers_.place_doorbells(core->memory_); !placed.ok()) {
    return placed;
  }
  core->ports_.set_doorbells(core->workers_.doorbells());
  return core;
}

absl::Status FabricCore::start(Fabric* fabric, const BrokerMaker& broker_of) {
  const TraceScope trace("dsfabric", "start fabric");
  job_->set_fabric(fabric);
  control_ = &attachments_.get<ControlTraffic>(*fabric);
  name_in_trace(*job_);
  auto statistics = JobStatistics::start(*job_);
  if (!statistics.ok()) return statistics.status();
  statistics_ = *std::move(statistics);
  counters_.emplace("fabric", "rank " + std::to_string(job_->rank()),
                    [this] { return counters(); });
  if (absl::Status started = ports_.start(); !started.ok()) return started;
  if (absl::Status started = dispatch_.start(); !started.ok()) return started;
  if (absl::Status answering = peers_.start_answering(broker_of); !answering.ok()) return answering;
  if (absl::Status watched = job_->bootstrap().watch_ends(true); !watched.ok()) return watched;
  // Without service threads rank 0 answers when it polls, which it may not do for a long time.
  if (job_->options().service_threads != 0) align_trace(*job_);
  return absl::OkStatus();
}

void FabricCore::stop_threads() {
  job_->lifecycle().stop();
  ports_.stop();
  dispatch_.stop();
  pulls_.stop();
  transfers_.stop();
  answers_.stop();
}

FabricCore::~FabricCore() {
  counters_.reset();
  job_->lifecycle().close();
  peers_.stop_answering();
  sources_.stop();
  stop_threads();
  sources_.disconnect();
  for (uint32_t rank = 0; rank < job_->size(); ++rank) {
    if (!answers_.awaits(rank)) continue;
    answers_.fail(rank, error_or_code(absl::StatusCode::kUnavailable, [&] {
                    return make_error(
                        absl::StatusCode::kUnavailable, ErrorScope::kProcess,
                        "the fabric was closed before " + job_->label(rank) + " answered");
                  }));
  }
  workers_.drop_messages();
  // Destroy the queue pairs before the memory and queues that they use.
  peers_.disconnect();
}

absl::Status FabricCore::finalize(Deadline deadline) {
  Lifecycle& lifecycle = job_->lifecycle();
  if (lifecycle.is_inherited()) return lifecycle.closed_error();
  if (this_running_call.fabric != nullptr) {
    return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kOperation,
                      "finalize() was called inside of a call");
  }
  align_trace(*job_);
  if (!lifecycle.begin_finalize()) {
    return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kOperation,
                      "finalize() was called already");
  }
  statistics_->put_sums();
  // Meanwhile this thread runs its own calls, and those of workers that have left.
  std::optional<TraceScope> trace(std::in_place, "dsfabric", "finalize");
  absl::Status ended;
  std::atomic<bool> finished{false};
  absl::StatusOr<std::thread> agreeing = start_thread([&] {
    // The calls may be those of workers that have left: no thread arms their doorbells.
    ended = shutdown_.run(deadline, [this] { workers_.notify_waiters(); });
    finished.store(true, std::memory_order_release);
    workers_.notify_waiters();
  });
  if (!agreeing.ok()) {
    lifecycle.abandon_finalize();
    return agreeing.status();
  }
  static_cast<void>(dispatch_.wait(
      [&] {
        dispatch_.process_calls_of_absent_workers();
        return finished.load(std::memory_order_acquire);
      },
      kForever));
  agreeing->join();
  if (!ended.ok()) {
    lifecycle.abandon_finalize();
    return ended;
  }
  sources_.finalized();
  peers_.stop_answering();
  stop_threads();
  trace.reset();
  write_job_trace();
  statistics_->print_table(deadline);
  return job_->bootstrap().finalize(deadline);
}

FabricStatistics FabricCore::statistics() const {
  FabricStatistics sum;
  ports_.add_to(sum);
  sender_.add_to(sum);
  sum.peer_records = peers_.records();
  sum.calls_run = dispatch_.calls_run();
  sum.calls_rejected = rejected_.count();
  return sum;
}

CounterSet::Values FabricCore::counters() {
  const FabricStatistics now = statistics();
  const RDMAAllocatorStatistics memory = memory_.statistics();
  return {{"calls_sent", now.calls_sent},
          {"calls_run", now.calls_run},
          {"calls_rejected", now.calls_rejected},
          {"sends", now.sends},
          {"writes", now.writes},
          {"credit_waits", now.credit_waits},
          {"deferred", now.deferred},
          {"wakes", now.wakes},
          {"receives", now.receives},
          {"rounds", now.rounds},
          {"connections", now.connections, true},
          {"receive_bytes", now.receive_bytes, true},
          {"peer_records", now.peer_records, true},
          {"registered_bytes", memory.bytes, true},
          {"registered_bytes_in_use", memory.bytes_in_use, true}};
}

// ---- PortListener -------------------------------------------------------------------------------

void FabricCore::connecting(uint32_t rank) {
  counts_.reserve(rank);
  control_->reserve(rank);
}

void FabricCore::event_arrived(uint32_t from, uint32_t immediate) {
  if ((immediate & CallSender::kCallSourceEvent) == 0) {
    workers_.wake(immediate);
  } else {
    sources_.event(from, immediate & ~CallSender::kCallSourceEvent);
  }
}

void FabricCore::heartbeat() {
  peers_.handle_failures();
  // Completes results in the slots of a thread that is inside a blocking call, in case another
  // thread waits for these results.
  static_cast<void>(answers_.take_results(nullptr));
  answers_.heartbeat();
  dispatch_.answer_again();
}

// ---- PeerListener -------------------------------------------------------------------------------

// A call that is registered as pending after this point finds the peer failed before it is sent.
void FabricCore::peer_failed(uint32_t rank, const absl::Status& failure) {
  trace_instant("dsfabric", "process failed", "rank", rank);
  answers_.fail(rank, failure);
  sources_.peer_died(rank);
  workers_.notify_waiters();
}

void FabricCore::send_death_notice(uint32_t dead, uint32_t to) {
  Fabric& fabric = job_->fabric();
  // May run in a service thread, so it must not block.
  static_cast<void>(attachments_.get<ControlTraffic>(fabric).sending(to, [&] {
    return unlimited_service_call(
               fabric, to,
               [dead] {
                 const RunningCall& here = this_running_call;
                 FabricCore& core = core_of(*here.fabric);
                 core.attachments().get<ControlTraffic>(*here.fabric).arrived(here.source);
                 core.peers().receive_death_notice(dead, here.source);
               })
        .ok();
  }));
}

}  // namespace cariama::internal
