#include "dsfabric/launcher.h"

#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <new>
#include <set>
#include <span>
#include <system_error>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dsfabric/bootstrap/handshake.h"
#include "dsfabric/bootstrap/launch_variables.h"
#include "dsfabric/bootstrap/sockets.h"
#include "dsfabric/bootstrap/store_bootstrap.h"
#include "dsfabric/launcher/child_process.h"
#include "dsfabric/launcher/descriptor_limit.h"
#include "dsfabric/launcher/launcher_signals.h"
#include "dsfabric/launcher/line_tagger.h"
#include "dsfabric/launcher/output_queue.h"
#include "dsfabric/launcher/placement.h"
#include "dtutils/error.h"
#include "dtutils/internal/byte_size.h"
#include "dtutils/internal/exception_error.h"
#include "dtutils/internal/exchange_server.h"
#include "dtutils/internal/guardian.h"
#include "dtutils/internal/read_file.h"
#include "dtutils/internal/socket_errors.h"
#include "dtutils/internal/standard_streams.h"
#include "dtutils/wait.h"

namespace cariama {
namespace {

using internal::ChildProcess;
using internal::DescriptorLimit;
using internal::LineTagger;

// The time that an exit with an error stays unreported. A process that a signal kills may be its
// cause, and the peers of that process detect its death before the launcher does.
constexpr std::chrono::milliseconds kCauseGrace{100};
// The time that an exit with an error stays unreported if the launcher has detected that another
// process has failed or is ending, but has not reaped that process. It may be writing a core file,
// or freeing much memory.
constexpr std::chrono::seconds kCausePatience{2};

std::string describe_end(int status) {
  if (!WIFSIGNALED(status)) return absl::StrCat("exited with code ", WEXITSTATUS(status));
  return absl::StrCat("was killed by signal ", WTERMSIG(status), " (", strsignal(WTERMSIG(status)),
                      WCOREDUMP(status) ? "; core dumped)" : ")");
}

int code_of(int status) {
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

// Of failures at nearly the same time, the one with the highest number is the cause. Processes exit
// or abort because a peer has died, but the launcher and the library send no SIGKILL to a process
// of a running job.
int cause_order(int status) {
  if (!WIFSIGNALED(status)) return 0;
  return WTERMSIG(status) == SIGKILL ? 2 : 1;
}

// Formats ranks for messages: "rank 3", "ranks 0, 1, 2 and 5 others".
std::string name_ranks(const std::vector<int>& ranks) {
  constexpr size_t kMost = 8;
  const std::vector<int> named(ranks.begin(), ranks.begin() + std::min(ranks.size(), kMost));
  return absl::StrCat(
      ranks.size() == 1 ? "rank " : "ranks ", absl::StrJoin(named, ", "),
      ranks.size() > kMost ? absl::StrCat(" and ", ranks.size() - kMost, " others") : "");
}

// Makes this process the parent of orphaned descendants, and kills these at the end.
class Orphanage {
 public:
  Orphanage() {
    prctl(PR_GET_CHILD_SUBREAPER, &before_);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    for (const pid_t pid : children()) others_.insert(pid);
  }
  ~Orphanage() {
    try {
      end_orphans();
    } catch (const std::bad_alloc& error) {
      std::fprintf(stderr,
                   "cariama-run: cannot allocate memory (%s): processes that have left their group "
                   "go on\n",
                   error.what());
    }
    prctl(PR_SET_CHILD_SUBREAPER, before_);
  }
  Orphanage(const Orphanage&) = delete;
  Orphanage& operator=(const Orphanage&) = delete;

  void leave_alone(pid_t pid) { others_.insert(pid); }

 private:
  void end_orphans() {
    // Repeat: a killed process may leave further orphans.
    for (bool found = true; found;) {
      found = false;
      for (const pid_t pid : children()) {
        if (others_.contains(pid)) continue;
        found = true;
        kill(pid, SIGKILL);
        if (waitpid(pid, nullptr, 0) < 0) others_.insert(pid);  // another thread has reaped it
      }
    }
  }

  // Returns the children of this thread and of the main thread, which adopts orphans. Empty if the
  // kernel does not provide the list.
  static std::vector<pid_t> children() {
    std::vector<pid_t> all;
    for (const pid_t thread : std::set<pid_t>{gettid(), getpid()}) {
      std::ifstream list(absl::StrCat("/proc/self/task/", thread, "/children"));
      for (pid_t pid = 0; list >> pid;) all.push_back(pid);
    }
    return all;
  }

  int before_ = 0;
  std::set<pid_t> others_;
};

// Forwards the terminal's input to rank 0. Rank 0 cannot read the terminal itself, because its
// process group is not in the foreground.
class InputRelay {
 public:
  // Prepares rank 0's input: a socket to the launcher if the launcher's input is a terminal, else
  // the launcher's input itself.
  absl::Status open() {
    if (isatty(STDIN_FILENO) == 0) return absl::OkStatus();
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
      return make_errno_error(errno, ErrorScope::kProcess, "socketpair");
    }
    reader_ = FileDescriptor(ends[0]);
    writer_ = FileDescriptor(ends[1]);
    return absl::OkStatus();
  }
  [[nodiscard]] int child_end() const { return reader_.valid() ? reader_.get() : STDIN_FILENO; }
  void close_child_end() { reader_.reset(); }

  // Returns the event to poll for: room to forward pending input, or more input, or none.
  [[nodiscard]] pollfd polled() const {
    if (!writer_.valid()) return {-1, 0, 0};
    if (!pending_.empty()) return {writer_.get(), POLLOUT, 0};
    return {tcgetpgrp(STDIN_FILENO) == getpgrp() ? STDIN_FILENO : -1, POLLIN, 0};
  }
  void carry() {
    if (pending_.empty()) {
      char line[4096];
      const ssize_t count = read(STDIN_FILENO, line, sizeof line);
      if (count < 0 && (errno == EINTR || errno == EAGAIN)) return;
      if (count <= 0) return close();
      pending_.assign(line, static_cast<size_t>(count));
    }
    const ssize_t count =
        send(writer_.get(), pending_.data(), pending_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count > 0) pending_.erase(0, static_cast<size_t>(count));
    if (count < 0 && errno != EINTR && !internal::is_temporary(errno)) close();
  }
  void close() { writer_.reset(); }

 private:
  FileDescriptor reader_;
  FileDescriptor writer_;
  std::string pending_;
};

class Job {
 public:
  Job(const LaunchOptions& options, internal::JobPlan plan)
      : options_(options),
        plan_(std::move(plan)),
        size_(static_cast<int>(plan_.processes.size())),
        descriptors_(kDescriptorsOfChild * plan_.processes.size() + kMoreDescriptors),
        children_(plan_.processes.size()),
        server_(internal::rank_labels(size_),
                [this](int rank, const absl::Status& why) { on_closed(rank, why); }) {}

