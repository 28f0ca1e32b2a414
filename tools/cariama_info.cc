// cariama-info: shows which transports programs on this machine would use, which pages they get,
// and what is degraded, with remedies; then the resources of the machine. The program changes no
// settings, and unmaps all memory that it has mapped when it ends.
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "dsfabric/launcher.h"
#include "dtutils/allocators/superpages.h"
#include "dtutils/device.h"
#include "dtutils/diagnostics.h"
#include "dtutils/internal/byte_size.h"
#include "dtutils/system_info.h"
#include "dtutils/verbs/verbs_device.h"
#include "dtutils/version.h"
#include "tools/info/job.h"
#include "tools/info/options.h"
#include "tools/info/report.h"
#include "tools/program.h"

namespace cariama {
namespace {

constexpr const char* kHelp =
    "cariama-info: shows what this machine offers to programs that use Cariama.\n"
    "\n"
    "  cariama-info [--json] [--options]\n"
    "  cariama-info [-n P] [-t T] --job [--json] [--preset default|paper]\n"
    "\n"
    "The first three lines show which transport two processes would use, the memory and its "
    "pages,\n"
    "and what is degraded, with remedies. The resources of the machine follow. Limits are\n"
    "properties of a process: run it in the environment of the job.\n"
    "\n"
    "  --options            prints only the environment variables that Cariama reads and are set,\n"
    "                       and the options in effect of the transports, the fabric and "
    "messengers\n"
    "  --job                prints what a job of P processes really uses: the options in effect, "
    "and\n"
    "                       for each process its pages, its transport and the arrival mode to "
    "each\n"
    "                       other process, and the registered memory for each of them. Under "
    "cariama-run or\n"
    "                       mpirun, it describes that job; else it starts one (2 processes)\n"
    "  --preset NAME        with --job: the options of the job\n"
    "  --json               prints everything, one JSON object per line: name, params, value, "
    "unit;\n"
    "                       the value null means: no limit\n"
    "  --help               this text\n"
    "  --version            prints the version of Cariama\n"
    "\n"
    "Exit code: 0; 1 if no transport works or the output cannot be written; 2 for wrong usage.\n";

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

int report_only_options() {
  Report report(false);
  set_diagnostic_sink([](const Diagnostic&) {});
  report_environment(report);
  report_options(report);
  std::fputs(report.text().c_str() + 1, stdout);  // without the empty line before the first heading
  return 0;
}

int report_all(bool json) {
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
  return transports.any ? 0 : 1;
}

int run(int argc, char** argv) {
  bool json = false;
  bool options = false;
  bool job = false;
  std::string preset = "default";
  int first = 1;
  // Options of the launcher, for --job, come first.
  if (std::find_if(argv, argv + argc, [](const char* word) {
        return std::string_view(word) == "--job";
      }) != argv + argc) {
    LaunchOptions launch;
    const auto read = read_launch_options({argv + 1, argv + argc}, launch);
    if (!read.ok()) {
      std::fprintf(stderr, "cariama-info: %s\n", std::string(read.status().message()).c_str());
      return 2;
    }
    first += static_cast<int>(*read);
  }
  for (int i = first; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--json") {
      json = true;
    } else if (argument == "--options") {
      options = true;
    } else if (argument == "--job") {
      job = true;
    } else if (argument == "--preset" && i + 1 < argc) {
      preset = argv[++i];
    } else if (argument == "--help" || argument == "-h") {
      std::fputs(kHelp, stdout);
      return 0;
    } else if (argument == "--version") {
      std::printf("cariama-info %s\n", std::string(version()).c_str());
      return 0;
    } else {
      std::fprintf(stderr, "cariama-info: unknown argument '%s' (see cariama-info --help)\n",
                   argv[i]);
      return 2;
    }
  }
  if (job) return run_job_report(argc, argv, json, preset);
  if (preset != "default") {
    std::fprintf(stderr, "cariama-info: --preset needs --job\n");
    return 2;
  }
  // The JSON always contains the options.
  return options && !json ? report_only_options() : report_all(json);
}

}  // namespace
}  // namespace cariama

int main(int argc, char** argv) {
  return cariama::run_program("cariama-info", [&] { return cariama::run(argc, argv); });
}
