// Two processes with everything that bench_transfer measures between them: a queue pair for manual
// signaling, one for automatic, and registered memory at both ends.
//
// Rank 0 measures. Rank 1 lends its memory and does what rank 0 tells it (Target): during one-sided
// transfers it sleeps.
#ifndef CARIAMA_BENCH_SUPPORT_TRANSFER_SIDE_H_
#define CARIAMA_BENCH_SUPPORT_TRANSFER_SIDE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtutils/allocators/superpages.h"
#include "dtutils/device.h"
#include "dtutils/memory.h"
#include "dtutils/process_group.h"
#include "dtutils/queue_pair.h"
#include "dtutils/transmitter.h"

namespace cariama::bench {

// What a transfer does with the memory of rank 1.
enum class Operation : uint8_t { kWrite, kRead, kSend, kFetchAdd, kCompareSwap };

// "write", "read", "send", "fetch-add", "compare-swap".
[[nodiscard]] std::string operation_name(Operation operation);
[[nodiscard]] std::optional<Operation> operation_named(const std::string& name);

struct SideOptions {
  std::optional<Transport> transport{};
  uint64_t max_size = 0;  // bytes of the largest message
  uint64_t ring = 0;      // bytes of a Window
  uint32_t threads = 1;   // the most threads that transfer at once
  uint32_t depth = 1024;
  uint32_t max_inline = 64;
};

// The ring of slots that messages of one size go through in turn, at both ends and in every mode.
struct Window {
  uint64_t size = 0;    // bytes of a message
  uint64_t stride = 0;  // from slot to slot: whole cache lines
  uint64_t bytes = 0;   // of all slots

  // As many slots as fit into `ring` bytes, but one at least.
  Window(uint64_t message_size, uint64_t ring);
  [[nodiscard]] uint64_t slots() const { return bytes / stride; }
};

// The bytes that messages carry: byte i of each window. Never 0.
[[nodiscard]] constexpr std::byte pattern(uint64_t i) {
  return static_cast<std::byte>((i * 0x9E3779B97F4A7C15) >> 56 | 1);
}

class Side {
 public:
  // Opens the device, and connects with the other rank's Side. Blocks.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<Side>> create(Exchange& exchange,
                                                                    const SideOptions& options);

  [[nodiscard]] Exchange& exchange() { return exchange_; }
  [[nodiscard]] const Device& device() const { return *device_; }
  [[nodiscard]] const SideOptions& options() const { return options_; }
  [[nodiscard]] QueuePair& manual_queue() { return *manual_; }
  [[nodiscard]] CompletionQueue& manual_completions() { return *manual_completions_; }
  [[nodiscard]] CompletionQueue& receive_completions() { return *receive_completions_; }
  [[nodiscard]] TransmitQueue& transmit_queue() { return *transmit_; }

  [[nodiscard]] const Superpage& memory() const { return *memory_; }
  [[nodiscard]] const MemoryRegion& region() const { return *region_; }
  [[nodiscard]] Window window(uint64_t size) const { return {size, options_.ring}; }
  // The memory of `thread`: a window, and a cache line for ceiling's counter.
  [[nodiscard]] RDMAMemory handle(uint32_t thread) const;
  // The other rank's memory, the part of `thread`.
  [[nodiscard]] RemoteMemoryLocator remote(uint32_t thread) const;

 private:
  Side(Exchange& exchange, const SideOptions& options) : exchange_(exchange), options_(options) {}
  [[nodiscard]] absl::Status set_up();
  [[nodiscard]] uint64_t thread_stride() const;

  Exchange& exchange_;
  const SideOptions options_;
  std::shared_ptr<Device> device_;
  std::shared_ptr<ProtectionDomain> domain_;
  std::optional<Superpage> memory_;
  std::shared_ptr<MemoryRegion> region_;
  std::optional<RegisteredRange> range_;
  std::shared_ptr<CompletionQueue> manual_completions_;
  std::shared_ptr<CompletionQueue> receive_completions_;
  std::unique_ptr<QueuePair> manual_;
  std::unique_ptr<TransmitQueue> transmit_;
  RemoteMemoryLocator remote_;
};

}  // namespace cariama::bench

#endif  // CARIAMA_BENCH_SUPPORT_TRANSFER_SIDE_H_