  ~Job() {  // only needed after an error; otherwise all have ended
    kill_all(SIGKILL);
    reap_killed();
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  absl::StatusOr<int> run() {
    if (signals_.descriptor() < 0) {
      return make_errno_error(signals_.error(), ErrorScope::kProcess, "signalfd");
    }
    if (!plan_.warning.empty()) say(plan_.warning);
    if (absl::Status opened = input_.open(); !opened.ok()) return opened;
    if (absl::Status guarded = guardian_.start(children_.size()); !guarded.ok()) return guarded;
    orphanage_.leave_alone(guardian_.pid());
    const JobSecret secret = internal::random_secret();
    if (absl::Status put = server_.put(0, internal::kSecretKey, internal::bytes_of(secret));
        !put.ok()) {
      return put;
    }
    std::fflush(nullptr);
    for (int rank = 0; rank < size_; ++rank) {
      if (absl::Status started = start(rank); !started.ok()) return started;
    }
    input_.close_child_end();
    if (options_.timeout.count() > 0) deadline_ = deadline_after(options_.timeout);
    while (running_ > 0 || output_is_awaited()) serve();
    if (timed_out_) return kLaunchTimedOut;
    return code_ == 0 && output_lost_ ? kLaunchOutputLost : code_;
  }

 private:
  enum class Phase : uint8_t { kRunning, kEnding, kKilled };
  // The pidfd, the exchange's socket and two streams of a process; the launcher's own.
  static constexpr size_t kDescriptorsOfChild = 4;
  static constexpr size_t kMoreDescriptors = 64;
  // This buffer is on the stack, which may have only 64 KiB (ulimit -s).
  static constexpr size_t kOutputChunk = 8192;

  struct Child {
    ChildProcess process;
    std::array<LineTagger, 2> taggers{LineTagger(""), LineTagger("")};
  };

  absl::Status start(int rank) {
    const internal::ProcessPlan& plan = plan_.processes[rank];
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) {
      return make_errno_error(errno, ErrorScope::kProcess, "socketpair", "raise ulimit -n");
    }
    FileDescriptor ours(pair[0]);
    const FileDescriptor theirs(pair[1]);
    uint64_t cookie = 0;
    socklen_t length = sizeof cookie;
    if (getsockopt(theirs.get(), SOL_SOCKET, SO_COOKIE, &cookie, &length) != 0) {
      return make_errno_error(errno, ErrorScope::kProcess, "SO_COOKIE");
    }
    internal::ChildSetup setup{
        .command = options_.command,
        .variables = {{internal::kLaunchSocketVariable, absl::StrCat(theirs.get(), ":", cookie)},
                      {internal::kRankVariable, absl::StrCat(rank)},
                      {internal::kSizeVariable, absl::StrCat(size_)}},
        .inherited_descriptor = theirs.get(),
        .input = rank == 0 ? input_.child_end() : -1,
        .capture_output = options_.tag_output,
        .cpus = plan.cpus,
        .signal_mask = signals_.before(),
        .in_child = [this, rank] {
          guardian_.guard(static_cast<size_t>(rank), getpid());
          descriptors_.restore();
        }};
    if (options_.threads) {
      setup.variables[internal::kThreadsVariable] = absl::StrCat(*options_.threads);
    }
    if (!plan.place.device.empty()) {
      setup.variables["CARIAMA_DEVICE"] = plan.place.device;
      if (plan.place.port != 0) setup.variables["CARIAMA_PORT"] = absl::StrCat(plan.place.port);
    }
    absl::StatusOr<ChildProcess> process = ChildProcess::start(setup);
    if (!process.ok()) return process.status();
    Child& child = children_[rank];
    child.process = *std::move(process);
    for (LineTagger& tagger : child.taggers) tagger = LineTagger(absl::StrCat("[", rank, "] "));
    server_.connect(rank, ours.release());
    ++running_;
    return absl::OkStatus();
  }

