#include "tests/nth_failure/nth_failure_channel.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <new>
#include <numeric>
#include <string>
#include <vector>

#include "dsfabric/fabric.h"
#include "dtutils/statistics.h"
#include "riutils/aggregator.h"
#include "riutils/messenger.h"
#include "riutils/routed_aggregator.h"

namespace cariama {
namespace {

using namespace std::chrono_literals;  // NOLINT(google-build-using-namespace)
using Arm = bool (*)(long);

constexpr uint64_t kCalls = 60;
constexpr uint64_t kRoutedChunk = 1024;  // of a routed channel, which several chunks have to take
std::array<uint32_t, kCalls> runs{};
uint64_t last_run = 0;
bool disorder = false;

// Returns the number of chunks that the receivers of this process have granted and not freed.
uint64_t chunks_in_use() {
  uint64_t in_use = 0;
  for (const Statistic& statistic : statistics_snapshot()) {
    if (statistic.kind != "one_sided") continue;
    if (statistic.name == "chunks_granted") in_use += statistic.value;
    if (statistic.name == "chunks_freed") in_use -= statistic.value;
  }
  return in_use;
}

// Sends the calls from `next` on, which several chunks have to take, and runs them. Sets `next` to
// the first call that was not accepted. Then returns the chunks.
void send_all(Fabric& fabric, RDMAMessenger& messenger, uint64_t& next, bool& returned) {
  while (next < kCalls) {
    const uint64_t number = next;
    std::array<std::byte, 200> data{};
    const CallResult sent = messenger.call([number, data] {
      static_cast<void>(data);
      ++runs[number];
      disorder |= number < last_run;
      last_run = number;
    });
    if (sent.ok()) ++next;
    if (next % 16 == 0 || !sent.ok()) fabric.process_calls();
    if (!sent.ok() && !absl::IsResourceExhausted(sent.status())) return;
  }
  fabric.process_calls();
  returned = messenger.return_chunks();
  fabric.process_calls();
}

// Returns the violated requirement, or "". `reached`: an allocation has failed.
std::string fail_the_nth(Fabric& fabric, ThreadContext& self, const MessengerOptions& options,
                         Arm arm, long n, bool& reached) {
  runs = {};
  last_run = 0;
  disorder = false;
  const uint64_t before = chunks_in_use();
  std::unique_ptr<RDMAMessenger> messenger;
  uint64_t next = 0;
  bool returned = false;
  arm(n);
  try {
    messenger = std::make_unique<RDMAMessenger>(self, fabric.thread_of(fabric.rank()), options);
    send_all(fabric, *messenger, next, returned);
  } catch (const std::bad_alloc&) {
  }
  reached = !arm(0);
  if (messenger == nullptr) return "";  // its constructor has thrown
  const uint64_t accepted = next;
  const Deadline deadline = deadline_after(5s);
  do {
    send_all(fabric, *messenger, next, returned);
    if (std::chrono::steady_clock::now() > deadline) {
      return next < kCalls ? "calls are refused for ever" : "the chunks are never returned";
    }
  } while (next < kCalls || !returned);
  messenger.reset();
  fabric.process_calls();
  for (uint64_t i = 0; i < kCalls; ++i) {
    // A call that threw may have been accepted before.
    if (runs[i] != 1 && !(i == accepted && runs[i] == 2)) {
      return "call " + std::to_string(i) + " ran " + std::to_string(runs[i]) + " times";
    }
  }
  if (disorder) return "calls ran in another order";
  if (const uint64_t in_use = chunks_in_use(); in_use != before) {
    return std::to_string(in_use) + " chunks are in use, before " + std::to_string(before);
  }
  return "";
}

// Sends the calls from `next` on, routed by this thread to itself, and runs what has arrived. Sets
// `next` to the first call that was not accepted.
void route_all(Fabric& fabric, RDMAAggregator& calls, uint64_t& next) {
  using Access = internal::ChannelAccess<RDMAAggregator>;
  const uint32_t name = internal::RoutedHead::name(fabric.thread_of(fabric.rank()),
                                                   internal::RoutedHead::chunk_order(kRoutedChunk));
  while (next < kCalls) {
    const uint64_t number = next;
    const auto call = make_call([number] {
      ++runs[number];
      disorder |= number < last_run;
      last_run = number;
    });
    const CallResult sent =
        Access::sender(calls).send<true>(internal::RoutedCall<const decltype(call)&>(name, call),
                                         internal::WhenNoRoom::of(WhenFull::kFail, false));
    if (sent.ok()) ++next;
    if (next % 16 == 0 || !sent.ok()) {
      static_cast<void>(calls.flush());
      fabric.process_calls();
    }
    if (!sent.ok() && !absl::IsResourceExhausted(sent.status())) return;
  }
  static_cast<void>(calls.flush());
  fabric.process_calls();
}

uint64_t runs_of_all() { return std::accumulate(runs.begin(), runs.end(), uint64_t{0}); }

// Returns the violated requirement, or "". `reached`: an allocation has failed. In a fabric of its
// own: the channel from the router to the destination is created while an allocation may fail.
std::string fail_the_nth_of_a_router(Arm arm, long n, bool& reached) {
  runs = {};
  last_run = 0;
  disorder = false;
  auto fabric = Fabric::create();
  if (!fabric.ok()) return fabric.status().ToString();
  auto self = (*fabric)->init_thread(0);
  if (!self.ok()) return self.status().ToString();
  MessengerOptions options;
  options.first_chunk_bytes = options.chunk_bytes = kRoutedChunk;
  RDMAMessenger messenger(**self, (*fabric)->thread_of((*fabric)->rank()), options);
  RDMAAggregator calls(messenger);
  uint64_t next = 0;
  arm(n);
  try {
    route_all(**fabric, calls, next);
  } catch (const std::bad_alloc&) {
  }
  reached = !arm(0);
  const uint64_t accepted = next;
  const Deadline deadline = deadline_after(20s);
  while (next < kCalls || std::find(runs.begin(), runs.end(), 0u) != runs.end()) {
    route_all(**fabric, calls, next);
    if (std::chrono::steady_clock::now() > deadline) {
      return std::to_string(runs_of_all()) + " of " + std::to_string(next) + " calls have run";
    }
  }
  // A call that runs twice may do so later.
  if (absl::Status ended = messenger.shutdown(deadline); !ended.ok()) return ended.ToString();
  if (absl::Status ended = (*fabric)->finalize(deadline); !ended.ok()) return ended.ToString();
  for (uint64_t i = 0; i < kCalls; ++i) {
    // The sender's call that threw may have been accepted before.
    if (runs[i] != 1 && !(i == accepted && runs[i] == 2)) {
      return "call " + std::to_string(i) + " ran " + std::to_string(runs[i]) + " times";
    }
  }
  return disorder ? "calls ran in another order" : "";
}

// Calls `fail_the_nth` for n = 1, 2, ... until no allocation fails. Returns 0, or prints the
// violated requirement and returns 1.
template <typename FailTheNth>
int fail_each(FailTheNth&& fail_the_nth) {
  bool reached = true;
  long n = 1;
  for (; reached; ++n) {
    const std::string wrong = fail_the_nth(n, reached);
    if (wrong.empty()) continue;
    std::printf("allocation %ld: %s\n", n, wrong.c_str());
    return 1;
  }
  std::printf("%ld allocations fail\n", n - 2);
  return 0;
}

// Returns nullptr, and prints why, if the library in preload/ is missing.
Arm find_arm() {
  const auto arm = reinterpret_cast<Arm>(dlsym(RTLD_DEFAULT, "fail_nth_new_here"));
  if (arm == nullptr) std::printf("the library in preload/ is missing\n");
  return arm;
}

}  // namespace

int fail_in_a_channel() {
  const Arm arm = find_arm();
  if (arm == nullptr) return 1;
  auto fabric = Fabric::create();
  if (!fabric.ok()) {
    std::printf("%s\n", fabric.status().ToString().c_str());
    return 1;
  }
  auto self = (*fabric)->init_thread(0);
  if (!self.ok()) {
    std::printf("%s\n", self.status().ToString().c_str());
    return 1;
  }
  MessengerOptions small;
  small.first_chunk_bytes = small.chunk_bytes = 2048;
  small.timeout = 1s;
  MessengerOptions first_small = small;
  first_small.first_chunk_bytes = 1024;
  for (const MessengerOptions& options : {small, first_small}) {
    const int code = fail_each([&](long n, bool& reached) {
      return fail_the_nth(**fabric, **self, options, arm, n, reached);
    });
    if (code != 0) return code;
  }
  return 0;
}

int fail_in_a_router() {
  const Arm arm = find_arm();
  if (arm == nullptr) return 1;
  return fail_each(
      [&](long n, bool& reached) { return fail_the_nth_of_a_router(arm, n, reached); });
}

}  // namespace cariama
