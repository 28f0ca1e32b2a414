// A key-value store. The hash of a key selects the thread that owns it. Other threads access the
// key by call() and call_return() to its owner. The default is two processes of two threads each
// (-n, -t).
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
#include "docs/examples/options.h"
#include "dsfabric/collectives.h"
#include "dsfabric/launcher.h"
#include "riutils/call.h"

namespace {

using namespace cariama;  // NOLINT: an example

// [store]
// One map for each thread of this process. The calls to a thread run in that thread, one at a time,
// so the maps need no lock.
std::vector<std::unordered_map<std::string, std::string>> parts;

// One thread's access to the maps of all threads of the job.
class Store {
 public:
  explicit Store(ThreadContext& self) : fabric_(self.fabric()), owners_(self) {}

  // Does not wait for the owner. The calls of one thread to one owner run in the order of issue, so
  // a later get() of this thread for the same key returns the value.
  void put(const std::string& key, const std::string& value) {
    const ThreadId owner = owner_of(key);
    check(owners_.call(
        owner,
        [part = fabric_.index_of(owner)](const std::string& its, const std::string& text) {
          parts[part][its] = text;
        },
        key, value));
  }

  std::optional<std::string> get(const std::string& key) {
    const ThreadId owner = owner_of(key);
    std::optional<std::string> value;
    Synchronizer answered;
    check(owners_.call_return(
        owner,
        [part = fabric_.index_of(owner)](const std::string& its) {
          const auto found = parts[part].find(its);
          return found == parts[part].end() ? std::nullopt
                                            : std::optional<std::string>(found->second);
        },
        value, answered, key));
    // While this thread waits, it runs the calls of other threads to it.
    check(fabric_.wait(answered, deadline_after(std::chrono::seconds(60))));
    return value;
  }

  void close() { check(owners_.shutdown_all(deadline_after(std::chrono::seconds(60)))); }

 private:
  [[nodiscard]] ThreadId owner_of(const std::string& key) const {
    return static_cast<uint32_t>(std::hash<std::string>()(key) % fabric_.total_threads());
  }

  Fabric& fabric_;
  RDMAMessengerGlobal owners_;  // one channel for each thread, set up at the first call to it
};
// [store]

constexpr int kKeys = 500;

void work(Fabric& fabric, ThreadIndex index, Synchronizer& finished,
          const std::atomic<bool>& all_are) {
  auto self = check(fabric.init_thread(index));
  Store store(*self);
  const std::string mine = "thread " + std::to_string(self->global_id()) + ", key ";
  for (int i = 0; i < kKeys; ++i) store.put(mine + std::to_string(i), std::to_string(i * i));
  for (int i = 0; i < kKeys; ++i) {
    const std::optional<std::string> value = store.get(mine + std::to_string(i));
    check(value == std::to_string(i * i), "a key has another value than was put");
  }
  check(!store.get(mine + "never put").has_value(), "a key was found that was never put");
  store.close();
  finished.decrease();
  // Other threads may not have finished. Keep running their calls until all have.
  check(fabric.wait([&] { return all_are.load(); }, deadline_after(std::chrono::seconds(60))),
        "the others did not end");
}

}  // namespace

int main(int argc, char** argv) {
  read_options(argc, argv);
  if (auto code = launch_self({.processes = 2, .threads = 2}, argc, argv)) return *code;
  const Deadline deadline = deadline_after(std::chrono::seconds(60));
  auto fabric = check(Fabric::create());
  Collectives all(*fabric);
  parts.resize(fabric->threads());
  check(all.barrier(deadline));  // no call arrives before parts has its final size

  Synchronizer finished(fabric->threads());
  std::atomic<bool> all_are = false;
  std::vector<std::thread> workers;
  for (uint32_t index = 0; index < fabric->threads(); ++index) {
    workers.emplace_back([&, index] { work(*fabric, index, finished, all_are); });
  }
  check(finished.wait_without_polling(deadline));
  check(all.barrier(deadline));
  all_are = true;
  for (uint32_t index = 0; index < fabric->threads(); ++index) fabric->wake(index);
  for (std::thread& worker : workers) worker.join();

  size_t keys = 0;
  for (const auto& part : parts) keys += part.size();
  const size_t total = check(all.all_reduce(keys, std::plus<>(), deadline));
  check(total == size_t{kKeys} * fabric->total_threads(), "keys were lost");
  std::printf("rank %u has %zu of %zu keys\n", fabric->rank().value(), keys, total);
  check(fabric->finalize(deadline));
  return 0;
}
