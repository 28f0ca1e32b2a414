// cariama-top: shows what the jobs of this user on this host do, while they run. It asks the
// statistics service of each process (dtutils/statistics_service.h); a job needs no preparation.
#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "dtutils/internal/file_descriptor.h"
#include "dtutils/internal/json.h"
#include "dtutils/statistics_service.h"
#include "dtutils/version.h"
#include "tools/program.h"

namespace cariama {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kHelp =
    "cariama-top: shows what the running jobs of this user do, one row for each process.\n"
    "\n"
    "  cariama-top [--interval S] [--count N] [--threads] [--pid PID]... [--json]\n"
    "\n"
    "It shows the processes of this host. The jobs need no preparation, and have no cost\n"
    "until cariama-top connects. In a terminal: q ends it, t shows or hides the threads.\n"
    "\n"
    "  --interval S   seconds between two samples (default 1)\n"
    "  --count N      ends after N tables (default 0: no limit)\n"
    "  --threads      also a row for each thread that has counters of its own\n"
    "  --pid PID      only this process; may be repeated\n"
    "  --json         one JSON object per line: name, params, value, unit\n"
    "  --help         this text\n"
    "  --version      prints the version of Cariama\n"
    "\n"
    "Columns, per second unless said otherwise:\n"
    "  cpu            processor time in percent of one core\n"
    "  calls          calls that the process ran, send-based and one-sided\n"
    "  sent           send-based calls that it sent\n"
    "  one-sided MB   bytes of one-sided calls that it ran\n"
    "  transfers MB   bytes of its transfers: WRITE, READ, SEND\n"
    "  deferred       messages that waited for room at their receiver\n"
    "  steals         tasks that it stole\n"
    "  rollouts       rollouts of a tree search\n"
    "  registered     registered memory in MB, now\n"
    "  state          running, stopped, or silent (alive, but does not answer)\n"
    "\n"
    "Exit code: 0; 1 if there is no such process or the output cannot be written; 2 for wrong\n"
    "usage.\n";

struct Options {
  double interval = 1;
  uint64_t count = 0;
  bool threads = false;
  bool json = false;
  std::set<int> pids;
};

// ---- What a process says ------------------------------------------------------------------------

using Values = std::map<std::string, double>;  // "fabric_calls_run_total" → sum over the objects

struct Sample {
  int pid = 0;
  Clock::time_point at;
  bool is_answered = false;
  std::map<std::string, std::string> labels;  // job, rank, size, program
  Values values;
  std::map<std::string, Values> by_thread;  // "thread 3"
  double cpu_seconds = 0;
  char state = '?';  // of proc(5): T and t are stopped
};

// Reads one line of the text format: NAME{LABEL="VALUE",...} NUMBER.
bool parse_line(std::string_view line, std::string& name,
                std::map<std::string, std::string>& labels, double& value) {
  const size_t brace = line.find('{');
  if (brace == std::string_view::npos) return false;
  name = line.substr(0, brace);
  labels.clear();
  size_t at = brace + 1;
  while (at < line.size() && line[at] != '}') {
    const size_t equals = line.find("=\"", at);
    if (equals == std::string_view::npos) return false;
    std::string& text = labels[std::string(line.substr(at, equals - at))];
    for (at = equals + 2; at < line.size() && line[at] != '"'; ++at) {
      if (line[at] == '\\' && at + 1 < line.size()) ++at;
      text += line[at];
    }
    if (++at < line.size() && line[at] == ',') ++at;
  }
  if (at + 2 >= line.size()) return false;
  const std::string number(line.substr(at + 2));
  char* end = nullptr;
  value = std::strtod(number.c_str(), &end);
  return end != number.c_str();
}

void parse_text(std::string_view text, Sample& sample) {
  constexpr std::string_view kPrefix = "cariama_";
  std::string name;
  std::map<std::string, std::string> labels;
  double value = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(text.size(), end + 1));
    if (line.substr(0, kPrefix.size()) != kPrefix || !parse_line(line, name, labels, value)) {
      continue;
    }
    name.erase(0, kPrefix.size());
    sample.values[name] += value;
    if (labels["of"].rfind("thread ", 0) == 0) sample.by_thread[labels["of"]][name] += value;
    sample.labels = labels;
  }
}