  // Waits for events, and handles them.
  void serve() {
    std::vector<pollfd> entries{{signals_.descriptor(), POLLIN, 0},
                                input_.polled(),
                                outputs_[0].polled(),
                                outputs_[1].polled()};
    const size_t first_child = entries.size();
    for (const Child& child : children_) {
      entries.push_back({child.process.pidfd(), POLLIN, 0});
      for (int stream = 0; stream < 2; ++stream) {
        // While the reader of the launcher's output does not read, the launcher does not read the
        // process's output, and the process waits in its write.
        const bool takes = !outputs_[static_cast<size_t>(stream)].full();
        entries.push_back({takes ? child.process.output(stream) : -1, POLLIN, 0});
      }
    }
    const size_t own = entries.size();
    server_.append_polled(entries);
    const Deadline next = std::min({deadline_, kill_at_, unreported_until_});
    if (internal::poll_open(entries, internal::poll_timeout(next)) < 0) return;
    if (entries[0].revents != 0) {
      while (const int signal = signals_.next()) on_signal(signal);
    }
    if (entries[1].revents != 0) input_.carry();
    for (size_t stream = 0; stream < 2; ++stream) {
      if (entries[2 + stream].revents != 0) outputs_[stream].write_some();
    }
    server_.serve(std::span(entries).subspan(own));
    if (server_.has_unreported()) throw std::bad_alloc();  // a launcher without memory ends the job
    std::vector<int> ended;
    for (int rank = 0; rank < size_; ++rank) {
      const size_t at = first_child + 3 * static_cast<size_t>(rank);
      for (int stream = 0; stream < 2; ++stream) {
        if (entries[at + 1 + static_cast<size_t>(stream)].revents != 0) pass_output(rank, stream);
      }
      if (entries[at].revents != 0) ended.push_back(rank);
    }
    reap(ended);
    on_time();
    report_lost_output();
  }

