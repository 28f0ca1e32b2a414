// A device with everything that a test needs (domain, completion queue, registered memory), and
// functions that connect two of them.
#ifndef CARIAMA_TESTS_DTUTILS_TESTING_DEVICE_NODE_H_
#define CARIAMA_TESTS_DTUTILS_TESTING_DEVICE_NODE_H_

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "dtutils/device.h"

namespace cariama {

// Returns the value of a StatusOr. If it is not OK, aborts the process.
template <typename T>
T must(absl::StatusOr<T> value) {
  if (!value.ok()) {
    ADD_FAILURE() << value.status();
    std::abort();
  }
  return *std::move(value);
}
// Fails the test if the Status is not OK.
inline void must(const absl::Status& status) { ASSERT_TRUE(status.ok()) << status; }

struct DeviceNode {
  explicit DeviceNode(std::shared_ptr<Device> made_from, size_t bytes = 4096, uint32_t depth = 1024)
      : device(std::move(made_from)), memory(bytes / 8) {
    domain = must(device->create_domain());
    completions = must(domain->create_completion_queue({.depth = 4 * depth}));
    region = must(domain->register_memory({memory.data(), bytes}, Access::kAll));
    options.send_completions = options.receive_completions = completions;
    options.send_depth = options.receive_depth = depth;
  }

  std::unique_ptr<QueuePair> make_queue_pair() { return must(domain->create_queue_pair(options)); }

  [[nodiscard]] std::byte* bytes() { return reinterpret_cast<std::byte*>(memory.data()); }
  [[nodiscard]] Segment segment(size_t offset, uint32_t length) {
    return {bytes() + offset, length, region->local_key()};
  }
  // Polls until there are `wanted` completions. Gives up after 20 s, or after `polls` empty polls,
  // for simulated fabrics, where no real time needs to pass.
  [[nodiscard]] std::vector<Completion> poll_for(size_t wanted, uint64_t polls = ~uint64_t{0}) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    std::vector<Completion> found(wanted);
    size_t count = 0;
    while (count < wanted && polls > 0 && std::chrono::steady_clock::now() < deadline) {
      const size_t more = completions->poll(std::span(found).subspan(count));
      count += more;
      if (more > 0) continue;
      --polls;
      std::this_thread::yield();
    }
    found.resize(count);
    return found;
  }

  std::shared_ptr<Device> device;
  std::vector<uint64_t> memory;
  std::shared_ptr<ProtectionDomain> domain;
  std::shared_ptr<CompletionQueue> completions;
  std::shared_ptr<MemoryRegion> region;
  QueuePairOptions options;
};

inline void connect_pair(QueuePair& a, QueuePair& b, const ConnectOptions& options = {}) {
  must(a.connect(b.address(), options));
  must(b.connect(a.address(), options));
}

// Returns a request that moves data between `segment` and the memory of `target` at `offset`.
inline WorkRequest request_for(Opcode opcode, const Segment& segment, const DeviceNode& target,
                               uint64_t offset, uint64_t id = 0, uint8_t flags = kSignaled) {
  return {.id = id,
          .opcode = opcode,
          .flags = flags,
          .segment_count = 1,
          .segments = &segment,
          .remote_address = target.region->locator(offset, segment.length).address,
          .remote_key = target.region->remote_key()};
}

}  // namespace cariama

#endif  // CARIAMA_TESTS_DTUTILS_TESTING_DEVICE_NODE_H_
