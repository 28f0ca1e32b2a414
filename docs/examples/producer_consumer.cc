// Producers that should not wait, and a consumer that is slower than they are. A call that does not
// fit into the consumer's chunks is deferred at the producer and sent later, in order (RetryAsync).
// When the deferred calls reach their byte limit, the producer waits. Rank 0 consumes, all other
// ranks produce.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <thread>
#include <vector>

#include "docs/examples/check.h"
#include "docs/examples/options.h"
#include "dsfabric/collectives.h"
#include "dsfabric/launcher.h"
#include "riutils/call.h"

namespace {

using namespace cariama;  // NOLINT: an example

constexpr uint64_t kItems = 20'000;

struct Item {
  Rank producer;
  uint64_t number;
  uint64_t payload[6];
};

// The items that the consumer has received from one producer. Index of `seen`: the producer's rank.
struct Seen {
  uint64_t items = 0;
  uint64_t sum = 0;
  bool in_order = true;
};
std::vector<Seen> seen;

void consume_item(const Item& item) {
  Seen& its = seen[item.producer];
  its.in_order = its.in_order && item.number == its.items;
  its.sum += item.payload[0];
  ++its.items;
}

// [produce]
struct Produced {
  uint64_t deferred = 0;  // items whose call was deferred
  uint64_t waited = 0;    // calls for which the producer waited
};

Produced produce(Fabric& fabric, ThreadContext& self, ThreadId consumer) {
  MessengerOptions options;
  options.chunk_bytes = 4096;  // the consumer provides at most 8 chunks of this size
  options.max_chunks = 8;
  options.deferred_bytes = 256 * 1024;  // limit of the deferred calls at the producer
  RDMAMessenger messenger(self, consumer, options);

  Produced produced;
  for (uint64_t i = 0; i < kItems; ++i) {
    const Item item{fabric.rank(), i, {i * i}};
    const auto work = [item] { consume_item(item); };
    const CallResult sent = messenger.call<RetryAsync>(work);  // after set-up, never waits
    if (sent.ok()) continue;
    check(absl::IsResourceExhausted(sent.status()), "another error was expected");
    // The limit of deferred bytes is reached. A program could produce fewer items or drop this one;
    // this example waits for the consumer.
    ++produced.waited;
    check(messenger.call<Retry>(work));
  }
  // Waits until all deferred calls have been sent, then ends the channel.
  check(messenger.shutdown(deadline_after(std::chrono::seconds(60))));
  produced.deferred = messenger.statistics().deferred;
  return produced;
}
// [produce]

// [consume]
void consume(Fabric& fabric, uint64_t items) {
  // The consumer computes for 50 ms. It runs no calls meanwhile.
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  // Now the consumer only runs calls. It sleeps while none arrive.
  const auto all_consumed = [items] {
    uint64_t consumed = 0;
    for (const Seen& its : seen) consumed += its.items;
    return consumed == items;
  };
  check(fabric.wait(all_consumed, deadline_after(std::chrono::seconds(60))), "items are missing");
}
// [consume]

// Checks that every item of every producer arrived once, in the order of production.
void verify(const Fabric& fabric) {
  uint64_t sum = 0;
  for (uint64_t i = 0; i < kItems; ++i) sum += i * i;
  for (uint32_t rank = 1; rank < fabric.size(); ++rank) {
    check(seen[rank].in_order, "items came in another order");
    check(seen[rank].items == kItems && seen[rank].sum == sum, "items are wrong");
  }
}

}  // namespace

int main(int argc, char** argv) {
  read_options(argc, argv);
  if (auto code = launch_self({.processes = 3}, argc, argv)) return *code;
  const Deadline deadline = deadline_after(std::chrono::seconds(120));
  auto fabric = check(Fabric::create({.threads = 1}));
  seen.resize(fabric->size());
  auto self = check(fabric->init_thread(0));
  Collectives all(*fabric);
  check(all.barrier(deadline));  // no process produces before the consumer has joined

  if (fabric->rank() == 0) {
    consume(*fabric, kItems * (fabric->size() - 1));
    verify(*fabric);
    std::printf("consumed %lu items\n", static_cast<unsigned long>(kItems * (fabric->size() - 1)));
  } else {
    const Produced produced = produce(*fabric, *self, fabric->thread_of(0));
    std::printf("producer %u: %lu of %lu items were deferred, %lu times it waited\n",
                fabric->rank().value(), static_cast<unsigned long>(produced.deferred),
                static_cast<unsigned long>(kItems), static_cast<unsigned long>(produced.waited));
  }
  check(fabric->finalize(deadline));
  return 0;
}
