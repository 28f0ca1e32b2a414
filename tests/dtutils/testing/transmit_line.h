// Fixtures for tests of Transmitter: registered memory with its RDMAMemory, and a TransmitQueue
// that is connected to a plain queue pair.
#ifndef CARIAMA_TESTS_DTUTILS_TESTING_TRANSMIT_LINE_H_
#define CARIAMA_TESTS_DTUTILS_TESTING_TRANSMIT_LINE_H_

#include <memory>
#include <string>
#include <utility>

#include "dtutils/transmitter.h"
#include "tests/dtutils/contract/harness.h"

namespace cariama::testing {

// Registered memory with its RDMAMemory handle.
struct Local {
  Local(ProtectionDomain& domain, size_t bytes)
      : buffer(domain, bytes),
        // Not owned: `buffer` owns the registration.
        range({{&domain, {std::shared_ptr<void>(), const_cast<MemoryRegion*>(&buffer.region())}}}),
        memory(buffer.data(), bytes, &range) {}

  Buffer buffer;
  RegisteredRange range;
  RDMAMemory memory;
};

struct TransmitLine {
  std::unique_ptr<TransmitQueue> near;
  std::shared_ptr<CompletionQueue> near_receives;
  End far;

  // Repairs both ends, which is possible because they are in one process.
  void repair() {
    must(near->repair());
    must(far->repair());
    static_cast<void>(drain(*far.sends));
    static_cast<void>(drain(*far.receives));
  }
};

[[nodiscard]] inline TransmitLine make_transmit_line(ProtectionDomain& near, ProtectionDomain& far,
                                                     uint32_t depth,
                                                     const TransmitOptions& behaviour = {},
                                                     const ConnectOptions& connect = {},
                                                     const std::string& far_label = "the far end",
                                                     uint32_t segments = 4) {
  TransmitLine line;
  line.near_receives = must(near.create_completion_queue({.depth = 256}));
  line.near = must(TransmitQueue::create(near,
                                         {.receive_completions = line.near_receives,
                                          .send_depth = depth,
                                          .max_send_segments = segments},
                                         behaviour));
  line.far.sends = must(far.create_completion_queue({.depth = 256}));
  line.far.receives = must(far.create_completion_queue({.depth = 256}));
  line.far.pair = must(far.create_queue_pair({.send_completions = line.far.sends,
                                              .receive_completions = line.far.receives,
                                              .send_depth = 64,
                                              .receive_depth = 64}));
  ConnectOptions labelled = connect;
  labelled.peer = far_label;
  must(line.near->queue_pair().connect(line.far->address(), labelled));
  labelled.peer = "the near end";
  must(line.far->connect(line.near->queue_pair().address(), labelled));
  return line;
}

// Deadline for waits that should succeed: a defect fails the test instead of hanging it.
[[nodiscard]] inline Deadline soon() { return deadline_after(kPatience); }

}  // namespace cariama::testing

#endif  // CARIAMA_TESTS_DTUTILS_TESTING_TRANSMIT_LINE_H_