  // The job continues without the reader of its output, because its results may be in files.
  void report_lost_output() {
    if (!options_.tag_output || output_lost_) return;
    for (size_t stream = 0; stream < 2; ++stream) {
      const int error = outputs_[stream].error();
      // EPIPE is not reported: the reader has closed its end on purpose.
      if (error == 0 || error == EPIPE) continue;
      output_lost_ = true;
      say(absl::StrCat("the rest of the standard ", stream == 0 ? "output" : "error",
                       " of the processes is lost: ", std::generic_category().message(error),
                       error == EFBIG ? ": raise ulimit -f" : ""));
    }
  }

  // Reaps the processes that have ended since the last call.
  void reap(const std::vector<int>& ended) {
    for (const int rank : ended) {
      ChildProcess& process = children_[rank].process;
      // Kill the group before its leader is reaped: until then the process group id cannot be
      // reused.
      kill(-process.pid(), SIGKILL);
      guardian_.guard(static_cast<size_t>(rank), 0);
      const int status = process.reap();
      for (int stream = 0; stream < 2; ++stream) {
        pass_output(rank, stream);
        std::string rest;
        children_[rank].taggers[static_cast<size_t>(stream)].finish(rest);
        outputs_[static_cast<size_t>(stream)].append(rest);
        process.close_output(stream);
      }
      if (rank == 0) input_.close();
      --running_;
      if (status != 0) {
        if (unreported_.empty()) {
          unreported_since_ = std::chrono::steady_clock::now();
          unreported_until_ = unreported_since_ + kCauseGrace;
        }
        unreported_.emplace_back(status, rank);
      } else {
        const bool is_in_job = server_.rank_ended(rank, "has ended");
        // The other processes may continue without this one and report nothing, so report it here.
        if (is_in_job && phase_ == Phase::kRunning) {
          say(absl::StrCat("rank ", rank, " has ended without finalize(): call Fabric::finalize() ",
                           "in every process before it ends"));
        }
      }
    }
    if (unreported_.empty()) {
      kill_given_up();
    } else if (!awaits_cause()) {
      report_failures();
    }
  }

  // Kills the stopped processes that a process which has ended considered failed, once no other
  // process runs: the launcher would wait for them for ever. Requires: all failures are reported,
  // so that the exit code is not that of this kill.
  void kill_given_up() {
    const std::vector<int> running = still_running();
    for (const int rank : running) {
      if (!children_[rank].process.is_stopped() || !is_given_up(rank)) return;
    }
    for (const int rank : running) {
      say(absl::StrCat("rank ", rank,
                       " is stopped, and the job has ended without it: it is killed"));
      children_[rank].process.signal_group(SIGKILL);
    }
  }
  [[nodiscard]] bool is_given_up(int rank) const {
    const std::string key = absl::StrCat(internal::kGivenUpKey, rank);
    for (int other = 0; other < size_; ++other) {
      if (children_[other].process.pid() == 0 && server_.value(other, key)) return true;
    }
    return false;
  }

