// Feeds the decoder of the parts that a broadcast sends along its tree with parts that the input
// forges: an honest part of a job, of which the input changes fields, the payload and the sender.
//
// An accepted part comes from the parent in the tree. Its payload is the function and a target for
// each process of the subtree, no more. The parts that the process then sends to its children are
// accepted by these, and each process of the subtree is reached once.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "riutils/internal/broadcast_tree.h"
#include "riutils/internal/broadcast_wire.h"
#include "tests/fuzz/fuzz_input.h"

namespace cariama::internal {
namespace {

using Buffer = BroadcastPart::Buffer;

// The payload of a process, as its parent sends it.
std::string payload_of(const std::string& function, std::span<const RemoteMemoryLocator> targets) {
  std::string payload = function;
  payload.append(reinterpret_cast<const char*>(targets.data()), targets.size_bytes());
  return payload;
}

// Receives a part as the process with `rank`, and forwards it. Counts the processes that it
// reaches.
void receive(const BroadcastPart& part, std::string payload, uint32_t rank, uint32_t processes,
             std::vector<int>& reached) {
  ++reached[rank];
  const BroadcastTree tree(part.root, processes);
  const uint64_t place = tree.place_of(rank);
  const size_t bytes = payload.size();
  const std::vector<RemoteMemoryLocator> targets = take_targets(part, payload);
  require(payload.size() == part.function_bytes &&
          payload.size() + targets.size() * sizeof(RemoteMemoryLocator) == bytes);
  require(targets.size() == (part.buffer == Buffer::kPlaced ? tree.subtree_size(place) : 0));
  for (const uint64_t child : tree.children(place)) {
    std::span<const RemoteMemoryLocator> below;
    if (part.buffer == Buffer::kPlaced) {
      require(child - place + tree.subtree_size(child) <= targets.size());
      below = std::span(targets).subspan(child - place, tree.subtree_size(child));
    }
    std::string sent = payload_of(payload, below);
    const uint32_t to = tree.rank_of(child);
    require(to < processes && is_possible(part, sent.size(), to, rank, processes));
    receive(part, std::move(sent), to, processes, reached);
  }
}

}  // namespace
}  // namespace cariama::internal

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cariama;            // NOLINT(google-build-using-namespace)
  using namespace cariama::internal;  // NOLINT(google-build-using-namespace)
  FuzzInput input(data, size);
  const uint32_t processes = 1 + input.take<uint8_t>() % 40;
  const uint32_t rank = input.take<uint8_t>() % processes;
  const auto changes = input.take<uint8_t>();

  BroadcastPart part;
  part.root = input.take<uint8_t>() % processes;
  part.buffer = static_cast<Buffer>(input.take<uint8_t>() % 3);
  if (part.buffer != Buffer::kNone) part.size = input.take<uint16_t>();
  if (part.buffer == Buffer::kPull) part.source.length = part.size;
  const BroadcastTree tree(part.root, processes);
  const uint64_t place = tree.place_of(rank);
  uint32_t parent = place == 0 ? rank : tree.rank_of(BroadcastTree::parent(place));
  std::string payload(input.take_bytes(input.take<uint8_t>()));
  part.function_bytes = payload.size();
  if (part.buffer == Buffer::kPlaced) {
    payload = payload_of(payload, std::vector<RemoteMemoryLocator>(tree.subtree_size(place)));
  }
  const bool honest = place != 0 && changes == 0;

  if ((changes & 1) != 0) part.root = input.take<uint32_t>();
  if ((changes & 2) != 0) parent = input.take<uint8_t>();
  if ((changes & 4) != 0) part.function_bytes = input.take<uint64_t>();
  if ((changes & 8) != 0) part.function_bytes += input.take<int8_t>();
  if ((changes & 16) != 0) part.buffer = static_cast<Buffer>(input.take<uint8_t>());
  if ((changes & 32) != 0) part.size = input.take<uint64_t>();
  if ((changes & 64) != 0) part.source.length = input.take<uint64_t>();
  if ((changes & 128) != 0) payload = std::string(input.take_bytes(size));

  const bool accepted = is_possible(part, payload.size(), rank, parent, processes);
  require(accepted || !honest);
  if (!accepted) return 0;
  require(part.root < processes && part.root != rank && parent < processes);
  require(part.buffer <= Buffer::kPlaced);
  require(part.buffer != Buffer::kPull || part.source.length == part.size);
  std::vector<int> reached(processes);
  receive(part, std::move(payload), rank, processes, reached);
  const BroadcastTree sent(part.root, processes);
  const uint64_t first = sent.place_of(rank);
  for (uint32_t other = 0; other < processes; ++other) {
    const uint64_t at = sent.place_of(other);
    require(reached[other] == (at >= first && at - first < sent.subtree_size(first) ? 1 : 0));
  }
  return 0;
}
