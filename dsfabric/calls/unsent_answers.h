// Answers that could not be sent: the process that runs a routed call may first have to connect to
// the process that waits for the answer, and that process may be stopped, or one of the two may
// lack descriptors or memory. A thread repeats these answers at each heartbeat.
#ifndef CARIAMA_DSFABRIC_CALLS_UNSENT_ANSWERS_H_
#define CARIAMA_DSFABRIC_CALLS_UNSENT_ANSWERS_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "dsfabric/bootstrap/fabric_job.h"
#include "dsfabric/call_encoding.h"
#include "dsfabric/calls/call_counts.h"
#include "dtutils/doorbell.h"

namespace cariama::internal {

struct UnsentAnswer {
  uint32_t to = 0;
  uint64_t handle = 0;
  CallOutcome outcome = CallOutcome::kDone;
  std::string type;  // of the exception, and its text
  std::string text;
  std::string result;
};

// Thread-safe. An answer counts as a begun call until it is sent or dropped, so that finalize()
// waits for it. The thread is not the service thread, because connecting blocks.
class UnsentAnswers {
 public:
  // Tries to send an answer. Returns true if it was sent, or is to be dropped. May block.
  using Repeat = std::function<bool(const UnsentAnswer& answer)>;

  // `job` and `counts` must outlive this object.
  UnsentAnswers(const FabricJob& job, CallCounts& counts, Repeat repeat)
      : job_(job), counts_(counts), repeat_(std::move(repeat)) {}
  UnsentAnswers(const UnsentAnswers&) = delete;
  UnsentAnswers& operator=(const UnsentAnswers&) = delete;

  void add(UnsentAnswer answer);
  // Makes the thread repeat the answers, and starts it on first use. Never blocks.
  void heartbeat();
  // Ends the thread. Requires: Lifecycle::stop() was called, and no attempt to connect blocks.
  void stop();

 private:
  void run_until_stopped();
  void repeat_all();

  const FabricJob& job_;
  CallCounts& counts_;
  const Repeat repeat_;
  std::atomic<bool> any_{false};
  std::atomic<bool> due_{false};
  Doorbell wake_;
  std::mutex mutex_;  // guards the following
  std::list<UnsentAnswer> answers_;
  std::thread thread_;
};

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_CALLS_UNSENT_ANSWERS_H_
