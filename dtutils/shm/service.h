// The service thread of a device: hands its control segment and regions to peers, takes in what
// peers hand out, notices the end of peer processes, and drives operations that wait for a
// receiver. It sleeps untimed unless something waits.
#ifndef CARIAMA_DTUTILS_SHM_SERVICE_H_
#define CARIAMA_DTUTILS_SHM_SERVICE_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
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
  // What the thread does for the device. Called by the service thread.
  class Client {
   public:
    virtual ~Client() = default;
    // Tries what waits. Returns whether anything still does: then it is called again in 1 ms.
    virtual bool progress() = 0;
    // The process behind `link` has ended, all threads of it.
    virtual void process_ended(const std::shared_ptr<Link>& link) = 0;
  };

  Service(std::shared_ptr<ControlSegment> control, RegionTable* regions, Client* client)
      : control_(std::move(control)), regions_(regions), client_(client) {}
  ~Service();
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

  // Listens, and starts the thread; when it returns, the thread holds the robust lock.
  [[nodiscard]] absl::Status start();

  // Makes the thread call progress() now.
  void kick();

  // Tells all connected peers. Never blocks on a peer.
  void push_region(uint64_t remote_key) { push(MessageType::kRegion, remote_key); }
  void push_revoked(uint64_t remote_key) { push(MessageType::kRevoked, remote_key); }

  void add_link(const std::shared_ptr<Link>& link);
  void remove_link(const Link* link);

 private:
  struct Item {
    MessageType type;
    uint64_t key;
  };
  // A peer that mapped, or is about to map, our memory.
  struct Connection {
    FileDescriptor socket;
    bool greeted = false;
    bool waits_for_room = false;
    std::deque<Item> backlog;
  };

  void run();
  void accept_peers();
  void push(MessageType type, uint64_t key);
  // These three: mutex_ is held. False: the connection is to be closed.
  bool serve(Connection& connection);
  bool flush(Connection& connection);
  void close_connection(int socket);
  void on_link_event(int descriptor);
  void watch(int descriptor, uint32_t events, int operation);

  std::shared_ptr<ControlSegment> control_;
  RegionTable* regions_;
  Client* client_;
  FileDescriptor listener_;
  FileDescriptor epoll_;
  FileDescriptor wake_;
  std::thread thread_;
  std::atomic<bool> started_{false};

  std::mutex mutex_;
  bool stop_ = false;
  std::map<int, Connection> connections_;
  std::map<int, std::shared_ptr<Link>> links_;  // by socket and by pidfd
};

}  // namespace cariama::shm

#endif  // CARIAMA_DTUTILS_SHM_SERVICE_H_
