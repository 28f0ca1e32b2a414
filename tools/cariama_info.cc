// cariama-info: tells which transports programs on this machine would use, which pages they get,
// and what is degraded, with remedies; then the resources of the machine. The program changes no
// settings, and unmaps all memory that it has mapped when it ends.
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "dsfabric/fabric.h"
#include "dtutils/allocators/circular_allocator.h"
#include "dtutils/allocators/general_allocator.h"
#include "dtutils/allocators/memory_budget.h"
#include "dtutils/allocators/rdma_allocator.h"
#include "dtutils/allocators/superpages.h"
#include "dtutils/device.h"
#include "dtutils/diagnostics.h"
#include "dtutils/internal/byte_size.h"
#include "dtutils/json.h"
#include "dtutils/queue_pair.h"
#include "dtutils/system_info.h"
#include "dtutils/transmitter.h"
#include "dtutils/verbs/verbs_device.h"
#include "dtutils/version.h"
#include "riutils/messenger_options.h"

namespace cariama {
namespace {

constexpr const char* kHelp =
    "cariama-info: shows what this machine offers to programs that use Cariama.\n"
    "\n"
    "  cariama-info [--json] [--options]\n"
    "\n"
    "The first three lines tell which transport two processes would use, the memory and its "
    "pages,\n"
    "and what is degraded, with remedies. The resources of the machine follow. Limits are\n"
    "properties of a process: run it in the environment of the job.\n"
    "\n"
    "  --options            prints only the environment variables that Cariama reads and are set,\n"
    "                       and the options in effect of all layers\n"
    "  --json               prints everything, one JSON object per line: name, params, value, "
    "unit;\n"
    "                       the value null means: no limit\n"
    "  --help               this text\n"
    "  --version            prints the version of Cariama\n"
    "\n"
    "Exit code: 0; 1 if no transport works or the output cannot be written; 2 for wrong usage.\n";

using Value = std::variant<std::string, uint64_t, double, bool>;
using Param = std::pair<std::string_view, std::variant<std::string, int64_t>>;

// Prints each fact at once as JSON, or collects the facts as text under headings: the verdict is
// printed before them, and is known after them.
class Report {
 public:
  explicit Report(bool json) : json_(json) {}

  void heading(const char* text) {
    if (!json_) absl::StrAppend(&text_, "\n", text, "\n");
  }

  void fact(std::string_view name, std::initializer_list<Param> params, const Value& value,
            std::string_view unit = "") {
    if (json_) {
      std::printf("{\"name\": %s, \"params\": {%s}, \"value\": %s, \"unit\": %s}\n",
                  json_string(name).c_str(), json_params(params).c_str(), json_value(value).c_str(),
                  json_string(unit).c_str());
      return;
    }
    std::string label(name);
    for (char& c : label) {
      if (c == '_') c = ' ';
    }
    for (const Param& param : params) absl::StrAppend(&label, ", ", text_of(param));
    absl::StrAppendFormat(&text_, "  %-44s %s\n", label, text_of(value, unit));
  }

  // The facts so far as text; "" for JSON.
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  static std::string json_params(std::initializer_list<Param> params) {
    std::vector<std::string> parts;
    for (const auto& [name, value] : params) {
      const auto* const text = std::get_if<std::string>(&value);
      parts.push_back(absl::StrCat(
          json_string(name), ": ",
          text != nullptr ? json_string(*text) : absl::StrCat(std::get<int64_t>(value))));
    }
    return absl::StrJoin(parts, ", ");
  }

  static std::string json_value(const Value& value) {
    if (const auto* text = std::get_if<std::string>(&value)) return json_string(*text);
    if (const auto* truth = std::get_if<bool>(&value)) return *truth ? "true" : "false";
    if (const auto* real = std::get_if<double>(&value)) return absl::StrFormat("%g", *real);
    const uint64_t number = std::get<uint64_t>(value);
    return number == kUnlimited ? "null" : absl::StrCat(number);
  }

