// A key-value store: each thread owns the keys whose hash says so, and runs what others ask of them
// by call_return. Two threads in each of two processes, unless told otherwise (-n, -t).
#include <atomic>
#include <chrono>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "docs/examples/check.h"
#include "dsfabric/collectives.h"
#include "dsfabric/launcher.h"
#include "riutils/call.h"

namespace {

using namespace cariama;  // NOLINT: an example

// [store]
// The parts of this process's threads. Calls to a thread run in that thread, one at a time: nothing
// here needs a lock.
std::vector<std::unordered_map<std::string, std::string>> parts;

// One thread's way to all parts.
class Store {
 public:
  explicit Store(ThreadContext& self)
      : fabric_(self.fabric()), threads_(fabric_.threads()), owners_(self) {}

  // Waits for nothing: a later get() of this thread, to the same owner, comes after it.
  void put(const std::string& key, const std::string& value) {
    const uint32_t owner = owner_of(key);
    check(owners_
              .call(
                  owner,
                  [part = owner % threads_](const std::string& its, const std::string& text) {
                    parts[part][its] = text;
                  },
                  key, value)
              .status());
  }

  std::optional<std::string> get(const std::string& key) {
    const uint32_t owner = owner_of(key);
    std::optional<std::string> value;
    Synchronizer answered;
    check(owners_
              .call_return(
                  owner,
                  [part = owner % threads_](const std::string& its) {
                    const auto found = parts[part].find(its);
                    return found == parts[part].end() ? std::nullopt
                                                      : std::optional<std::string>(found->second);
                  },
                  value, answered, key)
              .status());
    // Others ask this thread meanwhile, and are answered.
    check(fabric_.wait([&] { return answered.done(); }, deadline_after(std::chrono::seconds(60))),
          "no answer");
    check(answered.status());
    return value;
  }

  void close() { check(owners_.shutdown_all(deadline_after(std::chrono::seconds(60))).status()); }

 private:
  [[nodiscard]] uint32_t owner_of(const std::string& key) const {
    return static_cast<uint32_t>(std::hash<std::string>()(key) % fabric_.total_threads());
  }

  Fabric& fabric_;
  const uint32_t threads_;
  RDMAMessengerGlobal owners_;  // a channel to each thread, made when it is first called
};
// [store]

constexpr int kKeys = 500;

void work(Fabric& fabric, uint32_t index, Synchronizer& finished,
          const std::atomic<bool>& all_are) {
  auto self = check(fabric.init_thread(index));
  Store store(*self);
  const std::string mine = "thread " + std::to_string(self->global_id()) + ", key ";
  for (int i = 0; i < kKeys; ++i) store.put(mine + std::to_string(i), std::to_string(i * i));
  for (int i = 0; i < kKeys; ++i) {
    const std::optional<std::string> value = store.get(mine + std::to_string(i));
    check(value == std::to_string(i * i), "a key has another value than was put");
  }
  check(!store.get(mine + "never put").has_value(), "a key that nobody has put is there");
  store.close();
  finished.decrease();
  // The others are not ready yet, and ask on.
  check(fabric.wait([&] { return all_are.load(); }, deadline_after(std::chrono::seconds(60))),
        "the others did not end");
}

}  // namespace

int main(int argc, char** argv) {
  if (auto code = launch_self({.processes = 2, .threads = 2}, argc, argv)) return *code;
  const Deadline deadline = deadline_after(std::chrono::seconds(60));
  auto fabric = check(Fabric::create());
  Collectives all(*fabric);
  parts.resize(fabric->threads());
  check(all.barrier(deadline));  // nobody is asked before it has its parts

  Synchronizer finished(fabric->threads());
  std::atomic<bool> all_are = false;
  std::vector<std::thread> workers;
  for (uint32_t index = 0; index < fabric->threads(); ++index) {
    workers.emplace_back([&, index] { work(*fabric, index, finished, all_are); });
  }
  check(finished.wait(deadline));
  check(all.barrier(deadline));
  all_are = true;
  for (uint32_t index = 0; index < fabric->threads(); ++index) fabric->wake(index);
  for (std::thread& worker : workers) worker.join();

  size_t keys = 0;
  for (const auto& part : parts) keys += part.size();
  const size_t total = check(all.all_reduce(keys, std::plus<>(), deadline));
  check(total == size_t{kKeys} * fabric->total_threads(), "keys were lost");
  std::printf("rank %u has %zu of %zu keys\n", fabric->rank(), keys, total);
  check(fabric->finalize(deadline));
  return 0;
}
