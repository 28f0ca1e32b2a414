#include "hex/gtp_stream.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>

#include "tests/hex/testing/flat_engine.h"

namespace cariama::hex {
namespace {

constexpr int kPatience = 60'000;  // milliseconds; nothing needs a hundredth of it

// run_gtp() in a thread, and a controller's ends of its pipes.
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
  // Up to and with `end`.
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
  // Of the engine, until the input ended.
  int searches() {
    end_input();
    static_cast<void>(hear_end());
    return engine_.searches;
  }
  // All that is left, once the session ended.
  std::string hear_end() {
    while (read_more()) {
    }
    return heard_;
  }

 private:
  bool read_more() {
    pollfd fds{from_, POLLIN, 0};
    if (poll(&fds, 1, kPatience) <= 0) {
      ADD_FAILURE() << "no answer in time";
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

// Searches that would never end by themselves.
constexpr GtpOptions kEndless{.limits = {.seconds = 0, .iterations = 0}};
constexpr GtpOptions kShort{.limits = {.seconds = 0, .iterations = 1}};

TEST(GtpStream, AnswersInOrder) {
  Controller controller(kShort);
  controller.say("1 name\r\n2 boardsize 5 5\n\n3 play b a1\n4 genmove w\n5 quit\n6 name\n");
  EXPECT_EQ(controller.hear("\n\n"), "=1 Flat\n\n");
  EXPECT_EQ(controller.hear("\n\n"), "=2\n\n");
  EXPECT_EQ(controller.hear("\n\n"), "=3\n\n");
  EXPECT_EQ(controller.hear("\n\n").substr(0, 3), "=4 ");
  EXPECT_EQ(controller.hear("\n\n"), "=5\n\n");
  EXPECT_EQ(controller.hear_end(), "") << "nothing after quit";
}

TEST(GtpStream, ASearchIsInterrupted) {
  Controller controller(kEndless);
  controller.say("param_search live_graphics 1\nparam_search live_interval 0.01\n1 genmove b\n");
  controller.hear("gogui-gfx:");  // it searches
  controller.say("# interrupt\n");
  controller.hear("=1 ");
  // One that arrives together with the command counts too; one without a search does nothing.
  controller.say("2 genmove w\n  # interrupt\n# interrupt\n3 name\n");
  controller.hear("=2 ");
  controller.hear("=3 Flat\n\n");
  // It was for the earlier one only.
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

// After a genmove, silently, until the next line; never without being asked to.
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

TEST(GtpStream, AnAnalysisOfWhichTheEndIsAlreadyThereStillAnswers) {
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
  EXPECT_EQ(text.substr(text.size() - 6), "\n\n=9\n\n");
}

TEST(GtpStream, BearsLinesWithoutEnd) {
  Controller controller(kShort);
  controller.say(std::string(100'000, 'x') + "\n");
  EXPECT_EQ(controller.hear("\n\n"), "? unknown command\n\n");
  controller.say(std::string(3 * LineReader::kMaxLine, 'y') + "\nname\n");
  EXPECT_EQ(controller.hear("\n\n"), "? unknown command\n\n");
  EXPECT_EQ(controller.hear("\n\n"), "= Flat\n\n");
  controller.say(std::string("\0\xff\n\x7f\n", 5) + "name\n");
  controller.hear("= Flat\n\n");
}

TEST(GtpStream, AControllerThatHasGoneEndsTheSession) {
  Controller controller(kShort);
  controller.close_output();
  controller.say("name\n");
  // The destructor waits for the session: it must not need the end of input to notice.
  controller.say("list_commands\n");
}

TEST(GtpInterruptsTest, ReachTheSearchThatTheyMean) {
  GtpInterrupts interrupts;
  interrupts.received(1, false);
  interrupts.received(2, true);  // means line 1
  interrupts.received(3, false);
  interrupts.executing(1);
  EXPECT_FALSE(interrupts.stop()) << "no search yet";
  interrupts.search_begins(false);
  EXPECT_TRUE(interrupts.stop());
  interrupts.search_ends();
  EXPECT_FALSE(interrupts.stop());
  interrupts.executing(3);
  interrupts.search_begins(false);
  EXPECT_FALSE(interrupts.stop()) << "the interrupt came before";
  interrupts.received(4, false);
  EXPECT_FALSE(interrupts.stop()) << "a genmove is not ended by what follows";
  interrupts.ended();
  EXPECT_FALSE(interrupts.stop()) << "nor by the end of input";
  interrupts.search_ends();
  interrupts.executing(4);
  interrupts.search_begins(true);
  EXPECT_TRUE(interrupts.stop()) << "an analysis is";
}

}  // namespace
}  // namespace cariama::hex
