#include "hex/web/web_server.h"

#include <httplib.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "dtutils/error.h"
#include "dtutils/internal/start_thread.h"
#include "dtutils/wait.h"
#include "hex/web/web_text.h"

namespace cariama::hex {
namespace internal {
// The files of hex/web/page (cmake/embed_files.cmake).
extern const std::string_view kPageHtml;
extern const std::string_view kPageCss;
extern const std::string_view kPageJs;
}  // namespace internal

namespace {

// Each search that a client waits for, and each other request, occupies one thread. Must exceed
// SearchQueueOptions::most.
constexpr size_t kWebThreads = 40;
constexpr size_t kMaxBody = size_t{1} << 20;
// The library reads and drops a body longer than kMaxBody before it answers, because a browser that
// still sends may not see the answer. For a body longer than this, the server answers immediately.
constexpr size_t kMaxDropped = size_t{16} << 20;
constexpr double kMaxSearchSeconds = 600;
// Limit of the request line and the headers of a request together.
constexpr size_t kMaxHead = size_t{64} << 10;
// A client must send the next byte of its request within this time.
constexpr std::chrono::seconds kMaxSilence{5};
// The server detects a client that has disappeared after this time.
constexpr std::chrono::milliseconds kHeartbeat{100};

// The headers permit resources of this server only, forbid other pages to show the page in a frame,
// and forbid caching.
const httplib::Headers kHeaders = {
    {"Content-Security-Policy",
     "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
     "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"},
    {"X-Content-Type-Options", "nosniff"},
    {"Referrer-Policy", "no-referrer"},
    {"Cross-Origin-Resource-Policy", "same-origin"},
    {"Cross-Origin-Opener-Policy", "same-origin"},
    {"Cache-Control", "no-store"}};

// The connection of one request. The library's own stream limits the time of each read and write,
// so a client that sends or takes a byte now and then could occupy a thread for ever, and it does
// not limit the number of headers.
class RequestStream final : public httplib::Stream {
 public:
  // time: limit for the request, and for each write.
  RequestStream(socket_t socket, std::chrono::milliseconds time, const std::atomic<bool>& stopping)
      : socket_(socket), time_(time), deadline_(deadline_after(time)), stopping_(stopping) {}

  // The head has been read: from here on, the limit of a body is in force.
  void begin_body() { left_ = kMaxDropped; }

  [[nodiscard]] bool is_readable() const override { return at_ < end_ || may_read(); }
  [[nodiscard]] bool is_writable() const override {
    return ready(POLLOUT, deadline_after(time_)) && is_open();
  }
  ssize_t read(char* bytes, size_t size) override {
    if (at_ == end_) {
      if (left_ == 0 || !may_read()) return -1;
      const ssize_t got = ::recv(socket_, buffer_, std::min(sizeof(buffer_), left_), MSG_DONTWAIT);
      if (got <= 0) return got;
      at_ = 0;
      end_ = static_cast<size_t>(got);
      left_ -= end_;
    }
    const size_t taken = std::min(size, end_ - at_);
    std::memcpy(bytes, buffer_ + at_, taken);
    at_ += taken;
    return static_cast<ssize_t>(taken);
  }
  // Writes everything: the library does not repeat a write that was cut short.
  ssize_t write(const char* bytes, size_t size) override {
    const Deadline deadline = deadline_after(time_);
    size_t written = 0;
    while (written < size) {
      if (!ready(POLLOUT, deadline)) return -1;
      const ssize_t sent =
          ::send(socket_, bytes + written, size - written, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent >= 0) {
        written += static_cast<size_t>(sent);
      } else if (errno != EINTR && errno != EAGAIN && errno != EWOULDBLOCK) {
        return -1;
      }
    }
    return static_cast<ssize_t>(size);
  }
  // No handler uses the addresses.
  void get_remote_ip_and_port(std::string&, int&) const override {}
  void get_local_ip_and_port(std::string&, int&) const override {}
  [[nodiscard]] socket_t socket() const override { return socket_; }

 private:
  [[nodiscard]] bool may_read() const {
    return ready(POLLIN, std::min(deadline_, deadline_after(kMaxSilence)));
  }
  // Blocks until one of the events. Returns false after the deadline, and when the server stops.
  [[nodiscard]] bool ready(short events, Deadline deadline) const {
    while (!stopping_.load() && std::chrono::steady_clock::now() < deadline) {
      pollfd fds{socket_, events, 0};
      const int found = ::poll(&fds, 1, static_cast<int>(kHeartbeat.count()));
      if (found > 0) return true;
      if (found < 0 && errno != EINTR) return false;
    }
    return false;
  }
  // Returns false if the client has closed the connection.
  [[nodiscard]] bool is_open() const {
    char byte;
    const ssize_t got = ::recv(socket_, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return got > 0 || (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR));
  }