// The processes that serve statistics, by the names of their sockets.
std::vector<int> serving_processes() {
  std::ifstream sockets("/proc/net/unix");
  const std::string mark = "@" + std::string(kStatisticsSocket);
  std::set<int> found;
  for (std::string line; std::getline(sockets, line);) {
    const size_t at = line.find(mark);
    int pid = 0;
    if (at == std::string::npos) continue;
    const char* const digits = line.c_str() + at + mark.size();
    const auto parsed = std::from_chars(digits, line.c_str() + line.size(), pid);
    if (parsed.ec == std::errc() && pid > 0) found.insert(pid);
  }
  return {found.begin(), found.end()};
}

// State and processor time, from /proc/PID/stat; false if there is no such process.
bool read_stat(Sample& sample) {
  std::ifstream file("/proc/" + std::to_string(sample.pid) + "/stat");
  std::string text;
  std::getline(file, text);
  const size_t name_end = text.rfind(')');  // the name may contain anything
  if (name_end == std::string::npos) return false;
  std::istringstream fields(text.substr(name_end + 1));
  std::string skipped;
  double user = 0;
  double system = 0;
  fields >> sample.state;
  for (int i = 0; i < 10; ++i) fields >> skipped;
  fields >> user >> system;
  sample.cpu_seconds = (user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
  return true;
}

// Returns true if process `pid` is at the other end, and if it is a process of this user, or this
// user is root. Otherwise its answer may be false: any process can listen under the name of another
// one.
bool is_of(int socket, int pid) {
  ucred other{};
  socklen_t length = sizeof other;
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &other, &length) == 0 && other.pid == pid &&
         (other.uid == geteuid() || geteuid() == 0);
}

// Returns true if process `pid` answers this user: the services of other users do not.
bool may_ask(int pid) {
  if (geteuid() == 0) return true;
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string word; status >> word;) {
    uid_t real = 0;
    uid_t effective = 0;
    if (word == "Uid:" && status >> real >> effective) return effective == geteuid();
  }
  return false;
}

