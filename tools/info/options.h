// Prints the environment variables, and the options in effect of the transports, the fabric and
// messengers.
#ifndef CARIAMA_TOOLS_INFO_OPTIONS_H_
#define CARIAMA_TOOLS_INFO_OPTIONS_H_

#include <array>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "dsfabric/fabric.h"
#include "dtutils/allocators/circular_allocator.h"
#include "dtutils/allocators/general_allocator.h"
#include "dtutils/allocators/memory_budget.h"
#include "dtutils/allocators/rdma_allocator.h"
#include "dtutils/allocators/superpages.h"
#include "dtutils/device.h"
#include "dtutils/queue_pair.h"
#include "dtutils/transmitter.h"
#include "riutils/messenger_options.h"
#include "tools/info/report.h"

namespace cariama {

inline std::string growth_name(Growth growth) {
  return growth == Growth::kLinear ? "linear" : "exponential";
}

inline void report_environment(Report& report) {
  report.heading("Environment");
  for (const char* variable :
       {"CARIAMA_TRANSPORT", "CARIAMA_DEVICE", "CARIAMA_PORT", "CARIAMA_GID_INDEX",
        "CARIAMA_VERBS_IN_ORDER", "CARIAMA_MEMORY_BUDGET", "CARIAMA_TRACE", "CARIAMA_STATISTICS",
        "CARIAMA_BOOTSTRAP", "CARIAMA_THREADS", "CARIAMA_LISTEN", "RANK", "WORLD_SIZE",
        "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "PMIX_NAMESPACE", "PMIX_RANK"}) {
    const char* const value = std::getenv(variable);
    if (value != nullptr) report.fact("environment", {{"variable", variable}}, value);
  }
  for (const char* secret : {"CARIAMA_JOB_SECRET", "CARIAMA_LAUNCH_SOCKET"}) {
    if (std::getenv(secret) != nullptr) report.fact("environment", {{"variable", secret}}, "set");
  }
  report.fact("memory_budget", {}, MemoryBudget::process().limit(), "bytes");
}

class OptionRows {
 public:
  explicit OptionRows(Report& report) : report_(report) {}
  void operator()(const char* of, const char* name, const Value& value,
                  std::string_view unit = "") const {
    report_.fact("option", {{"of", of}, {"option", name}}, value, unit);
  }

 private:
  Report& report_;
};

inline void report_allocators(const OptionRows& option, const RDMAAllocatorOptions& rdma,
                              const CircularAllocatorOptions& circular,
                              const GeneralAllocatorOptions& general) {
  const char* of = "RDMAAllocator";
  option(of, "chunk_bytes", uint64_t{rdma.chunk_bytes}, "bytes");
  option(of, "first_superpage_bytes", uint64_t{rdma.first_superpage_bytes}, "bytes");
  option(of, "max_superpage_bytes", uint64_t{rdma.max_superpage_bytes}, "bytes");
  option(of, "growth", growth_name(rdma.growth));
  option(of, "shareable", rdma.shareable);
  option(of, "largest_page", std::string(page_kind_name(rdma.largest_page)));
  option(of, "max_bytes", rdma.max_bytes, "bytes");

  of = "CircularAllocator";
  option(of, "unit_bytes", uint64_t{circular.unit_bytes}, "bytes");
  option(of, "initial_units", uint64_t{circular.initial_units}, "units");
  option(of, "max_units", uint64_t{circular.max_units}, "units");
  option(of, "growth", growth_name(circular.growth));

  of = "GeneralAllocator";
  option(of, "fit", std::string(general.fit == Fit::kBest ? "best" : "first"));
  option(of, "chunk_bytes", uint64_t{general.chunk_bytes}, "bytes");
  option(of, "max_bytes", general.max_bytes, "bytes");
}

inline void report_queue_pairs(const OptionRows& option) {
  const QueuePairOptions queue_pair;
  const char* of = "QueuePair";
  option(of, "send_depth", uint64_t{queue_pair.send_depth}, "operations");
  option(of, "receive_depth", uint64_t{queue_pair.receive_depth}, "operations");
  option(of, "max_send_segments", uint64_t{queue_pair.max_send_segments}, "segments");
  option(of, "max_receive_segments", uint64_t{queue_pair.max_receive_segments}, "segments");
  option(of, "max_inline", uint64_t{queue_pair.max_inline}, "bytes");

  const ConnectOptions connect;
  of = "connect";
  option(of, "retry_count", uint64_t{connect.retry_count}, "times");
  option(of, "ack_timeout", static_cast<uint64_t>(connect.ack_timeout.count()), "us");
  option(of, "receiver_retry_count", uint64_t{connect.receiver_retry_count}, "times");
  option(of, "receiver_retry_delay", static_cast<uint64_t>(connect.receiver_retry_delay.count()),
         "us");

  const TransmitOptions transmit;
  option("TransmitQueue", "probe_interval", static_cast<uint64_t>(transmit.probe_interval.count()),
         "ms");
  option("CompletionQueue", "depth", uint64_t{CompletionQueueOptions().depth}, "completions");
  const SharedReceiveQueueOptions shared_receives;
  option("SharedReceiveQueue", "depth", uint64_t{shared_receives.depth}, "operations");
  option("SharedReceiveQueue", "max_segments", uint64_t{shared_receives.max_segments}, "segments");
}

inline void report_fabric(const OptionRows& option, const FabricOptions& fabric) {
  const char* const of = "Fabric";
  option(of, "service_threads", uint64_t{fabric.service_threads}, "threads");
  option(of, "helper_threads", uint64_t{fabric.helper_threads}, "threads");
  option(of, "queue_pairs", uint64_t{fabric.queue_pairs});
  constexpr std::array<const char*, 3> kSharing = {"process", "node", "thread"};
  option(of, "queue_pair_sharing",
         std::string(kSharing[static_cast<size_t>(fabric.queue_pair_sharing)]));
  option(of, "receive_units", uint64_t{fabric.receive_units}, "units");
  option(of, "receive_unit_bytes", uint64_t{fabric.receive_unit_bytes}, "bytes");
  option(of, "reserved_units", uint64_t{fabric.reserved_units}, "units");
  option(of, "shared_unit_bytes", fabric.shared_unit_bytes, "bytes");
  option(of, "return_units_after", static_cast<uint64_t>(fabric.return_units_after.count()), "ms");
  option(of, "send_depth", uint64_t{fabric.send_depth}, "operations");
  option(of, "deferred_bytes", fabric.deferred_bytes, "bytes");
  option(of, "buffered_bytes", fabric.buffered_bytes, "bytes");
  option(of, "channel_bytes", fabric.channel_bytes, "bytes");
  option(of, "bounce_bytes", fabric.bounce_bytes, "bytes");
  option(of, "on_failure",
         std::string(fabric.on_failure == FailurePolicy::kAbort ? "abort" : "continue"));
  option(of, "timeout", static_cast<uint64_t>(fabric.timeout.count()), "ms");
  option(of, "heartbeat", static_cast<uint64_t>(fabric.heartbeat.count()), "ms");
  option(of, "ack_timeout", static_cast<uint64_t>(fabric.ack_timeout.count()), "ms");

  option(of, "lease", static_cast<uint64_t>(fabric.lease.count()), "ms");
}

inline void report_messenger(const OptionRows& option, const MessengerOptions& messenger) {
  const char* const of = "Messenger";
  option(of, "first_chunk_bytes", messenger.first_chunk_bytes, "bytes");
  option(of, "chunks_per_request", uint64_t{messenger.chunks_per_request}, "chunks");
  option(of, "max_chunks", uint64_t{messenger.max_chunks}, "chunks");
  option(of, "chunk_bytes", messenger.chunk_bytes, "bytes");
  option(of, "flush_bytes", uint64_t{messenger.flush_bytes}, "bytes");
  option(of, "deferred_bytes", messenger.deferred_bytes, "bytes");
  option(of, "flush_age", static_cast<uint64_t>(messenger.flush_age.count()), "ns");
  option(of, "arrival", std::string(arrival_name(messenger.arrival)));
  option(of, "consumption",
         std::string(messenger.consumption == Consumption::kPush ? "push" : "pull"));
  option(of, "timeout", static_cast<uint64_t>(messenger.timeout.count()), "ms");
  option(of, "return_after", static_cast<uint64_t>(messenger.return_after.count()), "ms");
}

inline void report_options(Report& report) {
  report.heading("Options in effect");
  const OptionRows option(report);
  report_allocators(option, {}, {}, {});
  report_queue_pairs(option);
  report_fabric(option, {});
  report_messenger(option, {});
}

}  // namespace cariama

#endif  // CARIAMA_TOOLS_INFO_OPTIONS_H_
