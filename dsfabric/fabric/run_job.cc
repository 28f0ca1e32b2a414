#include "dsfabric/run_job.h"

#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "dtutils/internal/start_thread.h"
#include "dtutils/wait.h"

namespace cariama::internal {
namespace {

void report(const std::string& subject, const absl::Status& reason) {
  std::fprintf(stderr, "cariama: %s: %s\n", subject.c_str(), reason.ToString().c_str());
}

// The threads of one process of the job.
class JobThreads {
 public:
  JobThreads(Fabric& fabric, const JobOptions& options, const JobBody& body)
      : fabric_(fabric), options_(options), body_(body), running_(fabric.threads()) {}

  // Runs the body in all threads; the calling thread is thread 0. Ends the process if one of them
  // fails.
  void run() {
    std::vector<std::thread> others;
    others.reserve(fabric_.threads());  // push_back() must not throw once a thread runs
    for (uint32_t index = 1; index < fabric_.threads(); ++index) {
      absl::StatusOr<std::thread> other = start_thread([this, index] { run_thread(index); });
      if (!other.ok()) return end(fabric_.label(fabric_.rank()), other.status());
      others.push_back(*std::move(other));
    }
    run_thread(0);
    for (std::thread& other : others) other.join();
  }

 private:
  void run_thread(uint32_t index) {
    const std::string name = fabric_.label(fabric_.rank()) + ", thread " + std::to_string(index);
    auto self = fabric_.init_thread(index, options_.consumer);
    if (!self.ok()) return end(name, self.status());
    end(name, run_body(**self));
    // Runs calls until the bodies of all threads have ended: other threads may still call this one.
    static_cast<void>(fabric_.wait([this] { return running_ == 0; }, kForever));
  }

  [[nodiscard]] absl::Status run_body(ThreadContext& self) const {
    try {
      return body_(self);
    } catch (const std::exception& exception) {
      return absl::InternalError(std::string("the job's body threw: ") + exception.what());
    } catch (...) {
      return absl::InternalError("the job's body threw an exception that is no std::exception");
    }
  }

  void end(const std::string& name, const absl::Status& status) {
    if (!status.ok()) {
      report(name, status);
      // The other threads of this process may wait for this one: only the end of the process ends
      // their waits.
      std::fflush(nullptr);
      _exit(1);
    }
    --running_;
    for (uint32_t index = 0; index < fabric_.threads(); ++index) fabric_.wake(index);
  }

  Fabric& fabric_;
  const JobOptions& options_;
  const JobBody& body_;
  std::atomic<uint32_t> running_;  // threads whose body has not ended
};

}  // namespace

int run_job_body(const JobOptions& options, int argc, const char* const* argv,
                 const JobBody& body) {
  if (const std::optional<int> code = launch_self(options.launch, argc, argv)) return *code;
  auto fabric = Fabric::create(options.fabric);
  if (!fabric.ok()) {
    report("cannot join the job", fabric.status());
    return 1;
  }
  JobThreads(**fabric, options, body).run();
  const Deadline deadline =
      options.end_timeout.count() == 0 ? kForever : deadline_after(options.end_timeout);
  if (absl::Status ended = (*fabric)->finalize(deadline); !ended.ok()) {
    report((*fabric)->label((*fabric)->rank()), ended);
    return 1;
  }
  return 0;
}

}  // namespace cariama::internal