  const socket_t socket_;
  const std::chrono::milliseconds time_;
  const Deadline deadline_;  // of the request
  const std::atomic<bool>& stopping_;
  size_t left_ = kMaxHead;  // number of bytes that the client may still send
  char buffer_[4096];
  size_t at_ = 0;   // of the next byte in buffer_
  size_t end_ = 0;  // of the bytes in buffer_
};

class RequestServer final : public httplib::Server {
 public:
  RequestServer(std::chrono::milliseconds time, const std::atomic<bool>& stopping)
      : time_(time), stopping_(stopping) {}

 private:
  // The library calls this function for each connection, in one of its threads.
  bool process_and_close_socket(socket_t socket) override {
    RequestStream stream(socket, time_, stopping_);
    bool closed = false;
    const bool served = process_request(stream, /*close_connection=*/true, closed,
                                        [&](httplib::Request&) { stream.begin_body(); });
    ::shutdown(socket, SHUT_RDWR);
    ::close(socket);
    return served;
  }

  const std::chrono::milliseconds time_;
  const std::atomic<bool>& stopping_;
};

void refuse(httplib::Response& response, int code, const std::string& what) {
  response.status = code;
  response.set_content(what + "\n", "text/plain; charset=utf-8");
}

}  // namespace

class WebServer::Impl {
 public:
  Impl(SearchQueue& queue, const WebServerOptions& options)
      : queue_(queue),
        address_(options.address),
        port_(options.port),
        server_(options.request_time, stopping_) {
    server_.set_default_headers(kHeaders);
    server_.set_payload_max_length(kMaxBody);
    server_.set_tcp_nodelay(true);
    // The default of the library is SO_REUSEPORT, with which a second server of the same user gets
    // the same port, and a part of the connections.
    server_.set_socket_options([](socket_t socket) {
      const int yes = 1;
      ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    });
    server_.new_task_queue = [] { return new httplib::ThreadPool(kWebThreads); };
    server_.set_pre_routing_handler([this](const auto& request, auto& response) {
      return accept(request, response) ? httplib::Server::HandlerResponse::Unhandled
                                       : httplib::Server::HandlerResponse::Handled;
    });
    server_.set_exception_handler([](const auto&, auto& response, const std::exception_ptr&) {
      refuse(response, 500, "the request failed");
    });
    serve_file("/", internal::kPageHtml, "text/html; charset=utf-8");
    serve_file("/page.css", internal::kPageCss, "text/css; charset=utf-8");
    serve_file("/page.js", internal::kPageJs, "text/javascript; charset=utf-8");
    server_.Post("/game", [](const httplib::Request& request, httplib::Response& response) {
      if (const auto game = read_game(request, response)) {
        response.set_content(game_json(*game), "application/json");
      }
    });
    server_.Post("/search", [this](const httplib::Request& request, httplib::Response& response) {
      search(request, response);
    });
  }
  ~Impl() {
    stopping_.store(true);
    server_.stop();
    if (listener_.joinable()) listener_.join();
  }

  absl::Status listen() {
    const int wanted = port_;
    errno = 0;
    if (port_ == 0) {
      port_ = server_.bind_to_any_port(address_);
    } else if (!server_.bind_to_port(address_, port_)) {
      port_ = -1;
    }
    if (port_ < 0) {
      const int error = errno;
      return make_errno_error(error, ErrorScope::kProcess,
                              absl::StrCat("cannot listen at port ", wanted, " of ", address_),
                              error == EADDRNOTAVAIL
                                  ? "name an address that this host has"
                                  : "choose another port with --port, or a free one with --port 0");
    }
    absl::StatusOr<std::thread> thread = cariama::internal::start_quiet_thread([this] {
      try {
        server_.listen_after_bind();
      } catch (const std::exception&) {
        // The threads that answer could not be started.
      }
      listener_ended_.store(true);
    });
    if (!thread.ok()) return thread.status();
    listener_ = *std::move(thread);
    // Without this wait, a stop() that comes before the thread listens would have no effect.
    while (!server_.is_running() && !listener_ended_.load()) std::this_thread::yield();
    if (!listener_ended_.load()) return absl::OkStatus();
    return make_error(absl::StatusCode::kResourceExhausted, ErrorScope::kProcess,
                      absl::StrCat("the page's ", kWebThreads, " threads cannot be started"),
                      "raise ulimit -u");
  }
  [[nodiscard]] int port() const { return port_; }
  [[nodiscard]] std::string url() const {
    const bool v6 = address_.find(':') != std::string::npos;
    return absl::StrCat("http://", v6 ? "[" : "", address_, v6 ? "]" : "", ":", port_, "/");
  }

 private:
  void serve_file(const char* path, std::string_view text, const char* type) {
    server_.Get(path, [text, type](const httplib::Request&, httplib::Response& response) {
      response.set_content(text.data(), text.size(), type);
    });
  }