  // Returns true if a process that the launcher has not reaped may be the cause of the unreported
  // failures.
  [[nodiscard]] bool awaits_cause() const {
    if (phase_ != Phase::kRunning || running_ == 0) return false;
    const Deadline now = std::chrono::steady_clock::now();
    if (now >= unreported_since_ + kCausePatience) return false;
    int most = 0;
    for (const auto& [status, rank] : unreported_) most = std::max(most, cause_order(status));
    if (most == cause_order(SIGKILL)) return false;
    const bool is_ending = std::any_of(children_.begin(), children_.end(), [](const Child& child) {
      return child.process.is_ending();
    });
    if (is_ending || most > 0) return is_ending;
    return now < unreported_since_ + kCauseGrace ||
           std::any_of(unreported_.begin(), unreported_.end(),
                       [this](const auto& one) { return blames_running_process(one.second); });
  }
  // Returns true if `rank` has exited because of a process that the launcher has not reaped yet.
  [[nodiscard]] bool blames_running_process(int rank) const {
    int other = 0;
    return absl::SimpleAtoi(server_.value(rank, internal::kFailedPeerKey).value_or(""), &other) &&
           other >= 0 && other < size_ && other != rank && children_[other].process.pid() > 0;
  }

  // Reports the failures, the cause first.
  void report_failures() {
    unreported_until_ = kForever;
    std::vector<std::pair<int, int>> failures = std::exchange(unreported_, {});
    std::stable_sort(failures.begin(), failures.end(), [](const auto& a, const auto& b) {
      return cause_order(a.first) > cause_order(b.first);
    });
    // Report the failures to the other processes only now. After an earlier report a process could
    // end in order although the job is about to be ended.
    for (const auto& [status, rank] : failures) {
      static_cast<void>(server_.rank_ended(rank, describe_end(status)));
    }
    for (const auto& [status, rank] : failures) on_failure(rank, status);
    kill_given_up();
  }

  void on_failure(int rank, int status) {
    if (code_ == 0) code_ = code_of(status);
    // A failure after the first one is a consequence of it, or was caused by the launcher. The
    // exception is a cause that is detected late: a signal that the launcher has not sent, after an
    // exit with an error.
    const bool is_late_cause = phase_ == Phase::kEnding && !hurried_ &&
                               cause_order(status) > named_order_ &&
                               WTERMSIG(status) != ending_signal_;
    const bool is_first = named_order_ < 0 || options_.keep_going;
    if ((phase_ != Phase::kRunning || !is_first) && !is_late_cause) return;
    named_order_ = cause_order(status);
    say(absl::StrCat("rank ", rank, " ", describe_end(status)));
    if (phase_ != Phase::kRunning || options_.keep_going || running_ == 0) return;
    end_job(SIGTERM);
  }

  void on_closed(int rank, const absl::Status& why) {
    if (why.ok()) return;  // the process ended or called finalize(); its pidfd tells which
    if (absl::IsResourceExhausted(why)) throw std::bad_alloc();  // see serve()
    say(absl::StrCat("rank ", rank,
                     " broke the exchange, and is killed: ", std::string(why.message())));
    children_[rank].process.signal_group(SIGKILL);
  }

  void on_signal(int signal) {
    if (signal == SIGTSTP) {
      kill_all(SIGTSTP);
      raise(SIGSTOP);
      return;
    }
    if (!internal::LauncherSignals::ends_job(signal)) {
      kill_all(signal);
      return;
    }
    hurried_ = true;
    if (running_ == 0 && code_ == 0) code_ = 128 + signal;  // only its output is left
    if (phase_ == Phase::kRunning) {
      say(absl::StrCat("SIG", sigabbrev_np(signal), " is passed on; a second one kills the job"));
      end_job(signal);
    } else {
      kill_job();
    }
  }

