// The router's part of routed calls (routed_aggregator.h): takes the calls that arrive at a worker
// for other threads, and sends them on.
//
// A routed call is encoded at its sender, and decoded at its destination only:
//   first hop   CallHeader of forward_call | RoutedHead  | closure and arguments
//   second hop  CallHeader of run_forwarded_call     | ArrivalHead | closure and arguments
// The length is that of the CallHeader, so both hops have equal lengths. The origin of the first
// hop is the sender of its channel. On both hops, the NotifyTarget of a call whose end is to be
// reported stands behind the CallHeader, as in every call (call_encoding.h).
#ifndef CARIAMA_RIUTILS_INTERNAL_FORWARDER_H_
#define CARIAMA_RIUTILS_INTERNAL_FORWARDER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "dsfabric/call_encoding.h"
#include "dsfabric/fabric.h"
#include "dtutils/statistics.h"

namespace cariama::internal {

class FabricChannel;
struct RoutedHead;

// The forwarding channels of one worker. Used by the thread that currently runs the worker's calls,
// except statistics().
//
// Memory. Each forwarding channel defers at most kDeferredChunks chunks of calls. A call that
// exceeds this is postponed: it stays in the chunk in which it arrived, and so do all calls behind
// it, until the forwarding channel has room. The sender then finds its chunks full, as with any
// slow receiver. Nothing is lost, and nothing is reordered.
class Forwarder {
 public:
  // A channel defers this many of its chunks' bytes.
  static constexpr uint64_t kDeferredChunks = 8;

  struct Statistics {
    uint64_t forwarded = 0;  // calls
    uint64_t postponed = 0;  // attempts to forward a call that did not fit
    uint64_t lost = 0;       // calls whose destination cannot be reached any more
    uint64_t channels = 0;
    uint64_t buffer_bytes = 0;  // chunks of these channels, in their destinations
  };

  Forwarder(Fabric& fabric, uint32_t index);
  ~Forwarder();
  Forwarder(const Forwarder&) = delete;
  Forwarder& operator=(const Forwarder&) = delete;

  // Forwards a routed call. Sets the outcome of `call`: done, malformed, or postponed. A call for
  // which there is no memory is postponed, unless its channel has accepted it already.
  void forward(const RoutedHead& head, IncomingCall& call);
  // Publishes the calls that were forwarded since the last flush(). Never waits. After an exception
  // (no memory) the next flush() publishes them.
  void flush() {
    if (!touched_.empty()) flush_touched();
  }
  // A process or a forwarding channel has failed: makes report_failures() tell the senders of calls
  // that were forwarded to the process that these may be lost.
  void want_report() { report_due_ = true; }
  // After an exception (no memory) the next call of this function repeats the reports.
  void report_failures() {
    if (report_due_) [[unlikely]]
      report_all_failures();
  }
  // Destroys the channels.
  void disconnect();
  // Thread-safe.
  [[nodiscard]] Statistics statistics() const;
  [[nodiscard]] const Counter& forwarded() const { return forwarded_; }
  [[nodiscard]] const Counter& postponed() const { return postponed_; }
  [[nodiscard]] const Counter& lost() const { return lost_; }

 private:
  struct Entry {
    std::shared_ptr<FabricChannel> channel;
    uint32_t name = 0;  // RoutedHead::destination
    bool touched = false;
    uint32_t last_origin = UINT32_MAX;  // rank of the last call's sender
    std::set<uint32_t> origins{};       // ranks of all senders
  };
  using Key = std::pair<uint32_t, uint32_t>;  // ranks of origin and destination

  [[nodiscard]] Entry& entry(const RoutedHead& head);
  // Forwards a call, and sets `written` when its channel has accepted it.
  void forward(Entry& to, const RoutedHead& head, IncomingCall& call, bool& written);
  void postpone(IncomingCall& call);
  void flush_touched();
  void report_all_failures();
  void lose(uint32_t origin, uint32_t destination, const absl::Status& why);

  Fabric& fabric_;
  const uint32_t index_;
  mutable std::mutex mutex_;           // guards changes of entries_
  std::map<uint32_t, Entry> entries_;  // by RoutedHead::destination
  std::array<Entry*, 64> recent_{};
  std::vector<Entry*> touched_;  // entries with calls that are not published
  std::set<Key> reported_;       // losses of which the origin was told
  bool report_due_ = false;
  Counter forwarded_;
  Counter postponed_;
  Counter lost_;
};

}  // namespace cariama::internal

#endif  // CARIAMA_RIUTILS_INTERNAL_FORWARDER_H_
