#include "hex/gtp_stream.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>

#include "tests/hex/testing/flat_engine.h"

namespace cariama::hex {
namespace {

constexpr int kPatience = 60'000;  // milliseconds; every step needs less than a hundredth of it

// Runs run_gtp() in a thread, and has the controller's ends of its pipes.
class Controller {
 public:
  explicit Controller(const GtpOptions& options) {
    signal(SIGPIPE, SIG_IGN);
    int to[2];
    int from[2];
    EXPECT_EQ(pipe2(to, O_CLOEXEC), 0);
    EXPECT_EQ(pipe2(from, O_CLOEXEC), 0);
    to_ = to[1];
    from_ = from[0];
    server_ = std::thread([this, in = to[0], out = from[1], options] {
      EXPECT_TRUE(run_gtp(engine_, in, out, options).ok());
      close(in);
      close(out);
    });
  }
  ~Controller() {
    end_input();
    close(from_);
    server_.join();
  }

  void say(const std::string& text) {
    std::string_view rest = text;
    while (!rest.empty()) {
      const ssize_t written = write(to_, rest.data(), rest.size());
      ASSERT_GT(written, 0);
      rest.remove_prefix(static_cast<size_t>(written));
    }
  }
  void end_input() {
    if (to_ >= 0) close(to_);
    to_ = -1;
  }
  void close_output() {
    close(from_);
    from_ = open("/dev/null", O_RDONLY | O_CLOEXEC);
  }
  // Reads the output up to and including `end`.
  std::string hear(const std::string& end) {
    std::string text;
    for (;;) {
      const size_t found = heard_.find(end);
      if (found != std::string::npos) {
        text = heard_.substr(0, found + end.size());
        heard_.erase(0, text.size());
        return text;
      }
      if (!read_more()) {
        ADD_FAILURE() << "waited for '" << end << "', got '" << heard_ << "'";
        return heard_;
      }
    }
  }
  // Ends the input, waits for the end of the session, and returns the engine's number of searches.
  int searches() {
    end_input();
    static_cast<void>(hear_end());
    return engine_.searches;
  }
  // Waits for the end of the session and returns the output that was not read before.
  std::string hear_end() {
    while (read_more()) {
    }
    return heard_;
  }

 private:
  bool read_more() {
    pollfd fds{from_, POLLIN, 0};
    if (poll(&fds, 1, kPatience) <= 0) {
      ADD_FAILURE() << "the session wrote nothing within the time limit";
      return false;
    }
    char bytes[4096];
    const ssize_t count = read(from_, bytes, sizeof(bytes));
    if (count <= 0) return false;
    heard_.append(bytes, static_cast<size_t>(count));
    return true;
  }

