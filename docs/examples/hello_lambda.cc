// Every process calls a thread of another one: a lambda with captures, arguments that travel through
// the serializer, and a result that comes back. `example_hello_lambda -n 4` is a job of four.
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

// [hello_state]
std::atomic<int> greeted = 0;  // one in each process
// [hello_state]

void hello(Fabric& fabric, ThreadContext& self) {
  const Deadline deadline = deadline_after(std::chrono::seconds(60));
  const uint32_t other = (self.global_id() + 1) % fabric.total_threads();

  // [hello_call]
  RDMAMessenger messenger(self, other);
  // Captures travel bytewise; the lambda runs in the other process.
  check(messenger
            .call([from = self.global_id()] {
              std::printf("hello from thread %u\n", from);
              ++greeted;
            })
            .status());
  // [hello_call]

  // [hello_return]
  // What is not trivially copyable travels as an argument, and the result comes back.
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
  // While this thread waits it runs what others have called.
  check(fabric.wait([&] { return answered.done(); }, deadline), "no answer");
  check(answered.status());
  // [hello_return]
  std::printf("thread %u got: %s\n", self.global_id(), sentence.c_str());
  check(sentence == "it ran elsewhere ", "another answer was expected");

  check(fabric.wait([&] { return greeted == 1; }, deadline), "nobody has called");
  check(messenger.shutdown(deadline));
}

}  // namespace

// [hello_main]
int main(int argc, char** argv) {
  if (auto code = launch_self({.processes = 2}, argc, argv)) return *code;
  auto fabric = check(Fabric::create());      // joins the job
  auto self = check(fabric->init_thread(0));  // this thread can be called now
  hello(*fabric, *self);
  check(fabric->finalize(deadline_after(std::chrono::seconds(60))));
  return 0;
}
// [hello_main]
