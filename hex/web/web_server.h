// WebServer: the HTTP side of `cariama-hex serve`. It serves one page, which is a part of the
// program, and the requests of this page:
//
//   GET /                   the page, which loads /page.css and /page.js
//   POST /game?swap=1       body: SGF. Returns the game with its variations, and the last position
//                           of its main line: game_json().
//   POST /search?swap=1&seconds=S&choose=1
//                           body: SGF. Searches the last position of its main line and returns the
//                           state of the search after each change, one JSON object per line
//                           (view_json()). Empty lines in between show that the connection exists.
//                           The search ends after S seconds (0: no limit), or when the client
//                           closes the connection.
//                           choose=1: the last line contains the move that the engine would play.
//
// The server has no state of a game: each request contains its game. So tabs are independent of
// each other, and the server has no state of a tab that was closed. The searches of all tabs share
// the engine by turns (search_queue.h).
//
// Refused: names of hosts other than those of is_accepted_host(), pages of other origins, methods
// other than GET, HEAD and POST (405), bodies of more than 1 MiB (413), compressed bodies and
// bodies without a length (411), and searches beyond the limit of the queue. The line and the
// headers of a request may have 64 KiB. A connection carries one request, so that no part of a
// refused request is taken for the next one.
#ifndef CARIAMA_HEX_WEB_WEB_SERVER_H_
#define CARIAMA_HEX_WEB_WEB_SERVER_H_

#include <chrono>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "hex/web/search_queue.h"

namespace cariama::hex {

struct WebServerOptions {
  std::string address = "127.0.0.1";  // an address in digits
  int port = 8017;                    // 0: any free port
  // A client must send its request within this time, and take each part of a response. A client
  // that sends nothing for 5 s loses its connection earlier. Above 0.
  std::chrono::milliseconds request_time{20'000};
};

// Not thread-safe.
class WebServer {
 public:
  // Listens, and starts the threads that answer requests. `queue` must outlive the server. Errors:
  // INVALID_ARGUMENT if the address is none, and those of listening (error.h).
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<WebServer>> start(
      SearchQueue& queue, const WebServerOptions& options = {});
  // Ends all responses that are being sent, and the threads. Blocks until they have ended, usually
  // for less than 0.2 s.
  ~WebServer();
  WebServer(const WebServer&) = delete;
  WebServer& operator=(const WebServer&) = delete;

  // Returns the address of the page: "http://127.0.0.1:8017/".
  [[nodiscard]] std::string url() const;
  [[nodiscard]] int port() const;

 private:
  class Impl;
  explicit WebServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace cariama::hex

#endif  // CARIAMA_HEX_WEB_WEB_SERVER_H_
