// The threads that search: T workers in each of the P processes of a job.
//
//   auto host = Host::create(nullptr, {.threads = 2});    // this process alone
//   Search<ConnectFour> search(**host);                   // search.h
//
//   auto fabric = Fabric::create();                       // a job of several processes
//   auto host = Host::create(fabric->get());
//   if ((*host)->rank() != 0) return (*host)->serve();    // works for rank 0, until that ends
//   Search<ConnectFour> search(**host);
//   ...
//   (*host)->end();                                       // the others' serve() returns
//
// program.h does all of it for a program that is one search.
//
// The thread that creates the host is worker 0 of its process; the host starts the others. Workers
// without work sleep.
#ifndef CARIAMA_MCTS_HOST_H_
#define CARIAMA_MCTS_HOST_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <typeindex>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dsfabric/fabric.h"
#include "mcts/export.h"
#include "mcts/lines.h"

namespace cariama::mcts {

class Host;

// What workers do for one type of game. Functions are called by the workers of the process.
class CARIAMA_MCTS_EXPORT SiteBase {
 public:
  virtual ~SiteBase() = default;
  // Some rollouts, for some ten microseconds. False: there was nothing to do.
  virtual bool work(uint32_t thread) = 0;
  // Whether work() would find some. Any thread.
  [[nodiscard]] virtual bool has_work(uint32_t thread) = 0;
  // That process has died. Worker 0.
  virtual void lost(uint32_t rank) = 0;
};

// A small number for each type of site, different ones in different processes.
[[nodiscard]] CARIAMA_MCTS_EXPORT size_t new_site_slot();
template <typename Site>
[[nodiscard]] size_t site_slot() {
  static const size_t slot = new_site_slot();
  return slot;
}

// A worker's own.
struct HostThread {
  Host* host = nullptr;
  uint32_t index = 0;
  std::unique_ptr<ThreadContext> context;  // nullptr in a host without a fabric
  std::unique_ptr<Lines> lines;            // ditto
  std::atomic<bool> idle{false};
  std::atomic<int64_t> idle_ns{0};
  std::vector<SiteBase*> sites;  // that it has used, by site_slot()
};

struct HostOptions {
  uint32_t threads = 1;  // without a fabric; else as many as that has
  Aggregation aggregation = Aggregation::kTraditional;
};

class CARIAMA_MCTS_EXPORT Host {
 public:
  // fabric: nullptr, or one that outlives the host and has no workers yet; collective then. Errors:
  // those of Fabric::init_thread, and of the system.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<Host>> create(
      Fabric* fabric, const HostOptions& options = {});
  // By the thread that created it; after end().
  ~Host();
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  [[nodiscard]] uint32_t rank() const { return rank_; }
  [[nodiscard]] uint32_t size() const { return size_; }
  [[nodiscard]] uint32_t threads() const { return num_threads_; }
  // The global id of worker `index` of process `rank`.
  [[nodiscard]] uint32_t id(uint32_t rank, uint32_t index) const {
    return rank * num_threads_ + index;
  }
  [[nodiscard]] bool alive(uint32_t rank) const {
    return !dead_[rank].load(std::memory_order_acquire);
  }
  [[nodiscard]] uint32_t living() const;

  // Worker 0 of ranks other than 0: works until rank 0 calls end(), or dies: UNAVAILABLE then.
  [[nodiscard]] absl::Status serve();
  // Worker 0 of rank 0: everybody's work is over. Idempotent.
  void end();

  // ---- For searches.

  // The calling worker. Precondition: it is one.
  [[nodiscard]] static HostThread& here();
  [[nodiscard]] HostThread& thread(uint32_t index) { return *threads_[index]; }

  // This process's site for a type of game, made on first use. Thread-safe.
  template <typename Site>
  [[nodiscard]] Site& site() {
    return static_cast<Site&>(site(typeid(Site), [](Host& host) -> std::unique_ptr<SiteBase> {
      return std::make_unique<Site>(host);
    }));
  }
  // That of the calling worker's process; fast.
  template <typename Site>
  [[nodiscard]] static Site& site_here() {
    HostThread& thread = here();
    // What hand_back() left behind.
    static_cast<void>(thread.host->handed_back_.load(std::memory_order_acquire));
    const size_t slot = site_slot<Site>();
    if (thread.sites.size() <= slot) thread.sites.resize(slot + 1, nullptr);
    if (thread.sites[slot] == nullptr) thread.sites[slot] = &thread.host->template site<Site>();
    return static_cast<Site&>(*thread.sites[slot]);
  }
  // What the workers of this process work for from now on.
  void activate(SiteBase* site);
  // Makes sleeping workers, but the calling one, look for work.
  void wake_workers();

  // Before and after a search worker 0 works on what the other workers of its process use in
  // between: none of them does anything then, which rank 0 knows from their calls. So the order in
  // which they use it comes about by way of other processes. These two establish it in each process
  // by itself: nothing has to be known about the others to see that it is right, and a race
  // detector, which looks at one process, sees it too.
  //
  // Worker 0: what the others did before they sent a call that led here happens before this.
  void take_over() const;
  // Worker 0: this happens before all that calls make the others do (site_here) because of it.
  void hand_back();

  // Worker 0: one round of its loop: runs calls, works; false: there was nothing to do.
  bool step();
  // Worker 0: works and runs calls until the condition holds; false: the deadline came first.
  [[nodiscard]] bool work_until(const std::function<bool()>& condition, Deadline deadline);

 private:
  using SiteMaker = std::unique_ptr<SiteBase> (*)(Host&);

  Host(Fabric* fabric, uint32_t threads, Aggregation aggregation);
  SiteBase& site(std::type_index type, SiteMaker make);
  [[nodiscard]] absl::Status enter(uint32_t index);
  void leave(uint32_t index);
  void run_worker(uint32_t index);
  bool round(HostThread& self);
  void rest(HostThread& self, Deadline deadline);
  [[nodiscard]] bool may_rest(const HostThread& self);
  void look_for_deaths();

  Fabric* fabric_;
  uint32_t rank_ = 0;
  uint32_t size_ = 1;
  uint32_t num_threads_;
  Aggregation aggregation_;
  std::vector<std::unique_ptr<HostThread>> threads_;
  std::vector<std::thread> others_;
  std::vector<std::atomic<bool>> dead_;
  std::mutex mutex_;  // of sites_
  std::unordered_map<std::type_index, std::unique_ptr<SiteBase>> sites_;
  std::atomic<SiteBase*> active_{nullptr};
  std::atomic<uint64_t> handed_back_{0};
  std::atomic<bool> ending_{false};
  bool ended_ = false;
  WakeWord wake_;  // without a fabric
  uint64_t rounds_ = 0;
};

}  // namespace cariama::mcts

#endif  // CARIAMA_MCTS_HOST_H_
