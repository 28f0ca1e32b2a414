// Time until a process detects that its peer was killed, over shm: from just before kill(SIGKILL)
// to the error completion of a pending operation; the process sleeps on a completion channel. The
// victim has touched --memory bytes: the kernel's release of them must not delay the detection.
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "bench/support/flags.h"
#include "bench/support/list_flag.h"
#include "bench/support/report.h"
#include "dtutils/device.h"
#include "dtutils/process_group.h"

ABSL_FLAG(std::string, memory, "0,1024Mi", "bytes that the victim has touched, or a list");
ABSL_FLAG(int, repetitions, 9, "processes killed for each row");
ABSL_FLAG(bool, json, false, "print one JSON object per line");

namespace cariama::bench {
namespace {

constexpr std::chrono::seconds kPatience{60};

Exchange::Deadline patience() { return std::chrono::steady_clock::now() + kPatience; }

template <typename T>
T must(absl::StatusOr<T> value) {
  if (!value.ok()) {
    std::fprintf(stderr, "bench_peer_death: %s\n", value.status().ToString().c_str());
    _exit(1);
  }
  return *std::move(value);
}
void must(const absl::Status& status) {
  if (!status.ok()) must(absl::StatusOr<int>(status));
}

struct End {
  std::shared_ptr<CompletionChannel> channel;
  std::shared_ptr<CompletionQueue> completions;
  std::unique_ptr<QueuePair> queue_pair;
};

End connect(Exchange& exchange) {
  End end;
  auto device = must(open_device({.transport = Transport::kShm}));
  auto domain = must(device->create_domain());
  end.channel = must(domain->create_channel());
  end.completions = must(domain->create_completion_queue({.channel = end.channel}));
  QueuePairOptions options;
  options.send_completions = options.receive_completions = end.completions;
  end.queue_pair = must(domain->create_queue_pair(options));
  const int peer = 1 - exchange.rank();
  must(exchange.put("address", end.queue_pair->address()));
  must(end.queue_pair->connect(must(exchange.get(peer, "address", patience())),
                               {.peer = exchange.label(peer)}));
  must(exchange.fence(patience()));
  return end;
}

// Rank 1: touches memory, and waits to be killed.
int be_victim(Exchange& exchange, size_t bytes) {
  const End end = connect(exchange);
  if (bytes != 0) {
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return 1;
    std::memset(memory, 1, bytes);
  }
  must(exchange.put("pid", std::to_string(getpid())));
  for (;;) pause();
}

// Rank 0: sends a message for which no receive is posted, kills the peer, and sleeps until the
// message completes with kPeerDied.
int watch_victim(Exchange& exchange, int result) {
  const End end = connect(exchange);
  const int pid = std::stoi(must(exchange.get(1, "pid", patience())));
  const WorkRequest send{.id = 1, .opcode = Opcode::kSend, .flags = kSignaled};
  if (!end.queue_pair->post_send(send).ok()) return 1;
  Completion completion;
  if (end.completions->poll(std::span(&completion, 1)) != 0) return 1;

  const auto start = std::chrono::steady_clock::now();
  if (kill(pid, SIGKILL) != 0) return 1;
  for (;;) {
    must(end.completions->arm());
    if (end.completions->poll(std::span(&completion, 1)) != 0) break;
    if (!end.channel->wait(kPatience)) return 1;
  }
  const std::chrono::duration<double, std::milli> noticed =
      std::chrono::steady_clock::now() - start;
  if (completion.status != CompletionStatus::kPeerDied) return 1;
  const double milliseconds = noticed.count();
  return write(result, &milliseconds, sizeof milliseconds) == sizeof milliseconds ? 0 : 1;
}

absl::StatusOr<double> measure(size_t bytes) {
  int result[2];
  if (pipe(result) != 0) return absl::InternalError("pipe");
  RunOptions options;
  options.may_die = {1};
  options.labels = {"watcher", "victim"};
  const absl::Status status = run_processes(
      2,
      [&](Exchange& exchange) {
        return exchange.rank() == 0 ? watch_victim(exchange, result[1])
                                    : be_victim(exchange, bytes);
      },
      options);
  double milliseconds = 0;
  const bool complete =
      status.ok() && read(result[0], &milliseconds, sizeof milliseconds) == sizeof milliseconds;
  close(result[0]);
  close(result[1]);
  if (!complete) return status.ok() ? absl::InternalError("no result") : status;
  return milliseconds;
}

int run() {
  const absl::StatusOr<std::vector<uint64_t>> sizes =
      parse_numbers("memory", absl::GetFlag(FLAGS_memory), 0, uint64_t{1} << 40);
  if (!sizes.ok()) {
    std::fprintf(stderr, "bench_peer_death: %s\n", std::string(sizes.status().message()).c_str());
    return 1;
  }
  const int repetitions = absl::GetFlag(FLAGS_repetitions);
  if (repetitions < 1) {
    std::fprintf(stderr, "bench_peer_death: --repetitions must be 1 or more\n");
    return 1;
  }
  const Report report(absl::GetFlag(FLAGS_json), {"memory"});
  for (uint64_t bytes : *sizes) {
    std::vector<double> values;
    for (int i = 0; i < repetitions; ++i) {
      progress("victim with " + size_text(bytes) + ": " + std::to_string(i + 1) + " of " +
               std::to_string(repetitions));
      const absl::StatusOr<double> noticed = measure(bytes);
      if (!noticed.ok()) {
        std::fprintf(stderr, "bench_peer_death: %s\n", noticed.status().ToString().c_str());
        return 1;
      }
      values.push_back(*noticed);
    }
    progress("");
    Params params;
    params.set("memory", bytes);
    params.set("repetitions", static_cast<uint64_t>(repetitions));
    params.set("transport", "shm");
    report.row("peer_death_noticed", params, summarize(std::move(values)), "ms");
  }
  return 0;
}

}  // namespace
}  // namespace cariama::bench

int main(int argc, char** argv) {
  constexpr const char* kUsage =
      "measures the time until a process detects that its shm peer was killed\n"
      "  bench_peer_death --memory 0,64Mi,1024Mi --repetitions 9";
  if (cariama::bench::parse_flags(argc, argv, kUsage).size() != 1) {
    std::fprintf(stderr, "bench_peer_death: it takes options only: see --help\n");
    return 1;
  }
  return cariama::bench::run();
}
