#include "hex/web/web_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/hex/testing/flat_engine.h"

namespace cariama::hex {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// A connection to a server on this machine. A wait for data ends after a minute.
class Client {
 public:
  explicit Client(int port) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const timeval patience{60, 0};
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }
  ~Client() { leave(); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  void leave() {
    if (socket_ >= 0) ::close(socket_);
    socket_ = -1;
  }
  void say(std::string_view text) {
    while (!text.empty()) {
      const ssize_t sent = ::send(socket_, text.data(), text.size(), MSG_NOSIGNAL);
      if (sent <= 0) return;  // the server need not read the rest of a refused request
      text.remove_prefix(static_cast<size_t>(sent));
    }
  }
  // Reads until the answer contains `end`, or until the server closes the connection.
  std::string hear(std::string_view end = "\n\n\n never \n\n\n") {
    char buffer[4096];
    const Deadline deadline = deadline_after(std::chrono::seconds(60));
    while (heard_.find(end) == std::string::npos && std::chrono::steady_clock::now() < deadline) {
      const ssize_t got = ::recv(socket_, buffer, sizeof buffer, 0);
      if (got <= 0) break;
      heard_.append(buffer, static_cast<size_t>(got));
    }
    return heard_;
  }

 private:
  int socket_;
  std::string heard_;
};

class WebServerTest : public ::testing::Test {
 protected:
  WebServerTest() {
    ::signal(SIGPIPE, SIG_IGN);
    thread_ = std::thread([this] { queue_.run(stop_); });
    auto server = WebServer::start(queue_, {.port = 0});
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  ~WebServerTest() override {
    stop_ = true;
    thread_.join();
    server_.reset();
  }

  // Returns a request with the header fields that browsers send, and further ones.
  [[nodiscard]] std::string get(const std::string& path, const std::string& fields = "") const {
    return "GET " + path + " HTTP/1.1\r\nHost: " + host() + "\r\n" + fields + "\r\n";
  }
  [[nodiscard]] std::string post(const std::string& path, const std::string& body,
                                 const std::string& fields = "") const {
    return "POST " + path + " HTTP/1.1\r\nHost: " + host() + "\r\nOrigin: http://" + host() +
           "\r\nContent-Type: text/plain;charset=UTF-8\r\nContent-Length: " +
           std::to_string(body.size()) + "\r\n" + fields + "\r\n" + body;
  }
  [[nodiscard]] std::string host() const { return "127.0.0.1:" + std::to_string(server_->port()); }
  // Sends a request and returns the whole answer.
  [[nodiscard]] std::string ask(const std::string& request) const {
    Client client(server_->port());
    client.say(request);
    return client.hear();
  }
  static std::string replaced(std::string text, const std::string& from, const std::string& to) {
    return text.replace(text.find(from), from.size(), to);
  }

  testing::FlatEngine engine_;
  // Turns without end: an analysis ends only when it is cancelled.
  SearchQueue queue_{engine_, [](double) { return std::vector<ProcessLoad>{{}}; },
                     SearchQueueOptions{.slice = 0.02, .interval = 0.005, .turn = 1e9}};
  std::atomic<bool> stop_{false};
  std::thread thread_;
  std::unique_ptr<WebServer> server_;
};

TEST_F(WebServerTest, ServesThePage) {
  EXPECT_EQ(server_->url(), "http://" + host() + "/");
  const std::string page = ask(get("/"));
  EXPECT_THAT(page, StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(page, HasSubstr("<title>Cariama Hex</title>"));
  EXPECT_THAT(page, HasSubstr("Content-Security-Policy: default-src 'none'"));
  EXPECT_THAT(ask(get("/page.css")), HasSubstr("Content-Type: text/css"));
  EXPECT_THAT(ask(get("/page.js")), HasSubstr("Content-Type: text/javascript"));
  EXPECT_THAT(ask(get("/other")), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(ask(get("/../../etc/passwd")), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(ask(get("/game")), StartsWith("HTTP/1.1 404"));
}

TEST_F(WebServerTest, ReadsGames) {
  const std::string answer = ask(post("/game?swap=1", "(;SZ[5];B[c3])"));
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(answer, HasSubstr("\"position\":{\"black\":[\"c3\"],\"white\":[],\"to_move\":\"w\","
                                "\"may_swap\":true"));
}

TEST_F(WebServerTest, SearchesUntilTheLimit) {
  const std::string answer = ask(post("/search?seconds=0.05&choose=1", "(;SZ[5])"));
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(answer, HasSubstr("application/x-ndjson"));
  EXPECT_THAT(answer, HasSubstr("\"ended\":true"));
  EXPECT_THAT(answer, HasSubstr("\"chosen\":\""));
}

TEST_F(WebServerTest, RefusesForeignHostsAndOrigins) {
  for (const char* name : {"evil.example", "evil.example:80", "192.168.0.1", "127.0.0.1.example"}) {
    EXPECT_THAT(ask(replaced(get("/"), host(), name)), StartsWith("HTTP/1.1 403")) << name;
  }
  EXPECT_THAT(ask("GET / HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 403"));
  EXPECT_THAT(ask(get("/", "Host: evil.example\r\n")), StartsWith("HTTP/1.1 403"));
  for (const char* origin :
       {"http://evil.example", "null", "https://127.0.0.1", "http://localhost"}) {
    EXPECT_THAT(ask(replaced(post("/game", "(;SZ[5])"), "http://" + host(), origin)),
                StartsWith("HTTP/1.1 403"))
        << origin;
    EXPECT_THAT(ask(get("/", "Origin: " + std::string(origin) + "\r\n")),
                StartsWith("HTTP/1.1 403"));
  }
  EXPECT_THAT(ask(post("/game", "(;SZ[5])", "Origin: http://evil.example\r\n")),
              StartsWith("HTTP/1.1 403"));
  EXPECT_THAT(ask(post("/game", "(;SZ[5])", "Sec-Fetch-Site: cross-site\r\n")),
              StartsWith("HTTP/1.1 403"));
  // A link on a foreign page may lead to the page, and other programs send no Origin.
  EXPECT_THAT(ask(get("/", "Sec-Fetch-Site: cross-site\r\n")), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(ask(replaced(post("/game", "(;SZ[5])"), "Origin: http://" + host() + "\r\n", "")),
              StartsWith("HTTP/1.1 200"));
  EXPECT_EQ(engine_.searches, 0);
}

TEST_F(WebServerTest, RefusesMalformedRequests) {
  for (const char* body : {"", "nonsense", "(;SZ[2])", "(;SZ[5];B[z9])", "(;SZ[5];B[a1];W[a1])"}) {
    EXPECT_THAT(ask(post("/game", body)), StartsWith("HTTP/1.1 400")) << body;
    EXPECT_THAT(ask(post("/search", body)), StartsWith("HTTP/1.1 400")) << body;
  }
  for (const char* seconds : {"x", "-1", "1e9", "nan", ""}) {
    EXPECT_THAT(ask(post("/search?seconds=" + std::string(seconds), "(;SZ[5])")),
                StartsWith("HTTP/1.1 400"))
        << seconds;
  }
  EXPECT_THAT(ask(post("/search", "(;SZ[3]AB[b1][b2][b3])")), HasSubstr("the game has ended"));
  const std::string good = post("/game", "(;SZ[5])");
  EXPECT_THAT(ask(replaced(good, "text/plain", "multipart/form-data; boundary=x")),
              StartsWith("HTTP/1.1 415"));
  EXPECT_THAT(ask(replaced(good, "text/plain", "application/x-www-form-urlencoded")),
              StartsWith("HTTP/1.1 415"));
  EXPECT_THAT(ask(post("/game", "(;SZ[5])", "Content-Encoding: gzip\r\n")),
              StartsWith("HTTP/1.1 411"));
  EXPECT_THAT(ask(replaced(good, "Content-Length: 8", "Transfer-Encoding: chunked")),
              StartsWith("HTTP/1.1 411"));
  EXPECT_THAT(ask(post("/game", std::string((size_t{1} << 20) + 1, ' '))),
              StartsWith("HTTP/1.1 413"));
  EXPECT_THAT(ask("\x16\x03\x01 not HTTP\r\n\r\n"), Not(HasSubstr("HTTP/1.1 200")));
  EXPECT_THAT(ask(good), StartsWith("HTTP/1.1 200"));  // the server is unharmed
  EXPECT_EQ(engine_.searches, 0);
}

// The library would read a body without a length until the client closes the connection. The client
// here sends none and waits for the answer.
TEST_F(WebServerTest, RefusesBodiesWithoutALimit) {
  const std::string good = post("/game", "(;SZ[5])");
  const auto with_length = [&](const std::string& fields) {
    return ask(replaced(good, "Content-Length: 8\r\n", fields));
  };
  EXPECT_THAT(with_length(""), StartsWith("HTTP/1.1 411"));
  EXPECT_THAT(with_length("Transfer-Encoding: chunked\r\n"), StartsWith("HTTP/1.1 411"));
  for (const char* length : {"x", "-1", "8x", "99999999999999999999999"}) {
    EXPECT_THAT(with_length("Content-Length: " + std::string(length) + "\r\n"),
                StartsWith("HTTP/1.1 400"))
        << length;
  }
  EXPECT_THAT(with_length("Content-Length: 8\r\nContent-Length: 8\r\n"),
              StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(with_length("Content-Length: 1000000000000\r\n"), StartsWith("HTTP/1.1 413"));
  for (const char* method : {"PUT", "PATCH", "DELETE"}) {
    const std::string answer = ask(replaced(good, "POST", method));
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 405")) << method;
    EXPECT_THAT(answer, HasSubstr("Allow: GET, HEAD, POST")) << method;
  }
  EXPECT_THAT(ask(good), StartsWith("HTTP/1.1 200"));
}

// A client that sends a byte now and then does not occupy a thread for ever.
TEST_F(WebServerTest, ASlowRequestEnds) {
  const auto server =
      WebServer::start(queue_, {.port = 0, .request_time = std::chrono::milliseconds(500)});
  ASSERT_TRUE(server.ok()) << server.status();
  const auto start = std::chrono::steady_clock::now();
  Client client((*server)->port());
  std::atomic<bool> ended{false};
  std::thread sender([&] {
    client.say("GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ");
    while (!ended) {
      client.say("x");
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  });
  EXPECT_THAT(client.hear(), Not(HasSubstr("HTTP/1.1 200")));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(40));
  ended = true;
  sender.join();
}

TEST_F(WebServerTest, TheHeadOfARequestIsLimited) {
  std::string fields;
  for (int i = 0; i < 1000; ++i) {
    fields += "X-" + std::to_string(i) + ": " + std::string(1000, 'x') + "\r\n";
  }
  EXPECT_THAT(ask(get("/", fields)), Not(HasSubstr("HTTP/1.1 200")));
  EXPECT_THAT(ask(get("/", "X: " + std::string(4000, 'x') + "\r\n")), StartsWith("HTTP/1.1 200"));
}

// A foreign page may post a body that contains a request. The server must not execute it. The inner
// request begins behind the 4 KiB that the server reads immediately with the head of the outer one.
TEST_F(WebServerTest, TheBodyOfARefusedRequestIsNoRequest) {
  const std::string inner =
      replaced(post("/game", "(;SZ[5])"), "Origin: http://" + host() + "\r\n", "");
  const auto refused = [&](size_t padding) {
    return replaced(post("/search", std::string(padding, ' ') + inner), "http://" + host(),
                    "http://evil.example");
  };
  const size_t head = refused(1000).find(std::string(1000, ' '));
  const std::string answer = ask(refused(4096 - head));
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 403"));
  EXPECT_THAT(answer, Not(HasSubstr("HTTP/1.1 200")));
}

// Without the end of the first search, the second one would wait for ever.
TEST_F(WebServerTest, AClientThatDisappearsStopsItsSearch) {
  Client first(server_->port());
  first.say(post("/search", "(;SZ[9])"));
  EXPECT_THAT(first.hear("\"move\":"), AllOf(HasSubstr("\"ended\":false"), HasSubstr("\"move\":")));
  Client second(server_->port());
  second.say(post("/search?seconds=0.01", "(;SZ[7])"));
  EXPECT_THAT(second.hear("\"ahead\":1"), HasSubstr("\"ahead\":1"));
  first.leave();
  EXPECT_THAT(second.hear(), HasSubstr("\"ended\":true"));
}

// All clients get a result at the same time as plain requests are answered.
TEST_F(WebServerTest, ManyClientsAtOnce) {
  constexpr int kClients = 20;
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < kClients; ++i) {
    clients.push_back(std::make_unique<Client>(server_->port()));
    const std::string size = std::to_string(3 + i % 10);
    clients.back()->say(post("/search?seconds=0.02&choose=1", "(;SZ[" + size + "])"));
    EXPECT_THAT(ask(post("/game", "(;SZ[5])")), StartsWith("HTTP/1.1 200"));
  }
  for (const auto& client : clients) EXPECT_THAT(client->hear(), HasSubstr("\"chosen\":\""));
}

TEST_F(WebServerTest, TooManySearchesAreRefused) {
  std::vector<std::unique_ptr<Client>> clients;
  for (size_t i = 0; i < SearchQueueOptions{}.most; ++i) {
    clients.push_back(std::make_unique<Client>(server_->port()));
    clients.back()->say(post("/search", "(;SZ[5])"));
    EXPECT_THAT(clients.back()->hear("\"ahead\""), HasSubstr("\"ahead\""));
  }
  EXPECT_THAT(ask(post("/search", "(;SZ[5])")), StartsWith("HTTP/1.1 503"));
  EXPECT_THAT(ask(get("/")), StartsWith("HTTP/1.1 200"));
}

TEST_F(WebServerTest, EndsWithOpenSearches) {
  Client client(server_->port());
  client.say(post("/search", "(;SZ[9])"));
  EXPECT_THAT(client.hear("\"move\":"), HasSubstr("\"move\":"));
  server_.reset();
  EXPECT_THAT(client.hear(), Not(HasSubstr("\"ended\":true")));
}

TEST_F(WebServerTest, TheErrorOfAPortInUseNamesTheRemedy) {
  const auto second = WebServer::start(queue_, {.port = server_->port()});
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(std::string(second.status().message()),
              HasSubstr("cannot listen at port " + std::to_string(server_->port()) +
                        " of 127.0.0.1: Address already in use: choose another port with --port"));
  EXPECT_FALSE(WebServer::start(queue_, {.address = "localhost"}).ok());
}

// RFC 5737: no host has an address of 192.0.2.0/24.
TEST_F(WebServerTest, TheErrorOfAnAddressOfAnotherHostNamesTheRemedy) {
  const auto elsewhere = WebServer::start(queue_, {.address = "192.0.2.1", .port = 0});
  ASSERT_FALSE(elsewhere.ok());
  EXPECT_THAT(std::string(elsewhere.status().message()),
              HasSubstr("Cannot assign requested address: name an address that this host has"));
}

}  // namespace
}  // namespace cariama::hex
