// How the bytes of simulated WRITEs become visible, in any order that ArrivalOrder permits.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "dtutils/internal/shared_copy.h"
#include "dtutils/sim/fabric.h"
#include "dtutils/sim/sim_queue_pair.h"

namespace cariama::sim {

namespace {

// Stores the bytes of a piece. If pieces of one WRITE share an aligned word, each of them stores
// the whole word, with the other bytes as they are: a receiver reads words, and an atomic load
// synchronizes only with atomic stores of its own size.
void store_piece(const Packet& piece) {
  using internal::kWord;
  uint64_t address = piece.remote_address;
  const std::byte* from = piece.payload.data();
  const uint64_t end = address + piece.bytes;
  while (address < end) {
    const uint64_t word_address = address / kWord * kWord;
    const uint64_t bytes = std::min(end, word_address + kWord) - address;
    const bool shared = bytes != kWord && word_address >= piece.write_begin &&
                        word_address + kWord <= piece.write_end;
    if (shared) {
      const std::atomic_ref<uint64_t> word(*reinterpret_cast<uint64_t*>(word_address));
      uint64_t value = word.load(std::memory_order_relaxed);
      std::memcpy(reinterpret_cast<std::byte*>(&value) + (address - word_address), from, bytes);
      word.store(value, std::memory_order_release);
    } else {
      internal::store_shared(reinterpret_cast<std::byte*>(address), from, bytes);
    }
    address += bytes;
    from += bytes;
  }
}

}  // namespace

// Splits a WRITE into pieces at random offsets, each with its own delivery time, in any order that
// write_order permits. Sets `landed` to the time of the last one.
void SimQueuePair::land_in_pieces(const Packet& request, SimTime* landed) {
  const uint64_t bytes = request.payload.size();
  if (bytes == 0) return;
  const ArrivalOrder order = fabric_->options().write_order;
  const bool ascending = orders_bytes(order);
  const bool blocks = order == ArrivalOrder::kWithinBlocks;
  const auto spread = static_cast<uint64_t>(fabric_->options().torn_spread.count());
  constexpr uint64_t kBlock = 128;
  std::vector<uint64_t> cuts{0, bytes};
  for (int i = 0; i < 3; ++i) {
    const uint64_t place = request.remote_address + fabric_->random_below(bytes);
    // kWithinWrite and kWithinBlocks order bytes only, so a cut may be within an aligned word.
    const bool words = !blocks && order != ArrivalOrder::kWithinWrite;
    const uint64_t cut = (words ? (place + 7) / 8 * 8 : place) - request.remote_address;
    if (cut < bytes) cuts.push_back(cut);
  }
  const auto block_of = [&](uint64_t offset) { return (request.remote_address + offset) / kBlock; };
  for (uint64_t block = block_of(0) + 1; blocks && block * kBlock < request.remote_address + bytes;
       ++block) {
    cuts.push_back(block * kBlock - request.remote_address);
  }
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  SimTime first = fabric_->now();
  if (orders_writes(order)) first = std::max(first, last_piece_ + SimTime(1));
  std::vector<SimTime> times;
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    times.push_back(first + SimTime(static_cast<int64_t>(fabric_->random_below(spread + 1))));
  }
  // Bytes in ascending order: the times of the WRITE, or of each of its blocks, ascend strictly.
  size_t begin = 0;
  for (size_t i = 1; (ascending || blocks) && i <= times.size(); ++i) {
    if (i != times.size() && (ascending || block_of(cuts[i]) == block_of(cuts[begin]))) continue;
    std::sort(times.begin() + static_cast<ptrdiff_t>(begin),
              times.begin() + static_cast<ptrdiff_t>(i));
    for (size_t j = begin + 1; j < i; ++j) times[j] = std::max(times[j], times[j - 1] + SimTime(1));
    begin = i;
  }
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    auto piece = std::make_unique<Packet>();
    piece->kind = PacketKind::kPiece;
    piece->source = request.source;
    piece->target = number_;
    // The piece is already at the target, so a partition does not stop it.
    piece->from = endpoint_->id;
    piece->psn = request.psn;
    piece->bytes = cuts[i + 1] - cuts[i];
    piece->remote_address = request.remote_address + cuts[i];
    piece->remote_key = request.remote_key;
    piece->write_begin = request.remote_address;
    piece->write_end = request.remote_address + bytes;
    piece->payload.assign(request.payload.begin() + static_cast<ptrdiff_t>(cuts[i]),
                          request.payload.begin() + static_cast<ptrdiff_t>(cuts[i + 1]));
    *landed = std::max(*landed, times[i]);
    last_piece_ = std::max(last_piece_, times[i]);
    fabric_->deliver_at(times[i], std::move(piece));
  }
}

void SimQueuePair::receive_piece(const Packet& piece) {
  // If the region was deregistered meanwhile, its memory may have another use: drop the piece.
  if (fabric_->find(piece.remote_key, domain_, piece.remote_address, piece.bytes) == nullptr) {
    return;
  }
  store_piece(piece);
}

}  // namespace cariama::sim
