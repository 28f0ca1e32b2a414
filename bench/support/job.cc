#include "bench/support/job.h"

#include <arpa/inet.h>
#include <sched.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <utility>

#include "bench/support/report.h"
#include "dtutils/error.h"

namespace cariama::bench {
namespace {

// Returns a port of the loopback interface that is not in use now.
std::optional<uint16_t> free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return std::nullopt;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  const bool bound = bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
                     getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0;
  close(fd);
  if (!bound) return std::nullopt;
  return ntohs(address.sin_port);
}

void set(const char* name, const std::string& value) { setenv(name, value.c_str(), 1); }

}  // namespace

absl::StatusOr<Arrival> arrival_of(const std::string& name) {
  for (const Arrival each :
       {Arrival::kAuto, Arrival::kMapped, Arrival::kTrailing, Arrival::kPolled, Arrival::kEvent}) {
    if (arrival_name(each) == name) return each;
  }
  return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                    "--arrival: '" + name + "' is not auto, mapped, trailing, polled or event",
                    "see --help");
}

absl::Status choose_transport(const std::string& name) {
  if (name != "shm" && name != "verbs") {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                      "--transport: '" + name + "' is not shm or verbs", "see --help");
  }
  set("CARIAMA_TRANSPORT", name);
  return absl::OkStatus();
}

absl::Status run_job(int processes, const std::function<int(Exchange&)>& body,
                     std::vector<std::string> labels) {
  const std::optional<uint16_t> port = free_port();
  unsigned char bits[32];
  if (!port || getrandom(bits, sizeof bits, 0) != sizeof bits) {
    return make_error(
        absl::StatusCode::kUnavailable, ErrorScope::kProcess,
        "no port of the loopback interface, or no random bits: errno " + std::to_string(errno));
  }
  std::string secret;
  for (const unsigned char bit : bits) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", bit);
    secret += digits;
  }
  const auto join = [&](Exchange& exchange) {
    set("CARIAMA_BOOTSTRAP", "environment");
    set("CARIAMA_JOB_SECRET", secret);
    set("MASTER_ADDR", "127.0.0.1");
    set("MASTER_PORT", std::to_string(*port));
    set("WORLD_SIZE", std::to_string(exchange.size()));
    set("RANK", std::to_string(exchange.rank()));
    return body(exchange);
  };
  // Practically no timeout: the programs show progress, and the user can stop them by Ctrl-C.
  return run_processes(processes, join,
                       {.timeout = std::chrono::hours(24), .labels = std::move(labels)});
}

void pin(uint32_t rank, uint32_t processes, uint32_t index, uint32_t threads) {
  static const cpu_set_t allowed = [] {
    cpu_set_t set;
    CPU_ZERO(&set);
    sched_getaffinity(0, sizeof set, &set);
    return set;
  }();
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &allowed)) cores.push_back(core);
  }
  if (cores.empty()) return;
  const auto count = static_cast<uint32_t>(cores.size());
  const uint32_t own = std::clamp<uint32_t>(count / processes, 1, threads);  // cores of a process
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cores[(rank * own + index % own) % count], &set);
  sched_setaffinity(0, sizeof set, &set);  // a failure only makes the figures worse
}

uint64_t preemptions() {
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  return static_cast<uint64_t>(usage.ru_nivcsw);
}

int64_t now_ns() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void give_up(const char* program, const absl::Status& why) {
  progress("");
  std::fprintf(stderr, "%s: %s\n", program, std::string(why.message()).c_str());
  std::fflush(nullptr);
  _exit(1);
}

}  // namespace cariama::bench
