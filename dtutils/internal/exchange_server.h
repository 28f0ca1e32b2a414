// The store behind an Exchange: serves the processes of a job, each over its own stream socket. The
// server has no thread: its owner polls the sockets, together with its other descriptors.
//
//   ExchangeServer server(labels, [&](int rank, const absl::Status& why) { ... });
//   server.connect(rank, socket);                          // for each rank
//   while (...) {
//     std::vector<pollfd> entries = own_entries;
//     server.append_polled(entries);
//     poll(entries.data(), entries.size(), timeout);
//     server.serve(std::span(entries).subspan(own_entries.size()));
//   }
#ifndef CARIAMA_DTUTILS_INTERNAL_EXCHANGE_SERVER_H_
#define CARIAMA_DTUTILS_INTERNAL_EXCHANGE_SERVER_H_

#include <poll.h>

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "dtutils/export.h"

namespace cariama {

// Thread-compatible. Never waits.
class CARIAMA_DTUTILS_EXPORT ExchangeServer {
 public:
  // Reports that the connection of `rank` is closed. `why` is OK if the other end closed it, and
  // INVALID_ARGUMENT if the server closed it because it received malformed data, and
  // RESOURCE_EXHAUSTED if it had no memory for a message from or to the rank. The rank counts as
  // running until rank_ended() is called; this callback may call it. After std::bad_alloc the next
  // serve() calls it again.
  using OnClosed = std::function<void(int rank, const absl::Status& why)>;

  // Error texts refer to a rank as labels[rank].
  ExchangeServer(std::vector<std::string> labels, OnClosed on_closed);
  ~ExchangeServer();
  ExchangeServer(const ExchangeServer&) = delete;
  ExchangeServer& operator=(const ExchangeServer&) = delete;

  // Starts to serve `rank` over `socket`. Takes ownership of the socket. Requires: the rank was not
  // connected before.
  void connect(int rank, int socket);
  [[nodiscard]] bool connected(int rank) const;

  // Publishes a value for `rank`, as if that rank had called Exchange::put.
  [[nodiscard]] absl::Status put(int rank, std::string_view key, std::string_view value);

  // Returns the value that `rank` has published under `key`, or nullopt.
  [[nodiscard]] std::optional<std::string> value(int rank, std::string_view key) const;

  // Appends one pollfd entry for each connected rank.
  void append_polled(std::vector<pollfd>& entries);
  // Receives and answers the requests that are readable. `polled`: the entries that the last
  // append_polled() appended, after poll(). Throws no std::bad_alloc: the connection for whose
  // message there is no memory is closed, and the others are served.
  void serve(std::span<const pollfd> polled);
  // Returns true if serve() must be called again soon, also if no socket is readable: a connection
  // is closed, and there was no memory to report that.
  [[nodiscard]] bool has_unreported() const;

  // Records that the process of `rank` has ended, after receiving the data that it sent before.
  // `how` completes the sentence "LABEL ...". Ranks that wait for a value or a fence of this rank
  // get an error; the values that it put stay available. Returns true if the rank was watching the
  // ends of the other ranks when it ended (Exchange::watch_ends()). Throws std::bad_alloc, and then
  // has recorded nothing.
  bool rank_ended(int rank, std::string how);

  // Closes and forgets all connections without notifying the other ends. For a process forked from
  // the server's process.
  void abandon();

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace cariama

#endif  // CARIAMA_DTUTILS_INTERNAL_EXCHANGE_SERVER_H_
