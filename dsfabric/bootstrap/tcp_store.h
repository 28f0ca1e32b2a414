// The store of a job without a launcher of ours: in the process of rank 0, over TCP.
#ifndef CARIAMA_DSFABRIC_BOOTSTRAP_TCP_STORE_H_
#define CARIAMA_DSFABRIC_BOOTSTRAP_TCP_STORE_H_

#include <poll.h>

#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dsfabric/bootstrap/store_bootstrap.h"
#include "dsfabric/internal/handshake.h"
#include "dsfabric/internal/sockets.h"
#include "dtutils/exchange_server.h"

namespace cariama::internal {

// Who may join besides knowing the key.
enum class Admission : uint8_t {
  kAnybody,
  kOwnUser,  // processes of the user of this process, on this host
};

// Serves the ranks that prove that they know `key`, in a thread of its own. Costs rank 0 a socket
// for each process of the job.
class TcpStore {
 public:
  // `address` is where it listens; with port 0, at any.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<TcpStore>> start(
      const SocketAddress& address, int size, const JobSecret& key,
      Admission admission = Admission::kAnybody);
  // Ends the service, for whoever is left.
  ~TcpStore();
  TcpStore(const TcpStore&) = delete;
  TcpStore& operator=(const TcpStore&) = delete;

  [[nodiscard]] SocketAddress address() const { return bound_address(listener_.get()); }
  // Rank 0's own end of a socket to the store: take it once.
  [[nodiscard]] int take_own_socket() { return own_socket_.release(); }
  // Waits until every other rank has left or ended. DEADLINE_EXCEEDED names those that have not.
  [[nodiscard]] absl::Status wait_until_left(Exchange::Deadline deadline);

 private:
  struct Newcomer {
    FileDescriptor socket;
    ServerHandshake handshake;
    std::string outgoing;
    Exchange::Deadline deadline;
  };

  TcpStore(int size, const JobSecret& key, Admission admission);
  void serve();
  void accept_all();
  void advance(Newcomer& one);
  void on_closed(int rank, const absl::Status& why);

  const int size_;
  const JobSecret key_;
  const Admission admission_;
  FileDescriptor listener_;
  FileDescriptor stop_;
  FileDescriptor own_socket_;
  // Of the thread:
  ExchangeServer server_;
  std::list<Newcomer> newcomers_;
  std::vector<bool> joined_;  // at any time

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<bool> left_;  // guarded by mutex_
  std::thread thread_;
};

// A socket to the store of rank 0, which listens at one of `addresses`: tries until the deadline.
// Errors: those of prove_to_server; PERMISSION_DENIED (kOwnUser, and it is another's);
// DEADLINE_EXCEEDED says what was wrong last.
[[nodiscard]] absl::StatusOr<FileDescriptor> connect_to_store(
    const std::vector<SocketAddress>& addresses, int rank, int size, const JobSecret& key,
    Exchange::Deadline deadline, Admission admission = Admission::kAnybody);

// A process of a job whose store is a TcpStore.
class TcpBootstrap : public StoreBootstrap {
 public:
  // Joins: rank 0 gives its store, the others a socket to it. Makes the job's secret out of `key`.
  // `address` is where this process can be reached, or "".
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<TcpBootstrap>> join(
      BootstrapKind kind, std::unique_ptr<TcpStore> store, FileDescriptor socket, int rank,
      int size, const JobSecret& key, std::string address, Exchange::Deadline deadline);

  [[nodiscard]] std::string listen_address() const override { return address_; }
  // What remains to be done at the end, after the store.
  void at_end(std::function<absl::Status()> action) { at_end_ = std::move(action); }

 protected:
  absl::Status leave(Deadline deadline) override;

 private:
  TcpBootstrap(BootstrapKind kind, std::unique_ptr<TcpStore> store, int socket, int rank, int size,
               std::string address);

  std::unique_ptr<TcpStore> store_;
  std::string address_;
  std::function<absl::Status()> at_end_;
};

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_BOOTSTRAP_TCP_STORE_H_
