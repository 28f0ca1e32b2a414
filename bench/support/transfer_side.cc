#include "bench/support/transfer_side.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "dtutils/exchange_connect.h"

namespace cariama::bench {
namespace {

constexpr uint64_t kCacheLine = 64;

constexpr std::array<std::pair<Operation, const char*>, 5> kOperations{{
    {Operation::kWrite, "write"},
    {Operation::kRead, "read"},
    {Operation::kSend, "send"},
    {Operation::kFetchAdd, "fetch-add"},
    {Operation::kCompareSwap, "compare-swap"},
}};

}  // namespace

std::string operation_name(Operation operation) {
  for (const auto& [each, name] : kOperations) {
    if (each == operation) return name;
  }
  return "?";
}

std::optional<Operation> operation_named(const std::string& name) {
  for (const auto& [operation, each] : kOperations) {
    if (each == name) return operation;
  }
  return std::nullopt;
}

Window::Window(uint64_t message_size, uint64_t ring)
    : size(message_size),
      stride((std::max<uint64_t>(message_size, 1) + kCacheLine - 1) / kCacheLine * kCacheLine),
      bytes(stride * std::max<uint64_t>(ring / stride, 1)) {}

uint64_t Side::thread_stride() const {
  return std::max(options_.ring / kCacheLine * kCacheLine, window(options_.max_size).bytes) +
         kCacheLine;
}

absl::StatusOr<std::unique_ptr<Side>> Side::create(Exchange& exchange, const SideOptions& options) {
  std::unique_ptr<Side> side(new Side(exchange, options));
  if (absl::Status status = side->set_up(); !status.ok()) return status;
  return side;
}

absl::Status Side::set_up() {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  auto device = open_device({.transport = options_.transport});
  if (!device.ok()) return device.status();
  device_ = *std::move(device);
  auto domain = device_->create_domain();
  if (!domain.ok()) return domain.status();
  domain_ = *std::move(domain);

  constexpr uint64_t kHugePage = uint64_t{2} << 20;
  const uint64_t needed = thread_stride() * options_.threads;
  // Uses base pages on every machine, so that all modes and the peers of bench/peers have the same
  // page size.
  auto memory = Superpage::obtain(
      {.bytes = (needed + kHugePage - 1) / kHugePage * kHugePage, .largest_page = PageKind::kBase});
  if (!memory.ok()) return memory.status();
  memory_ = *std::move(memory);
  auto region = domain_->register_memory(memory_->source(), Access::kAll);
  if (!region.ok()) return region.status();
  region_ = *std::move(region);
  range_.emplace(std::vector<RegisteredRange::Registration>{{domain_.get(), region_}});

  auto completions = domain_->create_completion_queue({.depth = 2 * options_.depth});
  if (!completions.ok()) return completions.status();
  manual_completions_ = *std::move(completions);
  auto receives = domain_->create_completion_queue({.depth = 2 * options_.depth});
  if (!receives.ok()) return receives.status();
  receive_completions_ = *std::move(receives);
  QueuePairOptions queue{.send_completions = manual_completions_,
                         .receive_completions = receive_completions_,
                         .send_depth = options_.depth,
                         .receive_depth = options_.depth,
                         .max_inline = options_.max_inline};
  auto manual = domain_->create_queue_pair(queue);
  if (!manual.ok()) return manual.status();
  manual_ = *std::move(manual);
  auto transmit = TransmitQueue::create(*domain_, queue);
  if (!transmit.ok()) return transmit.status();
  transmit_ = *std::move(transmit);

  const int other = 1 - exchange_.rank();
  if (absl::Status status = connect_over(exchange_, other, *manual_, deadline, "manual");
      !status.ok()) {
    return status;
  }
  if (absl::Status status =
          connect_over(exchange_, other, transmit_->queue_pair(), deadline, "automatic");
      !status.ok()) {
    return status;
  }
  if (absl::Status status = put_value(exchange_, "memory", region_->locator()); !status.ok()) {
    return status;
  }
  auto remote = get_value<RemoteMemoryLocator>(exchange_, other, "memory", deadline);
  if (!remote.ok()) return remote.status();
  remote_ = *remote;
  return absl::OkStatus();
}

RDMAMemory Side::handle(uint32_t thread) const {
  const uint64_t stride = thread_stride();
  return {memory_->address() + thread * stride, stride, &*range_};
}

RemoteMemoryLocator Side::remote(uint32_t thread) const {
  const uint64_t stride = thread_stride();
  return remote_.slice(thread * stride, stride);
}

}  // namespace cariama::bench
