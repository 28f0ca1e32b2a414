// The service thread of a device. It sends the device's control segment and regions to peers,
// processes the messages of peers' service threads, detects the end of peer processes, and retries
// operations that wait for a posted receive. It sleeps without a timeout unless such operations
// exist.
#ifndef CARIAMA_DTUTILS_SHM_SERVICE_H_
#define CARIAMA_DTUTILS_SHM_SERVICE_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "absl/status/status.h"
#include "dtutils/shm/control_segment.h"
#include "dtutils/shm/link.h"
#include "dtutils/shm/region_table.h"
#include "dtutils/shm/wire.h"

namespace cariama::shm {

// Thread-safe.
class Service {
 public:
  // Functions of the device that the service thread calls.
  class Client {
   public:
    virtual ~Client() = default;
    // Retries deferred operations. Returns true if some are still deferred; then it is called again
    // after 1 ms.
    virtual bool progress() = 0;
    // The process behind `link` has ended, with all its threads. Called again after std::bad_alloc,
    // as the function below.
    virtual void process_ended(const std::shared_ptr<Link>& link) = 0;
    // The peer's service has closed its connection to the link. No more messages arrive.
    virtual void connection_ended(const std::shared_ptr<Link>& link) = 0;
  };

  Service(std::shared_ptr<ControlSegment> control, RegionTable* regions, Client* client)
      : control_(std::move(control)), regions_(regions), client_(client) {}
  ~Service() { stop(); }
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

  // Listens, and starts the thread. When it returns, the thread holds the robust lock.
  [[nodiscard]] absl::Status start();

  // Parts of start(), for a service without a thread: its caller calls listen() once, and then
  // handle_ready() when a peer may have sent something. handle_ready() handles the events that have
  // occurred, without waiting for others, and returns their number. Not together with start().
  [[nodiscard]] absl::Status listen();
  [[nodiscard]] size_t handle_ready() { return handle_events(0).count; }

  // Stops and joins the thread. The other functions may still be called afterwards, and have no
  // effect.
  void stop();

  // Makes the thread call progress() now.
  void kick();

  // Announce a registered or deregistered region to all connected peers. Never block on a peer.
  void push_region(uint64_t remote_key) { push(MessageType::kRegion, remote_key); }
  void push_revoked(uint64_t remote_key) { push(MessageType::kRevoked, remote_key); }

  // Reports events of the link to it, and the end of its process to the client. Error: the kernel
  // has no memory for that, or the user's limit of watched descriptors is met.
  [[nodiscard]] absl::Status add_link(const std::shared_ptr<Link>& link);
  void remove_link(const Link* link);

 private:
  struct Item {
    MessageType type;
    uint64_t key;
  };
  // A connected peer, which has mapped or will map this device's memory.
  struct Connection {
    FileDescriptor socket;
    bool greeted = false;
    bool welcome_due = false;
    bool waits_for_room = false;
    std::deque<Item> backlog;
  };

  struct Handled {
    size_t count = 0;
    bool all = true;  // false: there was no memory for one, which epoll_wait() reports again
  };

  void run();
  // Waits for events, at most `timeout_ms` (-1: without limit), and handles them.
  Handled handle_events(int timeout_ms);
  void on_event(int descriptor);
  void accept_peers();
  // No descriptor is left for the next connection. Accepts none for a while.
  void on_missing_descriptor();
  // Tells the peers whose connections wait that they are refused. Does not wait for them.
  void refuse_peers();
  void push(MessageType type, uint64_t key);
  // The following four functions require that mutex_ is locked. serve() and send_backlog() return
  // false if the connection must be closed.
  bool serve(Connection& connection);
  bool send_backlog(Connection& connection);
  void close_connection(int socket);
  void watch_for_room(Connection& connection);
  void on_link_event(int descriptor);
  // Returns false, with errno, if the kernel refuses.
  bool watch(int descriptor, uint32_t events, int operation);

  std::shared_ptr<ControlSegment> control_;
  RegionTable* regions_;
  Client* client_;
  FileDescriptor listener_;
  FileDescriptor epoll_;
  FileDescriptor wake_;
  // Closed when no other descriptor is left, to accept the connections that are refused.
  FileDescriptor spare_;
  // The time at which accept4() found no descriptor. Reset when it finds one.
  std::optional<std::chrono::steady_clock::time_point> missing_since_;
  // Set while the listener is not watched: the time at which it is again.
  std::optional<std::chrono::steady_clock::time_point> accept_again_;
  std::thread thread_;
  std::atomic<bool> started_{false};

  std::mutex mutex_;
  bool stop_ = false;
  std::map<int, Connection> connections_;
  std::map<int, std::shared_ptr<Link>> links_;  // indexed by socket and by pidfd
};

}  // namespace cariama::shm

#endif  // CARIAMA_DTUTILS_SHM_SERVICE_H_