  void on_time() {
    const Deadline now = std::chrono::steady_clock::now();
    if (now >= unreported_until_) {
      if (awaits_cause()) {
        unreported_until_ = unreported_since_ + kCausePatience;
      } else {
        report_failures();
      }
    }
    if (now >= deadline_ && (running_ > 0 || output_is_awaited())) {
      deadline_ = kForever;
      hurried_ = true;
      if (phase_ == Phase::kRunning) {
        timed_out_ = true;
        say(absl::StrCat("the job did not end within ", options_.timeout.count() / 1000.0, " s: ",
                         running_ > 0 ? name_ranks(still_running()) + " still running"
                                      : "its output is not read"));
        end_job(SIGTERM);
      } else if (running_ == 0) {
        kill_job();
      }
    }
    if (now >= kill_at_ && phase_ == Phase::kEnding) {
      if (running_ > 0) {
        say(absl::StrCat(name_ranks(still_running()), " did not end within ",
                         options_.grace.count() / 1000.0, " s of grace, and will be killed"));
      }
      if (running_ > 0 || hurried_) kill_job();
      kill_at_ = kForever;
    }
  }

  void end_job(int signal) {
    phase_ = Phase::kEnding;
    ending_signal_ = signal;
    kill_at_ = deadline_after(options_.grace);
    kill_all(signal);
    kill_all(SIGCONT);  // a stopped process would not handle the signal
  }

  void kill_job() {
    phase_ = Phase::kKilled;
    kill_at_ = kForever;
    kill_all(SIGKILL);
  }

  void kill_all(int signal) {
    for (Child& child : children_) child.process.signal_group(signal);
  }

  void reap_killed() {
    for (size_t rank = 0; rank < children_.size(); ++rank) {
      if (children_[rank].process.pid() == 0) continue;
      guardian_.guard(rank, 0);  // its number may be reused from now on
      static_cast<void>(children_[rank].process.reap());
    }
    running_ = 0;
  }

  [[nodiscard]] std::vector<int> still_running() const {
    std::vector<int> ranks;
    for (int rank = 0; rank < size_; ++rank) {
      if (children_[rank].process.pid() > 0) ranks.push_back(rank);
    }
    return ranks;
  }

  void pass_output(int rank, int stream) {
    Child& child = children_[rank];
    const int descriptor = child.process.output(stream);
    if (descriptor < 0) return;
    // Read at most the bytes that the pipe contains now: processes that left the group may continue
    // to write.
    int left = 0;
    if (ioctl(descriptor, FIONREAD, &left) != 0) left = 0;
    do {
      char chunk[kOutputChunk];
      const ssize_t count = read(descriptor, chunk, sizeof chunk);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
      if (count <= 0) {
        child.process.close_output(stream);
        return;
      }
      left -= static_cast<int>(count);
      std::string lines;
      child.taggers[static_cast<size_t>(stream)].append({chunk, static_cast<size_t>(count)}, lines);
      outputs_[static_cast<size_t>(stream)].append(lines);
    } while (left > 0);
  }

  void say(const std::string& what) { outputs_[1].append("cariama-run: " + what + "\n"); }

  // Returns true if the processes' output has to be written before the launcher ends. A job that
  // was interrupted or ran out of time does not wait for the reader of its output after its grace.
  [[nodiscard]] bool output_is_awaited() const {
    const bool given_up = hurried_ && phase_ == Phase::kKilled;
    return !given_up && !(outputs_[0].empty() && outputs_[1].empty());
  }

