// Every process calls a thread of another process: a lambda with captures, a call with serialized
// arguments, and a call that returns a result. `example_hello_lambda -n 4` starts four processes.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "docs/examples/check.h"
#include "dsfabric/launcher.h"
#include "riutils/call.h"

namespace {

using namespace cariama;  // NOLINT: an example

std::atomic<int> greeted = 0;  // calls of greet() that ran in this process

// [hello_call]
// The captures are copied bytewise. The lambda runs in the other process.
void greet(ThreadContext& self, RDMAMessenger& messenger) {
  check(messenger
            .call([from = self.global_id()] {
              std::printf("hello from thread %u\n", from);
              ++greeted;
            })
            .status());
}
// [hello_call]

// [hello_return]
// A value that is not trivially copyable is passed as an argument, which is serialized. The result
// is stored into `sentence`.
std::string ask(Fabric& fabric, RDMAMessenger& messenger) {
  std::string sentence;
  Synchronizer answered;
  check(messenger
            .call_return(
                [](const std::vector<std::string>& words) {
                  std::string all;
                  for (const std::string& word : words) all += word + " ";
                  return all;
                },
                sentence, answered, std::vector<std::string>{"it", "ran", "elsewhere"})
            .status());
  // While this thread waits, it runs the calls that have arrived for it.
  check(fabric.wait([&] { return answered.done(); }, deadline_after(std::chrono::seconds(60))),
        "no answer");
  check(answered.status());
  return sentence;
}
// [hello_return]

// [hello]
void hello(Fabric& fabric, ThreadContext& self) {
  const Deadline deadline = deadline_after(std::chrono::seconds(60));
  const uint32_t other = (self.global_id() + 1) % fabric.total_threads();
  RDMAMessenger messenger(self, other);
  greet(self, messenger);
  const std::string sentence = ask(fabric, messenger);
  std::printf("thread %u got: %s\n", self.global_id(), sentence.c_str());
  check(sentence == "it ran elsewhere ", "another answer was expected");
  check(fabric.wait([] { return greeted == 1; }, deadline), "nobody has called");
  check(messenger.shutdown(deadline));
}
// [hello]

}  // namespace

// [hello_main]
int main(int argc, char** argv) {
  if (auto code = launch_self({.processes = 2}, argc, argv)) return *code;
  auto fabric = check(Fabric::create());      // joins the job
  auto self = check(fabric->init_thread(0));  // from now on other threads can call this one
  hello(*fabric, *self);
  check(fabric->finalize(deadline_after(std::chrono::seconds(60))));
  return 0;
}
// [hello_main]
