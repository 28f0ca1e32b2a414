#include "dsfabric/launcher/child_process.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "dtutils/error.h"

namespace cariama::internal {
namespace {

// Flags of a task in /proc/PID/stat (linux/sched.h): it is being shut down; a signal has killed it.
constexpr uint64_t kFlagExiting = 0x4;
constexpr uint64_t kFlagSignaled = 0x400;

struct CpuSet {
  explicit CpuSet(const std::vector<int>& cpus) {
    if (cpus.empty()) return;
    const auto count = static_cast<size_t>(*std::max_element(cpus.begin(), cpus.end())) + 1;
    bytes = CPU_ALLOC_SIZE(count);
    words.resize(bytes / sizeof(unsigned long));
    for (const int cpu : cpus) CPU_SET_S(static_cast<size_t>(cpu), bytes, set());
  }
  cpu_set_t* set() { return reinterpret_cast<cpu_set_t*>(words.data()); }
  std::vector<unsigned long> words;
  size_t bytes = 0;
};

// Returns this process's environment with changes, in the form that execvpe() requires.
std::vector<std::string> environment_with(const std::map<std::string, std::string>& changes) {
  std::vector<std::string> all;
  for (char** one = environ; *one != nullptr; ++one) {
    const std::string entry(*one);
    if (!changes.contains(entry.substr(0, entry.find('=')))) all.push_back(entry);
  }
  for (const auto& [name, value] : changes) all.push_back(name + "=" + value);
  return all;
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  pointers.reserve(texts.size() + 1);
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

absl::Status start_failed(const char* what) {
  return make_errno_error(errno, ErrorScope::kProcess, std::string("starting a process: ") + what,
                          "raise ulimit -n and ulimit -u, or run fewer processes");
}

// Makes a pipe whose ends are closed on exec; the child duplicates its end to a standard stream.
absl::Status open_pipe(FileDescriptor& reader, FileDescriptor& writer) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return start_failed("pipe");
  reader = FileDescriptor(ends[0]);
  writer = FileDescriptor(ends[1]);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ChildProcess> ChildProcess::start(const ChildSetup& setup) {
  // Allocate all memory before the fork: another thread may hold the allocator's locks at the fork.
  std::vector<std::string> arguments = setup.command;
  const std::vector<char*> argv = pointers_to(arguments);
  std::vector<std::string> environment = environment_with(setup.variables);
  const std::vector<char*> envp = pointers_to(environment);
  CpuSet cpus(setup.cpus);
  ChildProcess child;
  FileDescriptor verdict;  // closed without data when the program was executed
  FileDescriptor verdict_writer;
  if (absl::Status made = open_pipe(verdict, verdict_writer); !made.ok()) return made;
  FileDescriptor null(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!null.valid()) return start_failed("/dev/null");
  std::array<FileDescriptor, 2> writers;
  if (setup.capture_output) {
    for (size_t stream = 0; stream < 2; ++stream) {
      absl::Status made = open_pipe(child.output_[stream], writers[stream]);
      if (!made.ok()) return made;
      fcntl(child.output_[stream].get(), F_SETFL, O_NONBLOCK);
    }
  }

  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return start_failed("fork");
  if (pid == 0) {
    // Only async-signal-safe calls from here on.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);  // the parent died before the prctl
    setpgid(0, 0);
    setup.in_child();
    int error = 0;
    if (dup2(setup.input < 0 ? null.get() : setup.input, STDIN_FILENO) < 0) error = errno;
    for (int stream = 0; stream < 2 && setup.capture_output; ++stream) {
      if (dup2(writers[static_cast<size_t>(stream)].get(), STDOUT_FILENO + stream) < 0) {
        error = errno;
      }
    }
    if (fcntl(setup.inherited_descriptor, F_SETFD, 0) != 0) error = errno;
    if (cpus.bytes != 0 && sched_setaffinity(0, cpus.bytes, cpus.set()) != 0) error = errno;
    sigprocmask(SIG_SETMASK, &setup.signal_mask, nullptr);
    if (error == 0) {
      execvpe(argv[0], argv.data(), envp.data());
      error = errno;
    }
    static_cast<void>(!write(verdict_writer.get(), &error, sizeof error));
    _exit(127);
  }

  // The child calls setpgid() too. The group exists after the first of the two calls, so a signal
  // to the group reaches the child in any case.
  setpgid(pid, pid);
  child.pid_ = pid;
  child.pidfd_ = FileDescriptor(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  verdict_writer.reset();
  int error = 0;
  ssize_t count = 0;
  do {
    count = read(verdict.get(), &error, sizeof error);
  } while (count < 0 && errno == EINTR);
  if (count == 0 && child.pidfd_.valid()) return child;
  if (count == 0) error = EMFILE;
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
  return make_errno_error(
      error, ErrorScope::kProcess, "running '" + setup.command.front() + "'",
      error == ENOENT ? "give the path of a program, or a name that is in PATH" : "");
}

void ChildProcess::signal_group(int signal) const {
  if (pid_ > 0) kill(-pid_, signal);
}

bool ChildProcess::is_stopped() const {
  siginfo_t state{};
  return pid_ > 0 &&
         waitid(P_PID, static_cast<id_t>(pid_), &state, WSTOPPED | WNOHANG | WNOWAIT) == 0 &&
         state.si_pid == pid_;
}

// The pidfd reports the end only after the process has freed its memory, which takes seconds if the
// process has much memory.
bool ChildProcess::is_ending() const {
  if (pid_ <= 0) return false;
  const std::string directory = absl::StrCat("/proc/", pid_, "/");
  // "PID (NAME) STATE PPID PGRP SESSION TTY TPGID FLAGS ...", and NAME may contain anything.
  std::string line;
  std::getline(std::ifstream(directory + "stat"), line);
  const size_t end_of_name = line.rfind(')');
  if (end_of_name == std::string::npos) return false;
  std::istringstream fields(line.substr(end_of_name + 1));
  char state = 0;
  int64_t skipped = 0;
  uint64_t flags = 0;
  fields >> state;
  for (int i = 0; i < 5; ++i) fields >> skipped;
  fields >> flags;
  if (state == 'Z' || state == 'X' || (flags & (kFlagExiting | kFlagSignaled)) != 0) return true;
  // A thread that has not run since does not have these flags yet.
  std::ifstream status(directory + "status");
  for (std::string name; status >> name;) {
    uint64_t pending = 0;
    if (name != "SigPnd:" && name != "ShdPnd:") continue;
    status >> std::hex >> pending;
    if ((pending & (uint64_t{1} << (SIGKILL - 1))) != 0) return true;
  }
  return false;
}

int ChildProcess::reap() {
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = 0;
  pidfd_.reset();
  return status;
}

}  // namespace cariama::internal