  const LaunchOptions& options_;
  const internal::JobPlan plan_;
  const int size_;
  const DescriptorLimit descriptors_;
  internal::LauncherSignals signals_;
  std::array<internal::OutputQueue, 2> outputs_{internal::OutputQueue(STDOUT_FILENO),
                                                internal::OutputQueue(STDERR_FILENO)};
  Orphanage orphanage_;
  internal::Guardian guardian_;
  InputRelay input_;
  std::vector<Child> children_;
  ExchangeServer server_;
  int running_ = 0;
  Phase phase_ = Phase::kRunning;
  Deadline deadline_ = kForever;  // of the job
  Deadline kill_at_ = kForever;
  int ending_signal_ = 0;  // that end_job() has sent
  int named_order_ = -1;   // cause_order() of the last failure that was reported
  // Failures that are not reported yet, because another process may be their cause; status and
  // rank.
  std::vector<std::pair<int, int>> unreported_;
  Deadline unreported_since_{};           // of the first one
  Deadline unreported_until_ = kForever;  // the next time to call awaits_cause()
  bool timed_out_ = false;
  bool output_lost_ = false;
  bool hurried_ = false;  // a signal or the time limit ends the job
  int code_ = 0;
};

absl::Status check_options(const LaunchOptions& options) {
  const auto bad = [](const std::string& what) {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation, what);
  };
  if (options.command.empty()) return bad("no program to run is given");
  if (options.processes < 0) return bad("the number of processes is negative");
  if (options.processes == 0 && options.place != "zone-endpoint") {
    return bad("the number of processes (-n) is not given");
  }
  if (options.threads && *options.threads == 0) return bad("a process needs one thread at least");
  if (options.timeout.count() < 0 || options.grace.count() < 0) return bad("a time is negative");
  return absl::OkStatus();
}

absl::StatusOr<internal::JobPlan> make_plan(const LaunchOptions& options) {
  if (options.bind == Binding::kNone && options.place.empty()) {
    return internal::JobPlan{
        .processes = std::vector<internal::ProcessPlan>(static_cast<size_t>(options.processes)),
        .warning = {}};
  }
  absl::StatusOr<std::vector<internal::Core>> cores = internal::usable_cores();
  if (!cores.ok()) return cores.status();
  std::vector<internal::Endpoint> endpoints;
  std::vector<internal::Place> places;
  int processes = options.processes;
  if (!options.place.empty()) endpoints = internal::list_endpoints();
  if (options.place == "zone-endpoint") {
    const std::vector<internal::Place> all = internal::zone_endpoint_places(*cores, endpoints);
    if (processes == 0) processes = static_cast<int>(all.size());
    for (int rank = 0; rank < processes; ++rank) {
      places.push_back(all[static_cast<size_t>(rank) % all.size()]);
    }
  } else if (!options.place.empty()) {
    const absl::StatusOr<std::string> text = internal::read_file(options.place, internal::kMiB);
    if (!text.ok()) {
      return make_error(absl::StatusCode::kNotFound, ErrorScope::kOperation,
                        absl::StrCat("the place file '", options.place,
                                     "' cannot be read: ", text.status().message()));
    }
    absl::StatusOr<std::vector<internal::Place>> parsed =
        internal::parse_place_file(*text, processes);
    if (!parsed.ok()) return parsed.status();
    places = *std::move(parsed);
  }
  return internal::plan_job(processes, options.threads.value_or(1), options.bind, places, *cores,
                            endpoints);
}

}  // namespace

absl::StatusOr<int> launch(const LaunchOptions& options) {
  internal::open_standard_streams();
  if (absl::Status usable = check_options(options); !usable.ok()) return usable;
  try {
    absl::StatusOr<internal::JobPlan> plan = make_plan(options);
    if (!plan.ok()) return plan.status();
    Job job(options, *std::move(plan));
    return job.run();
  } catch (const std::bad_alloc&) {  // the destructor of the job has killed its processes
    return internal::error_or_code(absl::StatusCode::kResourceExhausted, [] {
      return make_errno_error(ENOMEM, ErrorScope::kProcess,
                              "the job was killed, since its launcher lacks memory",
                              "raise ulimit -v and -d of the launcher, or run fewer processes");
    });
  }
}

}  // namespace cariama