  static std::string text_of(const Param& param) {
    if (const auto* text = std::get_if<std::string>(&param.second)) return *text;
    const int64_t number = std::get<int64_t>(param.second);
    if (param.first == "page_bytes") {
      return internal::format_bytes(static_cast<uint64_t>(number)) + " pages";
    }
    return absl::StrCat(std::string(param.first), " ", number);
  }

  static std::string text_of(const Value& value, std::string_view unit) {
    if (const auto* text = std::get_if<std::string>(&value)) return *text;
    if (const auto* truth = std::get_if<bool>(&value)) return *truth ? "yes" : "no";
    const std::string suffix = unit.empty() ? "" : " " + std::string(unit);
    if (const auto* real = std::get_if<double>(&value)) {
      return absl::StrFormat("%g", *real) + suffix;
    }
    const uint64_t number = std::get<uint64_t>(value);
    if (number == kUnlimited) return "unlimited";
    return unit == "bytes" ? internal::format_bytes(number) : absl::StrCat(number) + suffix;
  }

  const bool json_;
  std::string text_;
};

std::string list_text(const std::vector<int>& numbers) { return absl::StrJoin(numbers, " "); }

// Returns whether the kernel permits copies between processes. A container's seccomp filter may
// forbid them. A copy within this process needs no further permission.
bool has_cross_memory_attach() {
  char from = 1;
  char to = 0;
  const iovec local{&to, 1};
  const iovec remote{&from, 1};
  return process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == 1 && to == 1;
}

void report_machine(const SystemInfo& info, Report& report) {
  report.heading("Machine");
  report.fact("kernel", {}, info.kernel);
  report.fact("architecture", {}, info.architecture);
  report.fact("memory", {}, info.memory_total_bytes, "bytes");
  report.fact("memory_available", {}, info.memory_available_bytes, "bytes");
  report.fact("cpus", {}, uint64_t{info.cpus.size()}, "CPUs");
  report.fact("cpu_list", {}, list_text(info.cpus));
  report.fact("open_files", {}, info.open_files, "files");
  if (info.ptrace_scope) {
    report.fact("ptrace_scope", {}, static_cast<uint64_t>(*info.ptrace_scope));
  }
  report.fact("cross_memory_attach", {}, has_cross_memory_attach());

  report.heading("Limits");
  report.fact("memory_lock", {{"limit", "soft"}}, info.memory_lock.soft_bytes, "bytes");
  report.fact("memory_lock", {{"limit", "hard"}}, info.memory_lock.hard_bytes, "bytes");
  report.fact("memory_lock_may_be_exceeded", {}, info.memory_lock.may_exceed);
  report.fact("cgroup_version", {}, static_cast<uint64_t>(info.cgroup.version));
  if (info.cgroup.version != 0) {
    report.fact("cgroup", {}, info.cgroup.path);
    report.fact("cgroup_memory", {}, info.cgroup.memory_bytes, "bytes");
    report.fact("cgroup_cpus", {}, info.cgroup.cpus ? Value(*info.cgroup.cpus) : Value(kUnlimited),
                "CPUs");
  }

  report.heading("NUMA");
  for (const NumaNodeInfo& node : info.nodes) {
    const Param id{"node", int64_t{node.id}};
    report.fact("numa_memory", {id}, node.total_bytes, "bytes");
    report.fact("numa_memory_free", {id}, node.free_bytes, "bytes");
    report.fact("numa_cpu_list", {id}, list_text(node.cpus));
    report.fact("numa_distances", {id}, list_text(node.distances));
  }
}

std::string page_text(PageKind kind, const SystemInfo& info) {
  if (kind == PageKind::kBase) return internal::format_bytes(info.page_bytes) + " pages";
  return absl::StrCat(std::string(page_kind_name(kind)),
                      kind == PageKind::kTransparent ? " huge pages" : " pages");
}

// Obtains one superpage of each kind, and reports the pages that the kernel shows for it. Returns
// the kinds of pages that registered memory gets, in the words of the verdict.
std::string report_pages(const SystemInfo& info, Report& report) {
  std::set<std::string> kinds;
  report.heading("Pages");
  report.fact("base_page", {}, info.page_bytes, "bytes");
  for (const HugePagePool& pool : info.huge_pages) {
    const Param size{"page_bytes", static_cast<int64_t>(pool.page_bytes)};
    if (pool.numa_node < 0) {
      report.fact("huge_pages", {size}, pool.total, "pages");
      report.fact("huge_pages_free", {size}, pool.free, "pages");
    } else {
      const Param node{"node", int64_t{pool.numa_node}};
      report.fact("huge_pages", {size, node}, pool.total, "pages");
      report.fact("huge_pages_free", {size, node}, pool.free, "pages");
    }
  }
  report.fact("transparent_huge_pages", {{"setting", "enabled"}}, info.transparent.enabled);
  report.fact("transparent_huge_pages", {{"setting", "shmem_enabled"}},
              info.transparent.shmem_enabled);
  report.fact("transparent_huge_pages", {{"setting", "defrag"}}, info.transparent.defrag);
  for (const int node : numa_nodes()) {
    for (const bool shareable : {true, false}) {
      SuperpageRequest request;
      request.bytes = size_t{2} << 20;
      request.numa_node = node;
      request.shareable = shareable;
      const absl::StatusOr<Superpage> page = Superpage::obtain(request);
      const Param memory{"memory", shareable ? "shared" : "private"};
      const Param id{"node", int64_t{node}};
      report.fact("pages_obtained", {memory, id},
                  page.ok() ? std::string(page_kind_name(page->page_kind()))
                            : std::string(page.status().message()));
      report.fact("pages_obtained_on_node", {memory, id}, page.ok() && page->numa_node() == node);
      if (shareable) kinds.insert(page.ok() ? page_text(page->page_kind(), info) : "no pages");
    }
  }
  return absl::StrJoin(kinds, " or ");
}

void report_limits(const DeviceLimits& limits, const Param& device, Report& report) {
  const std::pair<std::string_view, uint64_t> numbers[] = {
      {"max_send_depth", limits.max_send_depth},
      {"max_receive_depth", limits.max_receive_depth},
      {"max_completions", limits.max_completions},
      {"max_segments", limits.max_segments},
      {"max_outstanding_reads", limits.max_outstanding_reads},
  };
  for (const auto& [name, value] : numbers) report.fact(name, {device}, value);
  report.fact("max_inline", {device}, uint64_t{limits.max_inline}, "bytes");
  report.fact("mtu", {device}, uint64_t{limits.mtu}, "bytes");
  report.fact("max_message", {device}, limits.max_message, "bytes");
  report.fact("atomics", {device}, limits.atomics);
}

void report_verbs(const std::vector<VerbsDeviceInfo>& devices, Report& report) {
  report.heading("RDMA devices");
  report.fact("verbs_devices", {}, uint64_t{devices.size()}, "devices");
  for (const VerbsDeviceInfo& device : devices) {
    const Param name{"device", device.name};
    report.fact("verbs_usable", {name}, device.usable);
    report.fact("verbs_firmware", {name}, device.firmware);
    report.fact("verbs_numa_node", {name}, absl::StrCat(device.numa_node));
    for (const VerbsPortInfo& port : device.ports) {
      const Param number{"port", int64_t{port.number}};
      report.fact("port_state", {name, number}, port.state);
      report.fact("port_link_layer", {name, number}, port.link_layer);
      report.fact("port_lid", {name, number}, uint64_t{port.lid});
      report.fact("port_mtu", {name, number}, uint64_t{port.mtu}, "bytes");
      report.fact("port_max_message", {name, number}, port.max_message, "bytes");
      for (const VerbsGidInfo& gid : port.gids) {
        report.fact("gid",
                    {name,
                     number,
                     {"index", int64_t{gid.index}},
                     {"type", gid.type},
                     {"net_device", gid.net_device}},
                    gid.text);
      }
    }
  }
}

// The transports that the processes of a job would use. Jobs choose one per pair of processes: shm
// on one machine, else verbs; CARIAMA_TRANSPORT sets one for all pairs.
struct TransportsOfJobs {
  std::string within_machine = "none";
  std::string between_machines = "none";
  std::string device;  // the description of the verbs device
  bool any = false;    // any transport works, also one that jobs would not choose
};

std::string chosen_transport(Transport by_default, const std::set<std::string>& usable,
                             bool between_machines) {
  const char* const forced = std::getenv("CARIAMA_TRANSPORT");
  std::string name(transport_name(by_default));
  if (forced != nullptr && *forced != '\0') name = forced;
  if (between_machines && name == transport_name(Transport::kShm)) return "none";
  return usable.count(name) != 0 ? name : "none";
}

// Opens each transport, and the one that open_device() chooses by default.
TransportsOfJobs report_transports(Report& report, std::vector<Shortfall>& shortfalls) {
  report.heading("Transports");
  TransportsOfJobs found;
  std::set<std::string> usable;
  for (const Transport transport : {Transport::kShm, Transport::kVerbs}) {
    const std::string name(transport_name(transport));
    DeviceOptions options;
    options.transport = transport;
    const absl::StatusOr<std::shared_ptr<Device>> device = open_device(options);
    const Param id{"transport", name};
    report.fact("transport_works", {id}, device.ok());
    if (!device.ok()) {
      shortfalls.push_back({"transport_" + name,
                            absl::StrCat("the ", name, " transport cannot be used"),
                            std::string(device.status().message())});
      continue;
    }
    usable.insert(name);
    if (transport == Transport::kVerbs) found.device = std::string((*device)->description());
    report.fact("transport_device", {id}, (*device)->description());
    report_limits((*device)->limits(), id, report);
  }
  const absl::StatusOr<std::shared_ptr<Device>> chosen = open_device({});
  if (chosen.ok()) {
    report.fact("transport_by_default", {}, std::string(transport_name((*chosen)->transport())));
  } else {
    shortfalls.push_back({"transport_by_default", "open_device() without options fails",
                          std::string(chosen.status().message())});
  }
  found.any = !usable.empty();
  found.within_machine = chosen_transport(Transport::kShm, usable, false);
  found.between_machines = chosen_transport(Transport::kVerbs, usable, true);
  report.fact("transport_within_machine", {}, found.within_machine);
  report.fact("transport_between_machines", {}, found.between_machines);
  return found;
}

std::string growth_name(Growth growth) {
  return growth == Growth::kLinear ? "linear" : "exponential";
}

void report_environment(Report& report) {
  report.heading("Environment");
  for (const char* variable :
       {"CARIAMA_TRANSPORT", "CARIAMA_DEVICE", "CARIAMA_PORT", "CARIAMA_GID_INDEX",
        "CARIAMA_VERBS_IN_ORDER", "CARIAMA_MEMORY_BUDGET", "CARIAMA_TRACE", "CARIAMA_BOOTSTRAP",
        "CARIAMA_THREADS", "CARIAMA_LISTEN", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR",
        "MASTER_PORT", "PMIX_NAMESPACE", "PMIX_RANK"}) {
    const char* const value = std::getenv(variable);
    if (value != nullptr) report.fact("environment", {{"variable", variable}}, value);
  }
  for (const char* secret : {"CARIAMA_JOB_SECRET", "CARIAMA_LAUNCH_SOCKET"}) {
    if (std::getenv(secret) != nullptr) report.fact("environment", {{"variable", secret}}, "set");
  }
  report.fact("memory_budget", {}, MemoryBudget::process().limit(), "bytes");
}

void report_options(Report& report) {
  report.heading("Options in effect");
  const auto option = [&report](const char* of, const char* name, const Value& value,
                                std::string_view unit = "") {
    report.fact("option", {{"of", of}, {"option", name}}, value, unit);
  };
  const RDMAAllocatorOptions rdma;
  const char* of = "RDMAAllocator";
  option(of, "chunk_bytes", uint64_t{rdma.chunk_bytes}, "bytes");
  option(of, "first_superpage_bytes", uint64_t{rdma.first_superpage_bytes}, "bytes");
  option(of, "max_superpage_bytes", uint64_t{rdma.max_superpage_bytes}, "bytes");
  option(of, "growth", growth_name(rdma.growth));
  option(of, "shareable", rdma.shareable);
  option(of, "largest_page", std::string(page_kind_name(rdma.largest_page)));
  option(of, "max_bytes", rdma.max_bytes, "bytes");

  const CircularAllocatorOptions circular;
  of = "CircularAllocator";
  option(of, "unit_bytes", uint64_t{circular.unit_bytes}, "bytes");
  option(of, "initial_units", uint64_t{circular.initial_units}, "units");
  option(of, "max_units", uint64_t{circular.max_units}, "units");
  option(of, "growth", growth_name(circular.growth));

  const GeneralAllocatorOptions general;
  of = "GeneralAllocator";
  option(of, "fit", std::string(general.fit == Fit::kBest ? "best" : "first"));
  option(of, "chunk_bytes", uint64_t{general.chunk_bytes}, "bytes");
  option(of, "max_bytes", general.max_bytes, "bytes");

  const QueuePairOptions queue_pair;
  of = "QueuePair";
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

  const FabricOptions fabric;
  of = "Fabric";
  option(of, "service_threads", uint64_t{fabric.service_threads}, "threads");
  option(of, "helper_threads", uint64_t{fabric.helper_threads}, "threads");
  option(of, "queue_pairs", uint64_t{fabric.queue_pairs});
  option(of, "receive_units", uint64_t{fabric.receive_units}, "units");
  option(of, "receive_unit_bytes", uint64_t{fabric.receive_unit_bytes}, "bytes");
  option(of, "send_depth", uint64_t{fabric.send_depth}, "operations");
  option(of, "deferred_bytes", fabric.deferred_bytes, "bytes");
  option(of, "bounce_bytes", fabric.bounce_bytes, "bytes");
  option(of, "on_failure",
         std::string(fabric.on_failure == FailurePolicy::kAbort ? "abort" : "continue"));
  option(of, "timeout", static_cast<uint64_t>(fabric.timeout.count()), "ms");
  option(of, "heartbeat", static_cast<uint64_t>(fabric.heartbeat.count()), "ms");
  option(of, "ack_timeout", static_cast<uint64_t>(fabric.ack_timeout.count()), "ms");

  const MessengerOptions messenger;
  of = "Messenger";
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
}

void append_device_shortfalls(const std::vector<VerbsDeviceInfo>& devices,
                              std::vector<Shortfall>& shortfalls) {
  for (const VerbsDeviceInfo& device : devices) {
    if (!device.usable) {
      shortfalls.push_back(
          {"verbs_device", absl::StrCat("device ", device.name, " cannot be used"), device.reason});
    }
    for (const VerbsPortInfo& port : device.ports) {
      if (port.active) continue;
      shortfalls.push_back(
          {"verbs_port",
           absl::StrCat("port ", port.number, " of ", device.name, " is ", port.state),
           "check the cable and the switch; on InfiniBand the subnet manager; on "
           "Ethernet: ip link set DEVICE up"});
    }
  }
}

// Prints the verdict of three lines, and the remedies.
void print_verdict(const SystemInfo& info, const std::vector<VerbsDeviceInfo>& devices,
                   const TransportsOfJobs& transports, const std::string& pages,
                   const std::vector<Shortfall>& shortfalls) {
  const char* const forced = std::getenv("CARIAMA_TRANSPORT");
  const bool is_forced = forced != nullptr && *forced != '\0';
  std::string reason = devices.empty() ? "no RDMA device" : "no usable RDMA device";
  if (is_forced) reason = absl::StrCat("CARIAMA_TRANSPORT is '", forced, "'");
  if (transports.between_machines != "none") reason = transports.device;
  std::printf("Transport: %s between processes of this machine; %s between machines (%s)\n",
              transports.within_machine.c_str(), transports.between_machines.c_str(),
              reason.c_str());
  const bool may_lock_all =
      info.memory_lock.may_exceed || info.memory_lock.soft_bytes == kUnlimited;
  std::printf(
      "Memory:    %s, %s available; registered memory gets %s; %s\n",
      internal::format_bytes(std::min(info.memory_total_bytes, info.cgroup.memory_bytes)).c_str(),
      internal::format_bytes(std::min(info.memory_available_bytes, info.cgroup.memory_bytes))
          .c_str(),
      pages.c_str(),
      may_lock_all ? "all of it can be locked"
                   : absl::StrCat(internal::format_bytes(info.memory_lock.soft_bytes),
                                  " can be locked for RDMA devices")
                         .c_str());
  std::vector<std::string> names;
  for (const Shortfall& shortfall : shortfalls) names.push_back(shortfall.name);
  std::printf("Degraded:  %s\n", names.empty() ? "nothing" : absl::StrJoin(names, ", ").c_str());
  for (const Shortfall& shortfall : shortfalls) {
    std::printf("  %s\n      -> %s\n", shortfall.what.c_str(), shortfall.remedy.c_str());
  }
}

// Returns the exit code.
int finish_output() {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return 0;
  std::fprintf(stderr, "cariama-info: cannot write: %s\n", std::strerror(errno));
  return 1;
}

int run_options() {
  Report report(false);
  set_diagnostic_sink([](const Diagnostic&) {});
  report_environment(report);
  report_options(report);
  std::fputs(report.text().c_str() + 1, stdout);  // without the empty line before the first heading
  return finish_output();
}

int run(bool json) {
  Report report(json);
  // The diagnostics of the steps below are printed in the report, not to stderr.
  set_diagnostic_sink([](const Diagnostic&) {});

  const SystemInfo info = query_system_info();
  const std::vector<VerbsDeviceInfo> devices = list_verbs_devices();
  std::vector<Shortfall> shortfalls = find_shortfalls(info);
  append_device_shortfalls(devices, shortfalls);
  if (!has_cross_memory_attach()) {
    shortfalls.push_back({"cross_memory_attach",
                          "process_vm_readv is forbidden: peers on this host cannot access memory "
                          "that was not allocated by an allocator of Cariama",
                          "allow process_vm_readv and process_vm_writev in the container's seccomp "
                          "profile (docker run --cap-add SYS_PTRACE does, too)"});
  }

  report_machine(info, report);
  const std::string pages = report_pages(info, report);
  report_verbs(devices, report);
  const TransportsOfJobs transports = report_transports(report, shortfalls);
  report_environment(report);
  if (json) report_options(report);
  for (const Diagnostic& step : reported_diagnostics()) {
    // find_shortfalls() has reported missing huge pages already.
    if (step.key.compare(0, 6, "pages.") == 0) continue;
    shortfalls.push_back({step.key, step.what, step.remedy});
  }

  if (json) {
    for (const Shortfall& shortfall : shortfalls) {
      report.fact("shortfall", {{"of", shortfall.name}, {"remedy", shortfall.remedy}},
                  shortfall.what);
    }
  } else {
    print_verdict(info, devices, transports, pages, shortfalls);
    std::fputs(report.text().c_str(), stdout);
  }
  const int written = finish_output();
  return transports.any ? written : 1;
}

}  // namespace
}  // namespace cariama

int main(int argc, char** argv) {
  bool json = false;
  bool options = false;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--json") {
      json = true;
    } else if (argument == "--options") {
      options = true;
    } else if (argument == "--help" || argument == "-h") {
      std::fputs(cariama::kHelp, stdout);
      return cariama::finish_output();
    } else if (argument == "--version") {
      std::printf("cariama-info %s\n", std::string(cariama::version()).c_str());
      return cariama::finish_output();
    } else {
      std::fprintf(stderr, "cariama-info: unknown argument '%s' (see cariama-info --help)\n",
                   argv[i]);
      return 2;
    }
  }
  // The JSON always contains the options.
  return options && !json ? cariama::run_options() : cariama::run(json);
}