  // Returns true if the request may be handled. Otherwise the response contains the reason.
  [[nodiscard]] bool accept(const httplib::Request& request, httplib::Response& response) const {
    const std::string host = request.get_header_value("Host");
    if (request.get_header_value_count("Host") != 1 || !is_accepted_host(host, address_)) {
      refuse(response, 403,
             "this name of the host is refused: use the address that "
             "cariama-hex serve has printed");
      return false;
    }
    // Browsers send Origin with each POST. A request without it is from another program.
    const size_t origins = request.get_header_value_count("Origin");
    const std::string site = request.get_header_value("Sec-Fetch-Site");
    const bool foreign = request.method != "GET" && !site.empty() && site != "same-origin";
    if (origins > 1 || foreign ||
        (origins == 1 && !is_accepted_origin(request.get_header_value("Origin"), host))) {
      refuse(response, 403, "requests of other pages are refused");
      return false;
    }
    // The library would read a body of PUT, PATCH and DELETE, too, before it answers with 404.
    if (request.method != "GET" && request.method != "HEAD" && request.method != "POST") {
      response.set_header("Allow", "GET, HEAD, POST");
      refuse(response, 405, "the server has no such method");
      return false;
    }
    // The library limits neither the size of a body without a length, nor that of an uncompressed
    // body.
    if (request.has_header("Transfer-Encoding") || request.has_header("Content-Encoding")) {
      refuse(response, 411, "the body needs a Content-Length, and no encoding");
      return false;
    }
    return request.method != "POST" || accept_body(request, response);
  }

  // Checks the head of a POST, before the library reads the body.
  [[nodiscard]] static bool accept_body(const httplib::Request& request,
                                        httplib::Response& response) {
    if (!request.has_header("Content-Length")) {
      // The library would read until the client closes the connection, without a limit.
      refuse(response, 411, "the body needs a Content-Length");
      return false;
    }
    uint64_t length = 0;
    if (request.get_header_value_count("Content-Length") != 1 ||
        !absl::SimpleAtoi(request.get_header_value("Content-Length"), &length)) {
      refuse(response, 400, "the Content-Length must be one number");
      return false;
    }
    if (length > kMaxDropped) {
      refuse(response, 413, absl::StrCat("the body may have at most ", kMaxBody, " bytes"));
      return false;
    }
    if (!std::string_view(request.get_header_value("Content-Type")).starts_with("text/plain")) {
      refuse(response, 415, "the body must be SGF as text/plain");
      return false;
    }
    return true;
  }

  static std::optional<SgfGame> read_game(const httplib::Request& request,
                                          httplib::Response& response) {
    absl::StatusOr<SgfGame> game =
        parse_web_game(request.body, request.get_param_value("swap") == "1");
    if (game.ok()) return *std::move(game);
    refuse(response, 400, std::string(game.status().message()));
    return std::nullopt;
  }

  void search(const httplib::Request& request, httplib::Response& response) {
    const std::optional<SgfGame> game = read_game(request, response);
    if (!game) return;
    const Board board = to_record(*game).board();
    if (board.winner() || !board.empty().any()) {
      refuse(response, 400, "the game has ended");
      return;
    }
    SearchOrder order{board, 0, request.get_param_value("choose") == "1"};
    if (request.has_param("seconds") &&
        (!absl::SimpleAtod(request.get_param_value("seconds"), &order.seconds) ||
         !(order.seconds >= 0 && order.seconds <= kMaxSearchSeconds))) {
      refuse(response, 400, absl::StrCat("seconds must be from 0 to ", kMaxSearchSeconds));
      return;
    }
    const std::shared_ptr<SearchQueue::Search> search = queue_.submit(order);
    if (search == nullptr) {
      refuse(response, 503, "too many searches: close a tab, or wait");
      return;
    }
    response.set_chunked_content_provider(
        "application/x-ndjson",
        [this, search, board, version = uint64_t{0}](size_t, httplib::DataSink& sink) mutable {
          return send_view(*search, board, version, sink);
        },
        [this, search](bool) { queue_.cancel(*search); });
  }

  // Sends the next state of the search. Returns false if the client is gone.
  bool send_view(const SearchQueue::Search& search, const Board& board, uint64_t& version,
                 httplib::DataSink& sink) {
    const SearchView view = queue_.wait(search, version, deadline_after(kHeartbeat));
    if (stopping_.load() || !sink.is_writable()) return false;
    const bool changed = view.version != std::exchange(version, view.version);
    const std::string line = changed ? view_json(board, view) + "\n" : "\n";
    if (!sink.write(line.data(), line.size())) return false;
    if (view.ended) sink.done();
    return true;
  }

  SearchQueue& queue_;
  const std::string address_;
  int port_;
  std::atomic<bool> stopping_{false};
  RequestServer server_;
  std::thread listener_;
  std::atomic<bool> listener_ended_{false};
};

absl::StatusOr<std::unique_ptr<WebServer>> WebServer::start(SearchQueue& queue,
                                                            const WebServerOptions& options) {
  if (!is_ip_address(options.address)) {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                      absl::StrCat("'", options.address, "' is not an address in digits"));
  }
  auto impl = std::make_unique<Impl>(queue, options);
  if (absl::Status status = impl->listen(); !status.ok()) return status;
  return std::unique_ptr<WebServer>(new WebServer(std::move(impl)));
}

WebServer::WebServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
WebServer::~WebServer() = default;
std::string WebServer::url() const { return impl_->url(); }
int WebServer::port() const { return impl_->port(); }

}  // namespace cariama::hex