FileDescriptor ask(int pid) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name = std::string(kStatisticsSocket) + std::to_string(pid);
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  FileDescriptor made(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  const std::string_view request = "GET /metrics HTTP/1.0\r\n\r\n";
  if (!made.valid() ||
      connect(made.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      !is_of(made.get(), pid) ||
      send(made.get(), request.data(), request.size(), MSG_NOSIGNAL) < 0) {
    made.reset();
  }
  return made;
}

// Samples all processes at the same time. The sample of a process that does not answer in time has
// no values.
std::vector<Sample> look(const Options& options) {
  constexpr auto kPatience = std::chrono::milliseconds(500);
  struct Asked {
    Sample sample;
    FileDescriptor socket;
    std::string response;
  };
  std::vector<Asked> asked;
  for (const int pid : serving_processes()) {
    if (!options.pids.empty() && !options.pids.contains(pid)) continue;
    if (!may_ask(pid)) continue;
    Asked one;
    one.sample.pid = pid;
    one.sample.at = Clock::now();
    if (!read_stat(one.sample)) continue;
    one.socket = ask(pid);
    asked.push_back(std::move(one));
  }
  const auto deadline = Clock::now() + kPatience;
  while (true) {
    std::vector<pollfd> polled;
    size_t open = 0;
    for (const Asked& one : asked) {
      polled.push_back({one.socket.get(), POLLIN, 0});
      open += one.socket.valid();
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (open == 0 || left <= 0) break;
    if (poll(polled.data(), polled.size(), static_cast<int>(left)) < 0 && errno != EINTR) break;
    for (size_t i = 0; i < asked.size(); ++i) {
      if (polled[i].revents == 0) continue;
      std::array<char, 16384> part;
      const ssize_t got = recv(asked[i].socket.get(), part.data(), part.size(), 0);
      if (got > 0) {
        asked[i].response.append(part.data(), static_cast<size_t>(got));
      } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
        asked[i].sample.is_answered = got == 0 && !asked[i].response.empty();
        asked[i].socket.reset();
      }
    }
  }
  std::vector<Sample> samples;
  for (Asked& one : asked) {
    if (one.sample.is_answered) parse_text(one.response, one.sample);
    samples.push_back(std::move(one.sample));
  }
  return samples;
}

// ---- What the user sees -------------------------------------------------------------------------

struct Column {
  const char* name;   // in JSON
  const char* title;  // in the table
  const char* unit;
  bool is_rate;
  double scale;
  std::vector<const char*> sum_of;
};

const std::vector<Column>& columns() {
  static const std::vector<Column> all{
      {"calls_run",
       "calls",
       "calls/s",
       true,
       1,
       {"fabric_calls_run_total", "one_sided_calls_run_total"}},
      {"calls_sent", "sent", "calls/s", true, 1, {"fabric_calls_sent_total"}},
      {"one_sided_bytes", "one-sided MB", "MB/s", true, 1e-6, {"one_sided_bytes_run_total"}},
      {"transfer_bytes", "transfers MB", "MB/s", true, 1e-6, {"transmit_queue_bytes_total"}},
      {"deferred", "deferred", "messages/s", true, 1, {"fabric_deferred_total"}},
      {"steals", "steals", "tasks/s", true, 1, {"tasks_steals_total"}},
      {"rollouts", "rollouts", "rollouts/s", true, 1, {"mcts_visits_total"}},
      {"registered_bytes", "registered", "MB", false, 1e-6, {"fabric_registered_bytes"}},
  };
  return all;
}

// The value of a column between two samples. A counter that went down belongs to a new object.
double value_of(const Column& column, const Values& before, const Values& now, double seconds) {
  const auto sum = [&](const Values& values) {
    double all = 0;
    for (const char* name : column.sum_of) {
      if (const auto found = values.find(name); found != values.end()) all += found->second;
    }
    return all;
  };
  if (!column.is_rate) return column.scale * sum(now);
  return column.scale * std::max(0.0, sum(now) - sum(before)) / seconds;
}

std::string number_text(double value) {
  if (value == 0) return "-";
  return value >= 100 ? absl::StrFormat("%.0f", value) : absl::StrFormat("%.1f", value);
}

const char* state_text(const Sample& sample) {
  if (sample.state == 'T' || sample.state == 't') return "stopped";
  return sample.is_answered ? "running" : "silent";
}

class Screen {
 public:
  Screen(const Options& options, bool is_terminal) : options_(options), is_terminal_(is_terminal) {}

  // `before` holds the previous samples, by process.
  std::string table(const std::vector<Sample>& samples, const std::map<int, Sample>& before) const {
    std::vector<const Sample*> sorted;
    sorted.reserve(samples.size());
    for (const Sample& sample : samples) sorted.push_back(&sample);
    const auto label = [](const Sample& sample, const char* name) -> std::string {
      const auto found = sample.labels.find(name);
      return found == sample.labels.end() ? "" : found->second;
    };
    std::sort(sorted.begin(), sorted.end(), [&](const Sample* a, const Sample* b) {
      const auto key = [&](const Sample& s) {
        return std::make_tuple(label(s, "job"), std::atoi(label(s, "rank").c_str()), s.pid);
      };
      return key(*a) < key(*b);
    });
    std::string text;
    std::string job = "none";
    for (const Sample* sample : sorted) {
      const auto last = before.find(sample->pid);
      if (last == before.end()) continue;
      const double seconds =
          std::max(1e-3, std::chrono::duration<double>(sample->at - last->second.at).count());
      const double cpu = 100 * (sample->cpu_seconds - last->second.cpu_seconds) / seconds;
      if (options_.json) {
        append_json(text, *sample, last->second, cpu, seconds);
        continue;
      }
      if (job != label(*sample, "job")) {
        job = label(*sample, "job");
        absl::StrAppendFormat(&text, "%sjob %s, %s processes: %s\n", text.empty() ? "" : "\n", job,
                              label(*sample, "size"), label(*sample, "program"));
        absl::StrAppendFormat(&text, "%-10s %8s %-8s %6s", "rank", "pid", "state", "cpu");
        for (const Column& column : columns()) absl::StrAppendFormat(&text, " %12s", column.title);
        text += '\n';
      }
      absl::StrAppendFormat(&text, "%-10s %8d %-8s %6.0f", label(*sample, "rank"), sample->pid,
                            state_text(*sample), cpu);
      append_values(text, last->second.values, sample->values, seconds, sample->is_answered);
      if (!options_.threads || !sample->is_answered) continue;
      for (const auto& [thread, values] : sample->by_thread) {
        absl::StrAppendFormat(&text, "  %-8s %8s %-8s %6s", thread, "", "", "");
        const auto old = last->second.by_thread.find(thread);
        append_values(text, old == last->second.by_thread.end() ? Values{} : old->second, values,
                      seconds, true);
      }
    }
    return text;
  }

  [[nodiscard]] bool print(const std::string& text) const {
    if (is_terminal_) std::fputs("\x1b[H\x1b[J", stdout);  // to the corner, erase below
    std::fputs(text.c_str(), stdout);
    return std::fflush(stdout) == 0;
  }

 private:
  static void append_values(std::string& text, const Values& before, const Values& now,
                            double seconds, bool is_answered) {
    for (const Column& column : columns()) {
      absl::StrAppendFormat(&text, " %12s",
                            is_answered ? number_text(value_of(column, before, now, seconds)) : "");
    }
    text += '\n';
  }

  void append_json(std::string& text, const Sample& now, const Sample& before, double cpu,
                   double seconds) const {
    const auto row = [&](std::string_view name, const std::string& thread, const std::string& value,
                         std::string_view unit) {
      std::string params = absl::StrCat("\"pid\": ", now.pid);
      for (const char* key : {"job", "rank", "size", "program"}) {
        const auto found = now.labels.find(key);
        if (found == now.labels.end()) continue;
        absl::StrAppend(&params, ", \"", key, "\": ", json_string(found->second));
      }
      if (!thread.empty()) absl::StrAppend(&params, ", \"thread\": ", json_string(thread));
      absl::StrAppend(&params, ", \"interval\": ", absl::StrFormat("%g", options_.interval));
      absl::StrAppend(&text, "{\"name\": ", json_string(name), ", \"params\": {", params,
                      "}, \"value\": ", value, ", \"unit\": ", json_string(unit), "}\n");
    };
    const auto rows = [&](const std::string& thread, const Values& old, const Values& values) {
      for (const Column& column : columns()) {
        row(column.name, thread, absl::StrFormat("%.6g", value_of(column, old, values, seconds)),
            column.unit);
      }
    };
    row("state", "", json_string(state_text(now)), "");
    row("cpu", "", absl::StrFormat("%.3g", cpu), "percent");
    if (!now.is_answered) return;
    rows("", before.values, now.values);
    if (!options_.threads) return;
    for (const auto& [thread, values] : now.by_thread) {
      const auto old = before.by_thread.find(thread);
      rows(thread, old == before.by_thread.end() ? Values{} : old->second, values);
    }
  }

  const Options& options_;
  const bool is_terminal_;
};

volatile std::sig_atomic_t is_interrupted = 0;

// Sets the terminal to deliver single keys without echo, on the alternate screen. The destructor
// restores it.
class Keys {
 public:
  explicit Keys(bool is_terminal) : is_terminal_(is_terminal && tcgetattr(0, &before_) == 0) {
    if (!is_terminal_) return;
    termios single = before_;
    single.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    tcsetattr(0, TCSANOW, &single);
    std::fputs("\x1b[?1049h", stdout);  // the alternate screen
  }
  ~Keys() {
    if (!is_terminal_) return;
    std::fputs("\x1b[?1049l", stdout);
    std::fflush(stdout);
    tcsetattr(0, TCSANOW, &before_);
  }
  Keys(const Keys&) = delete;
  Keys& operator=(const Keys&) = delete;

  // Returns the key that was pressed until `deadline`, or 0.
  [[nodiscard]] char wait(Clock::time_point deadline) const {
    pollfd keyboard{is_terminal_ ? 0 : -1, POLLIN, 0};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (poll(&keyboard, 1, static_cast<int>(std::max<int64_t>(0, left))) <= 0) return 0;
    char key = 'q';  // the terminal is gone
    return read(0, &key, 1) == 1 ? key : 'q';
  }

 private:
  bool is_terminal_;
  termios before_{};
};

int run(Options& options) {
  const bool is_terminal = !options.json && isatty(0) == 1 && isatty(1) == 1;
  struct sigaction action {};
  action.sa_handler = [](int) { is_interrupted = 1; };
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) sigaction(number, &action, nullptr);
  const Screen screen(options, is_terminal);
  std::map<int, Sample> before;
  bool found = false;
  bool shown = false;
  {
    const Keys keys(is_terminal);
    const auto interval = std::chrono::duration_cast<Clock::duration>(
        std::chrono::duration<double>(options.interval));
    for (uint64_t tables = 0; is_interrupted == 0;) {
      const Clock::time_point next = Clock::now() + interval;
      std::vector<Sample> samples = look(options);
      found = found || !samples.empty();
      // A process that does not answer keeps its names, and its counters for the next rates.
      for (Sample& sample : samples) {
        const auto last = before.find(sample.pid);
        if (sample.is_answered || last == before.end()) continue;
        sample.labels = last->second.labels;
        sample.values = last->second.values;
        sample.by_thread = last->second.by_thread;
      }
      // Rates need two samples of each process.
      if (!before.empty() || samples.empty()) {
        std::string text = screen.table(samples, before);
        shown = shown || !text.empty();
        if (text.empty() && !options.json && is_terminal) {
          text = "No process of this user on this host serves statistics.\n";
        }
        // run_program() reports a failed write.
        if (!screen.print(text) || (options.count != 0 && ++tables >= options.count)) break;
      }
      before.clear();
      for (Sample& sample : samples) before[sample.pid] = std::move(sample);
      if (!found && !is_terminal && options.count == 0) break;
      for (char key = 1; key != 0 && is_interrupted == 0;) {
        key = keys.wait(next);
        if (key == 'q') is_interrupted = 1;
        if (key == 't') options.threads = !options.threads;
      }
    }
  }
  if (!found) {
    std::fprintf(stderr,
                 "cariama-top: no process of this user on this host serves statistics: start a "
                 "job, without CARIAMA_STATISTICS=off\n");
    return 1;
  }
  if (!shown && is_interrupted == 0) {
    std::fprintf(stderr,
                 "cariama-top: the processes have ended before a second sample: use a shorter "
                 "--interval\n");
    return 1;
  }
  return 0;
}

