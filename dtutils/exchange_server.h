// The store behind an Exchange: serves the processes of a job over stream sockets, one for each.
// Has no thread: its owner polls, together with what else it watches.
//
//   ExchangeServer server(labels, [&](int rank, const absl::Status& why) { ... });
//   server.connect(rank, socket);                          // for each rank
//   while (...) {
//     std::vector<pollfd> entries = own_entries;
//     server.append_polled(entries);
//     poll(entries.data(), entries.size(), timeout);
//     server.serve(std::span(entries).subspan(own_entries.size()));
//   }
#ifndef CARIAMA_DTUTILS_EXCHANGE_SERVER_H_
#define CARIAMA_DTUTILS_EXCHANGE_SERVER_H_

#include <poll.h>

#include <functional>
#include <memory>
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
  // Says that the connection of `rank` is closed: OK if the other end closed it, INVALID_ARGUMENT
  // if it was closed here since what came was malformed. The rank counts as running until
  // rank_ended(), which may be called from here.
  using OnClosed = std::function<void(int rank, const absl::Status& why)>;

  // labels[rank] is what errors call that rank.
  ExchangeServer(std::vector<std::string> labels, OnClosed on_closed);
  ~ExchangeServer();
  ExchangeServer(const ExchangeServer&) = delete;
  ExchangeServer& operator=(const ExchangeServer&) = delete;

  // Serves `rank` over `socket` from now on; takes the socket over. Precondition: the rank was not
  // connected before.
  void connect(int rank, int socket);
  [[nodiscard]] bool connected(int rank) const;

  // Puts in the name of `rank`, as Exchange::put would.
  [[nodiscard]] absl::Status put(int rank, std::string_view key, std::string_view value);

  // Appends what has to be polled, one entry for each connected rank.
  void append_polled(std::vector<pollfd>& entries);
  // Takes and answers what has come. `polled`: the entries that the last append_polled() appended,
  // after poll().
  void serve(std::span<const pollfd> polled);

  // Notes that `rank` has ended, after taking what it sent before; `how` completes the sentence
  // "LABEL ...". Whoever waits for it gets an error; what it put stays.
  void rank_ended(int rank, std::string how);

  // Closes all connections and forgets them, telling nobody: for a process forked from the
  // server's.
  void abandon();

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace cariama

#endif  // CARIAMA_DTUTILS_EXCHANGE_SERVER_H_
