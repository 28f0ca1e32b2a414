// Atomics on a worker's memory for devices that have none, or to compare with: a thread of the
// owner executes them. Source: Akiyama and Taura, HPDC'15, section 5.3, where a processor of each
// node serves fetch-and-add.
//
// A client writes its request to its cell at the server, by one write with immediate; the server
// executes it by its CPU, and answers by another one, to the client's cell for that server. One
// request of a client to a server is outstanding at a time, so cells are enough, and no receive is
// ever missing. Requests arrive behind all that the client has written on the same queue pair
// before, as a device's atomics do. Unlike these they need the owner: while its process is stopped,
// so are they.
//
// The thread sleeps when there are no requests.
#ifndef CARIAMA_TASKS_INTERNAL_ATOMIC_SERVER_H_
#define CARIAMA_TASKS_INTERNAL_ATOMIC_SERVER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtutils/device.h"
#include "dtutils/memory.h"
#include "dtutils/queue_pair.h"

namespace cariama::tasks {

struct AtomicRequest {
  enum Kind : uint64_t { kFetchAdd, kCompareSwap };
  uint64_t kind;
  uint64_t address;
  uint64_t operand;  // the addend, or what is expected
  uint64_t desired;
};

// What a worker and one of its peers tell each other. In registered memory, one for each rank.
struct alignas(64) AtomicCell {
  AtomicRequest request;  // the peer's, to this worker
  uint64_t answer;        // the peer's, to this worker's last request: the old value
  uint64_t reply;         // on its way to the peer
};
static_assert(sizeof(AtomicCell) == 64);

class AtomicServer {
 public:
  // Whether the 8 bytes at an address are memory that peers may change. Called by the thread.
  using IsKnown = std::function<bool(uint64_t address)>;

  // Makes the ends that the other ranks connect to. `cells`: one for each rank; kept.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<AtomicServer>> create(
      ProtectionDomain& domain, int rank, int size, std::span<AtomicCell> cells, IsKnown is_known);
  ~AtomicServer();
  AtomicServer(const AtomicServer&) = delete;
  AtomicServer& operator=(const AtomicServer&) = delete;

  // The end that `client` connects to. Connect it before start().
  [[nodiscard]] QueuePair& queue_pair(int client) {
    return *clients_[static_cast<size_t>(client)].queue_pair;
  }
  // Serves from now on, in a thread. `cells[client]` is where that rank's cells are, `key` that of
  // the own ones.
  void start(const std::vector<RemoteMemoryLocator>& cells, LocalKey key);

 private:
  struct Client {
    std::unique_ptr<QueuePair> queue_pair;
    RemoteMemoryLocator cell;  // this worker's, there
  };

  AtomicServer(int rank, std::span<AtomicCell> cells, IsKnown is_known)
      : rank_(rank), cells_(cells), is_known_(std::move(is_known)) {}
  void serve();
  [[nodiscard]] bool poll();
  void execute(int client);
  void answer(int client);
  [[nodiscard]] bool post_receive(int client);

  const int rank_;
  const std::span<AtomicCell> cells_;
  const IsKnown is_known_;
  std::shared_ptr<CompletionChannel> channel_;
  std::shared_ptr<CompletionQueue> completions_;
  std::vector<Client> clients_;
  LocalKey key_{};
  std::deque<int> unanswered_;  // clients whose answer found the send queue full
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace cariama::tasks

#endif  // CARIAMA_TASKS_INTERNAL_ATOMIC_SERVER_H_
