// The resources of bench_transfer in each of its two processes: one queue pair for manual
// signaling, one for automatic signaling, and registered memory.
//
// Rank 0 measures. Rank 1 provides the target memory and executes the commands of rank 0
// (transfer_target.h). During one-sided transfers it sleeps.
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

// The operation of a transfer on the memory of rank 1.
enum class Operation : uint8_t { kWrite, kRead, kSend, kFetchAdd, kCompareSwap };

// Returns "write", "read", "send", "fetch-add" or "compare-swap".
[[nodiscard]] std::string operation_name(Operation operation);
[[nodiscard]] std::optional<Operation> operation_named(const std::string& name);

struct SideOptions {
  std::optional<Transport> transport{};
  uint64_t max_size = 0;  // bytes of the largest message
  uint64_t ring = 0;      // bytes of a Window
  uint32_t threads = 1;   // maximum number of threads that transfer at once
  uint32_t depth = 1024;
  uint32_t max_inline = 64;
};

// The ring of slots that messages of one size use in turn, at both ends and in every mode.
struct Window {
  uint64_t size = 0;    // bytes of a message
  uint64_t stride = 0;  // distance between slots: whole cache lines
  uint64_t bytes = 0;   // bytes of all slots

  // Creates as many slots as fit into `ring` bytes, but at least one.
  Window(uint64_t message_size, uint64_t ring);
  [[nodiscard]] uint64_t slots() const { return bytes / stride; }
};

// Returns byte i of the content of each window. Never 0.
[[nodiscard]] constexpr std::byte pattern(uint64_t i) {
  return static_cast<std::byte>((i * 0x9E3779B97F4A7C15) >> 56 | 1);
}

class Side {
 public:
  // Opens the device, and connects to the other rank's Side. Blocks.
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
  // Returns the local memory of `thread`: a window, and a cache line for the counter of kCeiling.
  [[nodiscard]] RDMAMemory handle(uint32_t thread) const;
  // Returns the other rank's memory for `thread`.
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
