// One end of a shm connection, in its own process: device, domain, queues, and the memory of a
// sealed memfd.
#ifndef CARIAMA_TESTS_DTUTILS_SHM_SHM_NODE_H_
#define CARIAMA_TESTS_DTUTILS_SHM_SHM_NODE_H_

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "dtutils/device.h"
#include "dtutils/process_group.h"
#include "tests/dtutils/testing/device_node.h"

namespace cariama {

inline std::chrono::steady_clock::time_point soon() {
  return std::chrono::steady_clock::now() + std::chrono::seconds(30);
}

// Memory of a memfd that carries the given seals.
class Memfd {
 public:
  explicit Memfd(size_t bytes, int seals = F_SEAL_SHRINK | F_SEAL_GROW)
      : bytes_(bytes), descriptor_(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING)) {
    if (ftruncate(descriptor_, static_cast<off_t>(bytes)) != 0) std::abort();
    if (seals != 0 && fcntl(descriptor_, F_ADD_SEALS, seals) != 0) std::abort();
    address_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
    if (address_ == MAP_FAILED) std::abort();
  }
  ~Memfd() {
    munmap(address_, bytes_);
    close(descriptor_);
  }
  Memfd(const Memfd&) = delete;
  Memfd& operator=(const Memfd&) = delete;

  [[nodiscard]] std::byte* data() const { return static_cast<std::byte*>(address_); }
  [[nodiscard]] MemorySource source() const { return {address_, bytes_, descriptor_, 0}; }
  [[nodiscard]] uint64_t& word(size_t index) const {
    return static_cast<uint64_t*>(address_)[index];
  }
  [[nodiscard]] int descriptor() const { return descriptor_; }

 private:
  size_t bytes_;
  int descriptor_;
  void* address_;
};

struct ShmNode {
  explicit ShmNode(size_t bytes = 1 << 16) : memory(bytes) {
    device = must(open_device({.transport = Transport::kShm}));
    domain = must(device->create_domain());
    channel = must(domain->create_channel());
    completions = must(domain->create_completion_queue({.channel = channel}));
    region = must(domain->register_memory(memory.source(), Access::kAll));
    queue_pair = make_queue_pair();
  }

  std::unique_ptr<QueuePair> make_queue_pair(std::shared_ptr<SharedReceiveQueue> shared = nullptr) {
    QueuePairOptions options;
    options.send_completions = options.receive_completions = completions;
    options.shared_receives = std::move(shared);
    return must(domain->create_queue_pair(options));
  }

  [[nodiscard]] Segment segment(size_t offset, uint32_t length) const {
    return {memory.data() + offset, length, region->local_key()};
  }

  // Polls until there are `wanted` completions, at most 20 s.
  [[nodiscard]] std::vector<Completion> poll_for(size_t wanted) const {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    std::vector<Completion> found(wanted);
    size_t count = 0;
    while (count < wanted && std::chrono::steady_clock::now() < deadline) {
      count += completions->poll(std::span(found).subspan(count));
      std::this_thread::yield();
    }
    found.resize(count);
    return found;
  }
  // Posts the request, signaled, and waits for its completion.
  [[nodiscard]] CompletionStatus run(QueuePair& pair, WorkRequest request) const {
    request.flags |= kSignaled;
    if (!pair.post_send(request).ok()) return CompletionStatus::kUnknown;
    const std::vector<Completion> done = poll_for(1);
    return done.size() == 1 ? done[0].status : CompletionStatus::kUnknown;
  }
  [[nodiscard]] CompletionStatus run(const WorkRequest& request) const {
    return run(*queue_pair, request);
  }

  Memfd memory;
  std::shared_ptr<Device> device;
  std::shared_ptr<ProtectionDomain> domain;
  std::shared_ptr<CompletionChannel> channel;
  std::shared_ptr<CompletionQueue> completions;
  std::shared_ptr<MemoryRegion> region;
  std::unique_ptr<QueuePair> queue_pair;
};

inline WorkRequest remote_request(Opcode opcode, const Segment& segment,
                                  const RemoteMemoryLocator& remote) {
  return {.opcode = opcode,
          .segment_count = 1,
          .segments = &segment,
          .remote_address = remote.address,
          .remote_key = remote.key};
}

template <typename Plain>
void put_plain(Exchange& exchange, std::string_view key, const Plain& value) {
  must(exchange.put(key, std::string(reinterpret_cast<const char*>(&value), sizeof value)));
}
template <typename Plain>
Plain get_plain(Exchange& exchange, int rank, std::string_view key) {
  const std::string bytes = must(exchange.get(rank, key, soon()));
  Plain value;
  if (bytes.size() != sizeof value) std::abort();
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

// Exchanges addresses with `peer`, and connects. `tag` distinguishes several connections to one
// peer.
inline void connect_to(Exchange& exchange, QueuePair& pair, int peer, const std::string& tag = "",
                       ConnectOptions options = {}) {
  const std::string mine = "address " + tag + std::to_string(peer);
  const std::string theirs = "address " + tag + std::to_string(exchange.rank());
  must(exchange.put(mine, pair.address()));
  options.peer = exchange.label(peer);
  must(pair.connect(must(exchange.get(peer, theirs, soon())), options));
  must(exchange.put("connected " + mine, ""));
  static_cast<void>(must(exchange.get(peer, "connected " + theirs, soon())));
}

}  // namespace cariama

#endif  // CARIAMA_TESTS_DTUTILS_SHM_SHM_NODE_H_