  testing::FlatEngine engine_;
  int to_;
  int from_;
  std::string heard_;
  std::thread server_;
};

// kEndless: a search ends only when it is interrupted.
constexpr GtpOptions kEndless{.limits = {.seconds = 0, .iterations = 0}};
constexpr GtpOptions kShort{.limits = {.seconds = 0, .iterations = 1}};

TEST(GtpStream, AnswersInOrder) {
  Controller controller(kShort);
  controller.say("1 name\r\n2 boardsize 5 5\n\n3 play b a1\n4 genmove w\n5 quit\n6 name\n");
  EXPECT_EQ(controller.hear("\n\n"), "=1 Flat\n\n");
  EXPECT_EQ(controller.hear("\n\n"), "=2 \n\n");
  EXPECT_EQ(controller.hear("\n\n"), "=3 \n\n");
  EXPECT_EQ(controller.hear("\n\n").substr(0, 3), "=4 ");
  EXPECT_EQ(controller.hear("\n\n"), "=5 \n\n");
  EXPECT_EQ(controller.hear_end(), "") << "the session wrote output after quit";
}

TEST(GtpStream, ASearchIsInterrupted) {
  Controller controller(kEndless);
  controller.say("param_search live_graphics 1\nparam_search live_interval 0.01\n1 genmove b\n");
  controller.hear("gogui-gfx:");  // the search is running
  controller.say("# interrupt\n");
  controller.hear("=1 ");
  // An interrupt that arrives together with the command ends the search, too. An interrupt without
  // a search has no effect.
  controller.say("2 genmove w\n  # interrupt\n# interrupt\n3 name\n");
  controller.hear("=2 ");
  controller.hear("=3 Flat\n\n");
  // The earlier interrupts have no effect on a later search.
  controller.say("4 genmove b\n");
  controller.hear("gogui-gfx:");
  controller.say("# interrupt\n");
  controller.hear("=4 ");
}

TEST(GtpStream, AnyLineEndsAnAnalysis) {
  for (const char* line : {"\n", "  \n", "protocol_version\n", "# interrupt\n", "\r\n"}) {
    Controller controller(kEndless);
    controller.say("7 lz-analyze b 1\n");
    EXPECT_EQ(controller.hear("\n"), "=7\n");
    controller.hear("info move ");
    controller.say(line);
    controller.hear("\n\n");
    controller.say("name\n");
    controller.hear("= Flat\n\n");
  }
}

// With the option `ponder`, the session searches after a genmove until the next line and writes no
// output. Without the option it does not search.
TEST(GtpStream, PondersUntilTheNextLine) {
  for (const bool ponder : {false, true}) {
    GtpOptions options = kShort;
    options.ponder = ponder;
    Controller controller(options);
    controller.say("1 genmove b\n");
    controller.hear("=1 ");
    controller.hear("\n\n");
    controller.say("2 name\n3 version\n");
    EXPECT_EQ(controller.hear("\n\n"), "=2 Flat\n\n");
    EXPECT_EQ(controller.hear("\n\n"), "=3 1\n\n");
    EXPECT_EQ(controller.searches(), ponder ? 2 : 1);
  }
}

TEST(GtpStream, AnAnalysisAnswersEvenIfTheNextLineIsAlreadyRead) {
  Controller controller(kEndless);
  controller.say("kata-analyze 1\n\nlz-analyze w 1\nname\n");
  EXPECT_EQ(controller.hear("\n\n").substr(0, 12), "=\ninfo move ");
  EXPECT_EQ(controller.hear("\n\n").substr(0, 12), "=\ninfo move ");
  EXPECT_EQ(controller.hear("\n\n"), "= Flat\n\n");
}

TEST(GtpStream, TheEndOfInputEndsAnAnalysis) {
  Controller controller(kEndless);
  controller.say("lz-analyze b 1\n");
  controller.hear("info move ");
  controller.end_input();
  EXPECT_EQ(controller.hear_end().substr(controller.hear_end().size() - 2), "\n\n");
}

TEST(GtpStream, AGenmoveBeforeTheEndOfInputIsAnswered) {
  Controller controller(kShort);
  controller.say("name\n1 genmove b");  // without an end of line
  controller.end_input();
  const std::string text = controller.hear_end();
  EXPECT_NE(text.find("\n\n=1 "), std::string::npos) << text;
}

TEST(GtpStream, QuitDuringAnAnalysisEndsBoth) {
  Controller controller(kEndless);
  controller.say("lz-analyze b 1\n");
  controller.hear("info move ");
  controller.say("9 quit\n");
  const std::string text = controller.hear_end();
  EXPECT_EQ(text.substr(text.size() - 7), "\n\n=9 \n\n");
}

TEST(GtpStream, CutsVeryLongLines) {
  Controller controller(kShort);
  controller.say(std::string(100'000, 'x') + "\n");
  EXPECT_EQ(controller.hear("\n\n"), "? unknown command\n\n");
  controller.say(std::string(3 * LineReader::kMaxLine, 'y') + "\nname\n");
  EXPECT_EQ(controller.hear("\n\n"), "? unknown command\n\n");
  EXPECT_EQ(controller.hear("\n\n"), "= Flat\n\n");
  controller.say(std::string("\0\xff\n\x7f\n", 5) + "name\n");
  controller.hear("= Flat\n\n");
}

TEST(GtpStream, TheSessionEndsWhenItsOutputIsClosed) {
  Controller controller(kShort);
  controller.close_output();
  // The session fails to write an answer and ends. In one write: the session may end, and close its
  // input, after the first line.
  controller.say("name\nlist_commands\n");
}

TEST(GtpStream, AnErrorOfItsInputIsReported) {
  testing::FlatEngine engine;
  const int folder = open("/", O_RDONLY | O_CLOEXEC);
  const int out = open("/dev/null", O_WRONLY | O_CLOEXEC);
  const absl::Status status = run_gtp(engine, folder, out);
  EXPECT_NE(status.message().find("cannot read the commands: Is a directory: connect it to"),
            absl::string_view::npos)
      << status;
  close(folder);
  close(out);
}

// Its search runs until `release` is set.
class WaitingEngine final : public testing::FlatEngine {
 public:
  SearchReport search(const Board& board, const SearchLimits&, const std::atomic<bool>&,
                      const std::function<void(const SearchReport&)>&, double) override {
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(kPatience);
    while (!release && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    const std::atomic<bool> never{false};
    return FlatEngine::search(board, {.iterations = 1}, never, nullptr, 0);
  }
  std::atomic<bool> release{false};
};

// The reader stops at 4 MiB of lines that wait. The session executes all of them later.
TEST(GtpStream, TheBytesThatWaitAreLimited) {
  WaitingEngine engine;
  int to[2];
  int from[2];
  ASSERT_EQ(pipe2(to, O_CLOEXEC), 0);
  ASSERT_EQ(pipe2(from, O_CLOEXEC), 0);
  std::thread session([&] {
    EXPECT_TRUE(run_gtp(engine, to[0], from[1], kShort).ok());
    close(from[1]);
  });
  std::string input = "genmove b\n";
  constexpr size_t kLines = 12;
  for (size_t i = 0; i < kLines; ++i) input.append(LineReader::kMaxLine - 1, 'x').append("\n");
  ASSERT_EQ(fcntl(to[1], F_SETFL, O_NONBLOCK), 0);
  std::string_view left = input;
  // Returns false if the pipe is full for `patience` milliseconds.
  const auto write_some = [&](int patience) {
    pollfd fds{to[1], POLLOUT, 0};
    if (poll(&fds, 1, patience) <= 0) return false;
    const ssize_t written = write(to[1], left.data(), left.size());
    if (written > 0) left.remove_prefix(static_cast<size_t>(written));
    return written > 0;
  };
  while (!left.empty() && write_some(500)) {
  }
  // 4 MiB wait, one line waits for room, and the pipe and the buffer of the reader contain a part
  // of the next one.
  EXPECT_LE(input.size() - left.size(), 8 * LineReader::kMaxLine);
  engine.release = true;
  while (!left.empty() && write_some(kPatience)) {
  }
  EXPECT_TRUE(left.empty()) << "the session does not read on";
  close(to[1]);
  std::string answers;
  char bytes[4096];
  for (ssize_t count; (count = read(from[0], bytes, sizeof(bytes))) > 0;) {
    answers.append(bytes, static_cast<size_t>(count));
  }
  session.join();
  size_t refused = 0;
  for (size_t at = 0; (at = answers.find("? unknown command", at)) != std::string::npos; ++at) {
    ++refused;
  }
  EXPECT_EQ(refused, kLines);
  close(to[0]);
  close(from[0]);
}

class ThrowingEngine final : public testing::FlatEngine {
 public:
  SearchReport search(const Board&, const SearchLimits&, const std::atomic<bool>&,
                      const std::function<void(const SearchReport&)>&, double) override {
    throw std::runtime_error("the engine failed");
  }
};

// The reader thread waits for a line when the engine throws.
TEST(GtpStream, AnExceptionOfTheEngineEndsTheSession) {
  ThrowingEngine engine;
  int to[2];
  ASSERT_EQ(pipe2(to, O_CLOEXEC), 0);
  const int out = open("/dev/null", O_WRONLY | O_CLOEXEC);
  const std::string_view line = "genmove b\n";
  ASSERT_EQ(write(to[1], line.data(), line.size()), static_cast<ssize_t>(line.size()));
  EXPECT_THROW(static_cast<void>(run_gtp(engine, to[0], out, kShort)), std::runtime_error);
  for (const int fd : {to[0], to[1], out}) close(fd);
}

TEST(GtpInterruptsTest, EndOnlySearchesOfEarlierLines) {
  GtpInterrupts interrupts;
  interrupts.received(1, false);
  interrupts.received(2, true);  // ends the search of line 1
  interrupts.received(3, false);
  interrupts.executing(1);
  EXPECT_FALSE(interrupts.stop()) << "no search has begun";
  interrupts.search_begins(false);
  EXPECT_TRUE(interrupts.stop());
  interrupts.search_ends();
  EXPECT_FALSE(interrupts.stop());
  interrupts.executing(3);
  interrupts.search_begins(false);
  EXPECT_FALSE(interrupts.stop()) << "the interrupt was read before line 3";
  interrupts.received(4, false);
  EXPECT_FALSE(interrupts.stop()) << "a later line must not end a genmove";
  interrupts.ended();
  EXPECT_FALSE(interrupts.stop()) << "the end of the input must not end a genmove";
  interrupts.search_ends();
  interrupts.executing(4);
  interrupts.search_begins(true);
  EXPECT_TRUE(interrupts.stop()) << "the end of the input must end an analysis";
}

}  // namespace
}  // namespace cariama::hex
