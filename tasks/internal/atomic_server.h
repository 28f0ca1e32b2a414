// AtomicServer: a thread that executes the atomics of peers on this worker's memory, for devices
// without remote atomics and for comparison. Source: Akiyama and Taura, HPDC'15, section 5.3, where
// one processor of each node serves fetch-and-add.
//
// A client writes its request to its cell at the server, by one write with immediate. The server
// executes the atomic with its CPU and writes the old value to its cell at the client, by another
// write with immediate. A client has at most one outstanding request to a server, so one cell for
// each pair suffices and a receive is always posted. A request is delivered after all earlier
// writes of the client on the same queue pair, like an atomic of a device. Unlike an atomic of a
// device, it needs the CPU of the owner: it does not complete while the owner's process is stopped.
//
// The thread sleeps while there are no requests.
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
  uint64_t operand;  // the addend, or the expected value
  uint64_t desired;  // kCompareSwap: the new value
};

// The messages between a worker and one of its peers. A worker has one cell for each rank, in
// registered memory.
struct alignas(64) AtomicCell {
  AtomicRequest request;  // written by the peer: its request to this worker
  uint64_t answer;        // written by the peer: the old value for this worker's last request
  uint64_t source;        // source buffer of this worker's answer to the peer
};
static_assert(sizeof(AtomicCell) == 64);

class AtomicServer {
 public:
  // Returns true if peers may execute atomics on the 8 bytes at `address`. The server's thread
  // calls it.
  using IsKnown = std::function<bool(uint64_t address)>;

  // Creates the queue pairs for the other ranks. `cells` has one cell for each rank; it must
  // outlive the server.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<AtomicServer>> create(
      ProtectionDomain& domain, int rank, int size, std::span<AtomicCell> cells, IsKnown is_known);
  ~AtomicServer();
  AtomicServer(const AtomicServer&) = delete;
  AtomicServer& operator=(const AtomicServer&) = delete;

  // Returns the queue pair for the rank `client`. Connect it before start().
  [[nodiscard]] QueuePair& queue_pair(int client) {
    return *clients_[static_cast<size_t>(client)].queue_pair;
  }
  // Starts the thread that serves requests. `cells[client]` locates the cells of that rank; `key`
  // is the local key of the cells passed to create(). Error: RESOURCE_EXHAUSTED (threads).
  [[nodiscard]] absl::Status start(const std::vector<RemoteMemoryLocator>& cells, LocalKey key);

 private:
  struct Client {
    std::unique_ptr<QueuePair> queue_pair;
    RemoteMemoryLocator cell;  // this worker's cell at the client
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
  std::deque<int> unanswered_;  // clients whose answer could not be posted: the send queue was full
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace cariama::tasks

#endif  // CARIAMA_TASKS_INTERNAL_ATOMIC_SERVER_H_
