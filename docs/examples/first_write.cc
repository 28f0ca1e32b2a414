// dtutils without the other layers, from opening a device to the first write. Two processes of this
// host: rank 0 writes, rank 1 prints the memory that was written. The transport is the RDMA card if
// the host has one, else shared memory.
#include <cstdio>
#include <cstring>

#include "docs/examples/check.h"
#include "docs/examples/options.h"
#include "dtutils/allocators/rdma_allocator.h"
#include "dtutils/exchange_connect.h"
#include "dtutils/process_group.h"
#include "dtutils/transmitter.h"

namespace {

using namespace cariama;  // NOLINT: an example

constexpr char kHello[] = "hello from rank 0";

// [first_write]
int transfer(Exchange& exchange) {
  const Deadline deadline = deadline_after(std::chrono::seconds(30));
  const int other = 1 - exchange.rank();

  // Open a device and register memory.
  auto device = check(open_device({}));
  auto domain = check(device->create_domain());
  auto allocator = check(RDMAAllocator::create({domain}, kAnyNode, {}));
  auto chunk = check(allocator->allocate_chunk());
  RDMAMemory memory = chunk.memory(0, 4096);

  // Connect a queue pair to the other process, and get the locator of its memory.
  auto events = check(domain->create_completion_queue({}));
  auto queue = check(TransmitQueue::create(*domain, {.receive_completions = events}));
  check(connect_over(exchange, other, queue->queue_pair(), deadline));
  check(put_value(exchange, "memory", memory.locator(domain.get())));
  auto there = check(get_value<RemoteMemoryLocator>(exchange, other, "memory", deadline));

  if (exchange.rank() == 0) {
    std::memcpy(memory.get_buffer(), kHello, sizeof kHello);
    auto transmitter = check(Transmitter::create(*queue));
    Synchronizer done;
    check(transmitter.write(memory, 0, 64, there, &done));  // one RDMA WRITE
    check(transmitter.wait(done, deadline));
  }
  check(exchange.fence(deadline));  // rank 1 continues when rank 0's write is complete
  const char* text = reinterpret_cast<const char*>(memory.get_buffer());
  std::printf("rank %d has: %s\n", exchange.rank(), text);
  check(exchange.fence(deadline));  // no process exits before both have read
  return std::strcmp(text, kHello);
}
// [first_write]

}  // namespace

int main(int argc, char** argv) {
  read_options(argc, argv, {.launches = false});
  check(run_processes(2, transfer));
  return 0;
}
