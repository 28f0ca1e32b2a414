// The store of a job that cariama-run did not start: a TCP server in the process of rank 0.
#ifndef CARIAMA_DSFABRIC_BOOTSTRAP_TCP_STORE_H_
#define CARIAMA_DSFABRIC_BOOTSTRAP_TCP_STORE_H_

#include <atomic>
#include <condition_variable>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dsfabric/bootstrap/handshake.h"
#include "dsfabric/bootstrap/sockets.h"
#include "dsfabric/bootstrap/store_bootstrap.h"
#include "dtutils/internal/exchange_server.h"

namespace cariama::internal {

// The processes that may join, in addition to knowing the key.
enum class Admission : uint8_t {
  kAnybody,
  kOwnUser,  // processes of the user of this process, on this host
};

// Serves the ranks that prove that they know `key`, in its own thread. Cost: one socket in rank 0
// for each process of the job.
class TcpStore {
 public:
  // `address` is the address to listen at; port 0: any free port.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<TcpStore>> start(
      const SocketAddress& address, int size, const JobSecret& key,
      Admission admission = Admission::kAnybody);
  // Ends the service, also for ranks that have not left.
  ~TcpStore();
  TcpStore(const TcpStore&) = delete;
  TcpStore& operator=(const TcpStore&) = delete;

  [[nodiscard]] SocketAddress address() const { return bound_address(listener_.get()); }
  // Returns rank 0's own end of a socket to the store. May be called once; the caller owns the
  // socket.
  [[nodiscard]] int take_own_socket() { return own_socket_.release(); }
  // Blocks until every other rank has left or ended. Error: DEADLINE_EXCEEDED (the text names the
  // ranks that have not).
  [[nodiscard]] absl::Status wait_until_left(Exchange::Deadline deadline);

 private:
  struct UnauthenticatedConnection {
    FileDescriptor socket;
    ServerHandshake handshake;
    std::string outgoing;
    Exchange::Deadline deadline;
  };

  TcpStore(int size, const JobSecret& key, Admission admission);
  void serve();
  // Serves what is ready. Returns false when the store is to stop.
  [[nodiscard]] bool serve_once();
  void accept_all();
  void make_room();
  void advance(UnauthenticatedConnection& one);
  void on_closed(int rank, const absl::Status& why);

  const int size_;
  const JobSecret key_;
  const Admission admission_;
  FileDescriptor listener_;
  FileDescriptor stop_;
  FileDescriptor own_socket_;
  // Used by the thread only:
  // Closed when no other descriptor is free, to accept one connection in its place.
  FileDescriptor spare_;
  ExchangeServer server_;
  std::list<UnauthenticatedConnection> unauthenticated_;
  std::vector<bool> joined_;  // ranks to which acceptance was sent at any time

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<bool> left_;  // guarded by mutex_
  std::thread thread_;
};

// Connects to the store of rank 0, which listens at one of `addresses`. Retries until the deadline.
// Errors: those of prove_to_server; PERMISSION_DENIED (kOwnUser, and another user's process listens
// there); DEADLINE_EXCEEDED with the last error's text.
[[nodiscard]] absl::StatusOr<FileDescriptor> connect_to_store(
    const std::vector<SocketAddress>& addresses, int rank, int size, const JobSecret& key,
    Exchange::Deadline deadline, Admission admission = Admission::kAnybody);

// A process of a job whose store is a TcpStore.
class TcpBootstrap : public StoreBootstrap {
 public:
  // Joins the job: rank 0 passes its store, the other ranks pass a socket to it. Derives the job's
  // secret from `key`. `address` is the address at which this process can be reached, or "".
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<TcpBootstrap>> join(
      BootstrapKind kind, std::unique_ptr<TcpStore> store, FileDescriptor socket, int rank,
      int size, const JobSecret& key, std::string address, Exchange::Deadline deadline);

  [[nodiscard]] std::string listen_address() const override { return address_; }
  // As StoreBootstrap. Also reports the end of rank 0 when the store has closed the connection.
  [[nodiscard]] std::vector<Ended> take_ended() override;
  // Sets an action that finalize() runs after the process has left the store.
  void at_end(std::function<absl::Status()> action) { at_end_ = std::move(action); }

 protected:
  absl::Status leave(Deadline deadline) override;

 private:
  TcpBootstrap(BootstrapKind kind, std::unique_ptr<TcpStore> store, int socket, int rank, int size,
               std::string address);

  std::unique_ptr<TcpStore> store_;
  std::string address_;
  std::function<absl::Status()> at_end_;
  std::atomic<bool> end_of_store_taken_{false};
};

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_BOOTSTRAP_TCP_STORE_H_