int wrong(const std::string& why) {
  std::fprintf(stderr, "cariama-top: %s (see cariama-top --help)\n", why.c_str());
  return 2;
}

int main_of_top(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    std::string word = argv[i];
    std::optional<std::string> value;
    if (const size_t equals = word.find('='); equals != std::string::npos) {
      value = word.substr(equals + 1);
      word.resize(equals);
    }
    if (word == "--help" || word == "--version") {
      if (word == "--help") {
        std::fputs(kHelp, stdout);
      } else {
        std::printf("cariama-top %s\n", std::string(version()).c_str());
      }
      return 0;
    }
    if (word == "--threads" && !value) {
      options.threads = true;
    } else if (word == "--json" && !value) {
      options.json = true;
    } else if (word == "--interval" || word == "--count" || word == "--pid") {
      if (!value && i + 1 < argc) value = argv[++i];
      double number = -1;
      if (!value || !absl::SimpleAtod(*value, &number)) number = -1;
      const bool is_whole = number >= 0 && number <= 2e9 && number == std::floor(number);
      if (word == "--interval") {
        if (!(number >= 0.1 && number <= 3600)) {
          return wrong("--interval needs 0.1 to 3600 seconds");
        }
        options.interval = number;
      } else if (!is_whole) {
        return wrong(word + " needs a whole number");
      } else if (word == "--count") {
        options.count = static_cast<uint64_t>(number);
      } else {
        options.pids.insert(static_cast<int>(number));
      }
    } else {
      return wrong("unknown argument " + std::string(argv[i]));
    }
  }
  return run(options);
}

}  // namespace
}  // namespace cariama

int main(int argc, char** argv) {
  return cariama::run_program("cariama-top", [&] { return cariama::main_of_top(argc, argv); });
}
