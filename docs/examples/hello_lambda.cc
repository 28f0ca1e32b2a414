// Every thread calls a thread of another process: a lambda with captures, a call with serialized
// arguments, and a call that returns a result. `example_hello_lambda -n 4` starts four processes.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "docs/examples/check.h"
#include "docs/examples/options.h"
#include "dsfabric/run_job.h"
#include "riutils/call.h"

namespace {

using namespace cariama;  // NOLINT: an example

std::atomic<int> greeted = 0;  // calls of greet() that ran in this process

// [hello_call]
// The captures are copied bytewise. The lambda runs in the other process.
void greet(ThreadContext& self, RDMAMessenger& messenger) {
  check(messenger.call([from = self.global_id()] {
    std::printf("hello from thread %u\n", from.value());
    ++greeted;
  }));
}
// [hello_call]

// [hello_return]
// A value that is not trivially copyable is passed as an argument, which is serialized. The result
// is stored into `sentence`.
std::string ask(Fabric& fabric, RDMAMessenger& messenger) {
  std::string sentence;
  Synchronizer answered;
  check(messenger.call_return(
      [](const std::vector<std::string>& words) {
        std::string all;
        for (const std::string& word : words) all += word + " ";
        return all;
      },
      sentence, answered, std::vector<std::string>{"it", "ran", "elsewhere"}));
  // While this thread waits, it runs the calls that have arrived for it.
  check(fabric.wait(answered, deadline_after(std::chrono::seconds(60))));
  return sentence;
}
// [hello_return]

// [hello]
absl::Status hello(ThreadContext& self) {
  Fabric& fabric = self.fabric();
  const ThreadId other = (self.global_id() + 1) % fabric.total_threads();
  RDMAMessenger messenger(self, other);
  greet(self, messenger);
  const std::string sentence = ask(fabric, messenger);
  std::printf("thread %u got: %s\n", self.global_id().value(), sentence.c_str());
  check(sentence == "it ran elsewhere ", "another answer was expected");
  const Deadline deadline = deadline_after(std::chrono::seconds(60));
  check(fabric.wait([&] { return greeted >= 1; }, deadline), "no thread has called");
  return messenger.shutdown(deadline);
}
// [hello]

}  // namespace

// [hello_main]
int main(int argc, char** argv) {
  read_options(argc, argv);  // --help and --version
  return run_job({.launch = {.processes = 2}}, argc, argv, hello);
}
// [hello_main]
