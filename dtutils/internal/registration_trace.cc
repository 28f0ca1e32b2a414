#include "dtutils/internal/registration_trace.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdlib>
#include <cstring>

#include "dtutils/diagnostics.h"
#include "dtutils/error.h"

namespace cariama::internal {
namespace {

int64_t read_clock(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// FNV-1a over the return addresses relative to their modules: the same in each run of a program,
// wherever it is loaded.
uint32_t call_site_of(const CallStack& stack) {
  uint32_t hash = 0x811c9dc5;
  for (const uintptr_t address : stack) {
    if (address == 0) break;
    Dl_info module{};
    uintptr_t relative = address;
    if (dladdr(reinterpret_cast<void*>(address), &module) != 0) {
      relative -= reinterpret_cast<uintptr_t>(module.dli_fbase);
    }
    for (size_t byte = 0; byte < sizeof(relative); ++byte) {
      hash = (hash ^ static_cast<uint8_t>(relative >> (8 * byte))) * 0x01000193;
    }
  }
  return hash;
}

std::string named(std::string file) {
  const std::string process = std::to_string(getpid());
  for (size_t at = 0; (at = file.find("%p", at)) != std::string::npos; at += process.size()) {
    file.replace(at, 2, process);
  }
  return file;
}

}  // namespace

RegistrationTrace* RegistrationTrace::get() {
  // Never destroyed: caches may outlive all static objects.
  static RegistrationTrace* const trace = []() -> RegistrationTrace* {
    const char* const file = secure_getenv("CARIAMA_TRACE_REGISTRATION");
    if (file == nullptr || *file == '\0') return nullptr;
    auto created = create(named(file));
    if (!created.ok()) {
      report_once("registration.trace", "the uses of registered memory are not recorded",
                  std::string(created.status().message()));
      return nullptr;
    }
    std::atexit([] { get()->write_all(); });
    return created->release();
  }();
  return trace;
}

absl::StatusOr<std::unique_ptr<RegistrationTrace>> RegistrationTrace::create(
    const std::string& file) {
  // A file that exists may belong to another process, and a link may lead anywhere.
  const int descriptor =
      open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  std::FILE* const stream = descriptor < 0 ? nullptr : fdopen(descriptor, "w");
  if (stream == nullptr) {
    return make_errno_error(errno, ErrorScope::kProcess, "creating the trace " + file,
                            "name a file that does not exist (%p becomes the process id)");
  }
  // Each line immediately: a forked child must not write a line of its parent again.
  std::setvbuf(stream, nullptr, _IOLBF, 4096);
  std::fputs("# rank,t_ns,t_end_ns,kind,callsite_hash,addr,bytes,peer,c_ns\n", stream);
  return std::unique_ptr<RegistrationTrace>(new RegistrationTrace(stream));
}

RegistrationTrace::RegistrationTrace(std::FILE* file)
    : file_(file), process_(getpid()), start_(read_clock(CLOCK_MONOTONIC)) {}

RegistrationTrace::~RegistrationTrace() {
  if (getpid() != process_) return;
  write_all();
  std::fclose(file_);
}

uint64_t RegistrationTrace::begin(const void* address, size_t bytes, const CallStack& stack) {
  if (getpid() != process_) return 0;
  const Use use{.begin = 0,
                .end = 0,
                .call_site = call_site_of(stack),
                .thread = gettid(),
                .address = reinterpret_cast<uintptr_t>(address),
                .bytes = bytes,
                .processor_time = read_clock(CLOCK_THREAD_CPUTIME_ID)};
  const std::lock_guard lock(mutex_);
  uses_.push_back(use);
  uses_.back().begin = read_clock(CLOCK_MONOTONIC) - start_;
  return written_ + uses_.size();
}

void RegistrationTrace::end(uint64_t id) {
  if (getpid() != process_) return;
  const std::lock_guard lock(mutex_);
  // write_all() may have written it.
  if (id <= written_) return;
  uses_[id - written_ - 1].end = read_clock(CLOCK_MONOTONIC) - start_;
  while (!uses_.empty() && uses_.front().end != 0) write_first();
}

void RegistrationTrace::write_all() {
  if (getpid() != process_) return;  // exit() of a forked child
  const std::lock_guard lock(mutex_);
  while (!uses_.empty()) {
    if (uses_.front().end == 0) uses_.front().end = read_clock(CLOCK_MONOTONIC) - start_;
    write_first();
  }
  std::fflush(file_);
}

void RegistrationTrace::write_first() {
  const Use& use = uses_.front();
  std::fprintf(
      file_, "%d,%" PRId64 ",%" PRId64 ",use,%08" PRIx32 ",%" PRIuPTR ",%zu,-1,%" PRId64 "\n",
      use.thread, use.begin, use.end, use.call_site, use.address, use.bytes, use.processor_time);
  // Each line is written immediately. A lost one is no end of the program, but it is reported.
  if (std::ferror(file_) != 0) {
    report_once("registration.trace", "uses of registered memory are missing in the trace",
                std::string("writing its file: ") + std::strerror(errno));
  }
  uses_.pop_front();
  ++written_;
}

}  // namespace cariama::internal
