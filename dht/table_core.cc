#include "dht/table_core.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>

#include "dht/agreement.h"
#include "dht/bucket_scan.h"
#include "dht/table_engine.h"
#include "dsfabric/global_memory.h"
#include "dsfabric/internal/per_peer.h"
#include "dsfabric/peer_error.h"
#include "dtutils/error.h"
#include "dtutils/transmitter.h"

namespace cariama {
namespace {

constexpr uint64_t kBucketsPerLine = 8;
constexpr uint32_t kDefaultMaxChunks = 256;
// The time for which operations on a share fail at once, after its owner did not answer.
constexpr std::chrono::milliseconds kPauseWithoutAnswer{1000};
constexpr uint64_t kMaxBuckets = uint64_t{1} << 48;
constexpr std::string_view kNoMemory = "no memory for a hash table";

// Requires: buckets <= kMaxBuckets.
constexpr uint64_t whole_lines(uint64_t buckets) {
  return (buckets + kBucketsPerLine - 1) / kBucketsPerLine * kBucketsPerLine;
}

absl::Status bad_options(std::string_view what, std::string_view remedy) {
  return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation, what, remedy);
}

// The options of this process alone; `buckets` is the number that they result in.
absl::Status check(size_t words, const TableOptions& options, uint64_t buckets) {
  if (words == 0 || words > kMaxKeyWords) {
    return bad_options("a hash table cannot have keys of " + std::to_string(words) + " words",
                       "use 1 to " + std::to_string(kMaxKeyWords) + " words of 63 bits");
  }
  if (options.chunk % kBucketsPerLine != 0 || options.chunk > TableOptions::kMaxChunk) {
    return bad_options("a chunk cannot have " + std::to_string(options.chunk) + " buckets",
                       "use a multiple of 8 up to " + std::to_string(TableOptions::kMaxChunk) +
                           ", or 0 for the automatic size");
  }
  if (options.atomics == AtomicsBy::kDevice) {
    return bad_options(
        "a hash table cannot use the atomics of devices: CPUs change its buckets, too",
        "use AtomicsBy::kAutomatic or kOwner");
  }
  if (buckets == 0 || buckets > kMaxBuckets) {
    return bad_options(
        "a hash table cannot have " + std::to_string(buckets) + " buckets in each process",
        "set TableOptions::buckets or bytes");
  }
  return absl::OkStatus();
}

// The values that must be equal in all processes.
struct TableShape {
  uint64_t words;
  uint64_t buckets;
  uint64_t probe_limit;
  uint64_t atomics;
};

// Returns the name of the first value that differs, or "".
std::string_view difference(const TableShape& a, const TableShape& b) {
  if (a.words != b.words) return "width of keys";
  if (a.buckets != b.buckets) return "TableOptions::buckets or bytes";
  if (a.probe_limit != b.probe_limit) return "product of TableOptions::chunk and max_chunks";
  if (a.atomics != b.atomics) return "TableOptions::atomics";
  return {};
}

// The shapes of the processes of consecutive ranks.
struct ShapeSummary {
  TableShape shape;         // of the lowest rank
  TableShape other;         // of the rank `differing`
  uint64_t name;            // the lowest rank's proposal for the name of the shares
  uint32_t first;           // the lowest rank
  uint32_t differing;       // the lowest rank of another shape than `first`, or kNone
  uint32_t without_memory;  // the lowest rank that has no memory for its share, or kNone
  uint32_t receive_unit;    // the shortest

  static constexpr uint32_t kNone = UINT32_MAX;
};

// `b` are the ranks that follow those of `a`.
ShapeSummary join_shapes(ShapeSummary a, const ShapeSummary& b) {
  a.without_memory = std::min(a.without_memory, b.without_memory);
  a.receive_unit = std::min(a.receive_unit, b.receive_unit);
  if (a.differing != ShapeSummary::kNone) return a;
  if (!difference(a.shape, b.shape).empty()) {
    a.differing = b.first;
    a.other = b.shape;
  } else if (b.differing != ShapeSummary::kNone) {
    a.differing = b.differing;
    a.other = b.other;
  }
  return a;
}

// How this process accesses a share.
enum class ShareState : uint8_t {
  kUnknown,  // not used by this process yet
  kMapped,   // by loads, stores and compare-and-swaps of this CPU
  kRemote,   // by one-sided transfers
  kFailed,   // not any more: its owner is dead
};
struct Share {
  std::atomic<ShareState> state{ShareState::kUnknown};
  GlobalAddress address;  // constant once `state` is known
};

}  // namespace

// Of the processes of consecutive ranks, for await_readiness(). Each rank is the lowest one, or
// UINT32_MAX.
struct TableCore::Readiness {
  Step step;            // of the lowest rank
  uint32_t other_step;  // the rank that calls another function
  uint32_t first;       // the lowest rank
  uint32_t with_access;
  uint32_t with_results;
  uint32_t waiting;  // for transfers, longer than it may

  // `b` are the ranks that follow those of `a`.
  static Readiness join(Readiness a, const Readiness& b) {
    if (a.other_step == UINT32_MAX) a.other_step = a.step == b.step ? b.other_step : b.first;
    a.with_access = std::min(a.with_access, b.with_access);
    a.with_results = std::min(a.with_results, b.with_results);
    a.waiting = std::min(a.waiting, b.waiting);
    return a;
  }
};

struct TableCore::Shares {
  explicit Shares(uint32_t processes) : of(processes) {}
  internal::PerPeer<Share> of;
};

const GlobalAddress& TableCore::address(uint32_t owner) const {
  return shares_->of.find(owner)->address;
}

TableCore::TableCore(Collectives& all, size_t words, const TableOptions& options)
    : all_(all),
      words_(words),
      options_(options),
      mapped_(std::make_unique<std::atomic<uint64_t*>[]>(all.fabric().size())) {}

TableCore::~TableCore() {
  use_.end();
  // Other processes may still use the share of a table that was not destroyed.
  if (destroyed_ || fabric().size() == 1) return;
  static_cast<void>(memory_.release());
  for (RemoteMemory& memory : possibly_used_) static_cast<void>(memory.release());
}

void TableCore::refuse_short_results(size_t keys, size_t results) {
  std::fprintf(stderr,
               "cariama: a batch of a hash table has %zu keys, but room for %zu results: pass as "
               "many results as keys\n",
               keys, results);
  std::abort();
}

absl::StatusOr<std::unique_ptr<TableCore>> TableCore::create(Collectives& all, size_t words,
                                                             const TableOptions& options,
                                                             Deadline deadline) {
  if (all.participants() != all.fabric().size()) {
    return bad_options("a hash table is created by processes, not by threads",
                       "use a Collectives object with Participants::kProcesses");
  }
  const uint64_t wanted =
      options.buckets != 0 ? options.buckets : options.bytes / (std::max<size_t>(words, 1) * 8);
  std::unique_ptr<TableCore> core;
  const absl::Status usable = status_of(kNoMemory, [&] {
    core.reset(new TableCore(all, words, options));
    return check(words, options, wanted);
  });
  if (absl::Status agreed = agree(all, usable, "no hash table", deadline); !agreed.ok()) {
    return agreed;
  }
  const uint64_t buckets = whole_lines(wanted);
  auto allocation = core->allocate(buckets, deadline);
  if (!allocation.ok()) return allocation.status();
  core->adopt(*std::move(allocation), buckets);
  return core;
}

uint64_t TableCore::probe_limit(uint64_t buckets) const {
  const uint64_t chunks = options_.max_chunks != 0 ? options_.max_chunks : kDefaultMaxChunks;
  const uint64_t chunk = options_.chunk != 0 ? options_.chunk : TableOptions::kMaxChunk;
  return std::min(buckets, chunks * chunk);
}

absl::StatusOr<TableCore::Allocation> TableCore::allocate(uint64_t buckets, Deadline deadline) {
  Fabric& fabric = this->fabric();
  Allocation allocation;
  const uint64_t name = RemoteMemory::new_name(fabric);
  // Nothing after the first collective function may throw: the other processes would wait. So the
  // memory gets a name now, which is replaced without an allocation by that of all processes.
  const absl::Status allocated = status_of(kNoMemory, [&] {
    auto memory = RemoteMemory::allocate(fabric, fabric.rank(),
                                         internal::bytes_of<uint64_t>(buckets * words_), deadline);
    if (!memory.ok()) return memory.status();
    allocation.memory = *std::move(memory);
    allocation.memory.publish(name);
    allocation.shares = std::make_unique<Shares>(fabric.size());
    static_cast<void>(allocation.shares->of.get(fabric.rank()));
    return absl::OkStatus();
  });
  // A process whose allocation failed takes part, too, and so reports the failure to the others.
  const TableShape mine{words_, buckets, probe_limit(buckets),
                        static_cast<uint64_t>(options_.atomics)};
  const ShapeSummary summary{
      .shape = mine,
      .other = mine,
      .name = name,
      .first = fabric.rank(),
      .differing = ShapeSummary::kNone,
      .without_memory = allocated.ok() ? ShapeSummary::kNone : uint32_t{fabric.rank()},
      .receive_unit = fabric.options().receive_unit_bytes};
  const auto shapes = all_.all_reduce(summary, &join_shapes, deadline);
  if (!shapes.ok()) return shapes.status();
  if (!allocated.ok()) return allocated;
  if (const std::vector<Rank> dead = all_.left_out(); !dead.empty()) {
    return dead_peer_error(fabric, dead.front(), "no hash table");
  }
  if (shapes->without_memory != ShapeSummary::kNone) {
    return make_error(
        absl::StatusCode::kUnavailable, ErrorScope::kPeer,
        "no hash table: " + fabric.label(shapes->without_memory) + " has no memory for its share",
        "use fewer buckets");
  }
  if (shapes->differing != ShapeSummary::kNone) {
    std::string_view other = difference(shapes->shape, mine);
    const uint32_t rank = other.empty() ? shapes->differing : shapes->first;
    if (other.empty()) other = difference(shapes->other, mine);
    return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kPeer,
                      "no hash table: " + fabric.label(rank) + " has another " +
                          std::string(other) + " than this process",
                      "pass equal TableOptions in all processes");
  }
  allocation.name = shapes->name;
  receive_unit_bytes_ = shapes->receive_unit;
  allocation.memory.publish(allocation.name);
  // After it, every process finds the shares of all others.
  if (absl::Status published = all_.barrier(deadline); !published.ok()) {
    // Other processes may have passed the barrier in time, and use the share.
    static_cast<void>(allocation.memory.release());
    return published;
  }
  return allocation;
}

void TableCore::adopt(Allocation allocation, uint64_t buckets) {
  geometry_.buckets = buckets;
  geometry_.probe_limit = probe_limit(buckets);
  geometry_.processes = fabric().size();
  geometry_.shift = static_cast<uint32_t>(std::bit_width(buckets - 1));
  memory_ = std::move(allocation.memory);
  const std::scoped_lock lock(mutex_);
  name_ = allocation.name;
  for (const uint32_t rank : mapped_peers_) mapped_[rank].store(nullptr, std::memory_order_relaxed);
  mapped_peers_.clear();
  unconnected_.clear();
  shares_ = std::move(allocation.shares);
  Share& own = shares_->of.get(fabric().rank());
  own.address = memory_.address();
  own.state.store(options_.force_remote ? ShareState::kRemote : ShareState::kMapped,
                  std::memory_order_release);
  mapped_[fabric().rank()].store(
      options_.force_remote ? nullptr : reinterpret_cast<uint64_t*>(own.address.address),
      std::memory_order_relaxed);
}

absl::Status TableCore::attach(uint32_t owner) {
  if (const Share* const share = shares_->of.find(owner); share != nullptr) {
    const ShareState state = share->state.load(std::memory_order_acquire);
    if (state == ShareState::kMapped || state == ShareState::kRemote) return absl::OkStatus();
    if (state == ShareState::kFailed) return fabric().peer_status(owner);
  }
  const ThreadContext* const context = fabric().this_thread();
  {
    const std::scoped_lock lock(mutex_);
    const auto found = unconnected_.find(owner);
    if (found != unconnected_.end() && std::chrono::steady_clock::now() < found->second.until) {
      return found->second.reason;
    }
  }
  const auto unconnected = [&](const absl::Status& reason, std::chrono::milliseconds pause) {
    // A lack of memory or descriptors of this process may end at any time, and is noticed at once.
    if (absl::IsResourceExhausted(reason)) return reason;
    const std::scoped_lock lock(mutex_);
    unconnected_[owner] = {reason, deadline_after(pause)};
    return reason;
  };
  const Deadline deadline = deadline_after(fabric().options().timeout);
  auto queue = fabric().connection(owner, context == nullptr ? ThreadIndex(0) : context->index());
  if (!queue.ok()) return unconnected(queue.status(), options_.timeout);
  const absl::StatusOr<GlobalAddress> address =
      RemoteMemory::find(fabric(), owner, name_, deadline);
  // An owner without service threads may have computed for long, and answers when it polls again.
  if (!address.ok()) return unconnected(address.status(), kPauseWithoutAnswer);
  const uint64_t bytes = geometry_.buckets * words_ * sizeof(uint64_t);
  std::byte* const mapped =
      options_.force_remote
          ? nullptr
          : (*queue)->queue_pair().direct_access(locator_of(fabric(), *address, bytes));
  const std::scoped_lock lock(mutex_);
  Share& share = shares_->of.get(owner);
  if (share.state.load(std::memory_order_relaxed) != ShareState::kUnknown) return absl::OkStatus();
  share.address = *address;
  if (mapped == nullptr) {
    share.state.store(ShareState::kRemote, std::memory_order_release);
    return absl::OkStatus();
  }
  mapped_peers_.push_back(owner);
  mapped_[owner].store(reinterpret_cast<uint64_t*>(mapped), std::memory_order_release);
  share.state.store(ShareState::kMapped, std::memory_order_release);
  return absl::OkStatus();
}

void TableCore::detach_failed() {
  const std::scoped_lock lock(mutex_);
  std::erase_if(mapped_peers_, [this](uint32_t rank) {
    if (fabric().peer_status(rank).ok()) return false;
    mapped_[rank].store(nullptr, std::memory_order_release);
    shares_->of.get(rank).state.store(ShareState::kFailed, std::memory_order_release);
    return true;
  });
}

// ---- Collective operations ----------------------------------------------------------------------

uint64_t TableCore::local_size() const {
  return count_occupied(local_words().data(), geometry_.buckets, words_);
}

absl::StatusOr<uint64_t> TableCore::size(Deadline deadline) const {
  return all_.all_reduce(local_size(), std::plus<>(), deadline);
}

void TableCore::add_engine(TableEngine* engine) {
  const std::scoped_lock lock(engines_mutex_);
  engines_.push_back(engine);
}

void TableCore::remove_engine(TableEngine* engine) {
  const std::scoped_lock lock(engines_mutex_);
  std::erase(engines_, engine);
}

void TableCore::add_execution(std::shared_ptr<const Synchronizer> execution) {
  if (execution == nullptr) return;
  const std::scoped_lock lock(engines_mutex_);
  executions_.push_back(std::move(execution));
}

size_t TableCore::transfers(std::span<TableEngine* const> of_this_thread) {
  size_t count = 0;
  for (TableEngine* const engine : of_this_thread) {
    engine->poll();
    if (engine->has_transfers()) ++count;
  }
  const std::scoped_lock lock(engines_mutex_);
  for (const TableEngine* const engine : engines_) {
    if (!engine->is_of_this_thread()) count += engine->late();
  }
  std::erase_if(executions_, [](const auto& execution) { return execution->done(); });
  return count + executions_.size();
}

absl::Status TableCore::await_readiness(Step step, std::string_view what, Deadline deadline) {
  std::vector<TableEngine*> engines;
  size_t accesses = 0;
  {
    const std::scoped_lock lock(engines_mutex_);
    accesses = engines_.size();
    std::copy_if(engines_.begin(), engines_.end(), std::back_inserter(engines),
                 [](const TableEngine* engine) { return engine->is_of_this_thread(); });
  }
  const Deadline now = std::chrono::steady_clock::now();
  const Deadline limit = deadline == kForever ? kForever : now + (deadline - now) / 2;
  const auto ended = [&] { return transfers(engines) == 0; };
  // Without service threads, this thread also receives the answers of the owners.
  const bool all_ended = fabric().options().service_threads != 0
                             ? wait_until(ended, limit)
                             : fabric().wait_polling(ended, limit);
  const bool ends_indices = step == Step::kClear || step == Step::kGrow;
  const bool has_results =
      ends_indices && std::any_of(engines.begin(), engines.end(),
                                  [](const TableEngine* engine) { return engine->ended() != 0; });
  constexpr uint32_t kNone = UINT32_MAX;
  const uint32_t rank = fabric().rank();
  const Readiness mine{.step = step,
                       .other_step = kNone,
                       .first = rank,
                       .with_access = step == Step::kDestroy && accesses != 0 ? rank : kNone,
                       .with_results = has_results ? rank : kNone,
                       .waiting = all_ended ? kNone : rank};
  const auto all = all_.all_reduce(mine, &Readiness::join, deadline);
  if (!all.ok()) return all.status();
  const auto refuse = [&](uint32_t of, std::string_view why, std::string_view remedy) {
    return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kOperation,
                      std::string(what) + ": " + fabric().label(of) + std::string(why), remedy);
  };
  // The outcome is that of an earlier await_readiness() if that one has ended by its deadline.
  if (all->other_step != kNone || all->step != step) {
    return refuse(all->other_step != kNone ? all->other_step : rank,
                  " calls another function than " + fabric().label(all->first),
                  "call the functions of a table in the same order in all processes, and end the "
                  "fabric after one that has ended by its deadline");
  }
  if (all->with_access != kNone) {
    return refuse(all->with_access, " has accesses to it",
                  "destroy all TableAccess objects before");
  }
  if (all->with_results != kNone) {
    return refuse(all->with_results, " has results of asynchronous operations",
                  "call TableAccess::poll() until active() returns 0: indices become invalid");
  }
  if (all->waiting != kNone) {
    return make_error(absl::StatusCode::kUnavailable, ErrorScope::kPeer,
                      std::string(what) + ": transfers of " + fabric().label(all->waiting) +
                          " to the table are in flight, of operations that have ended by their "
                          "deadlines",
                      "call TableAccess::poll() in the threads of that process, and try again when "
                      "the owners of the keys have answered");
  }
  return absl::OkStatus();
}

absl::Status TableCore::clear(Deadline deadline) {
  if (absl::Status idle = await_readiness(Step::kClear, "the hash table was not cleared", deadline);
      !idle.ok()) {
    return idle;
  }
  return wipe(deadline);
}

absl::Status TableCore::wipe(Deadline deadline) {
  const std::span<uint64_t> words = local_words();
  std::memset(words.data(), 0, words.size_bytes());
  return all_.barrier(deadline);
}

absl::Status TableCore::grow(uint64_t buckets, Deadline deadline) {
  if (buckets <= kMaxBuckets) buckets = whole_lines(buckets);
  // Before the check, so that all processes return its error, or none.
  const std::string what =
      "the hash table did not grow to " + std::to_string(buckets) + " buckets per process";
  if (absl::Status idle = await_readiness(Step::kGrow, what, deadline); !idle.ok()) return idle;
  if (absl::Status all = agree(all_, absl::OkStatus(), what, deadline, buckets); !all.ok()) {
    return all;
  }
  if (buckets < geometry_.buckets || buckets > kMaxBuckets) {
    return bad_options("a hash table of " + std::to_string(geometry_.buckets) +
                           " buckets per process cannot grow to " + std::to_string(buckets),
                       "pass a larger number, up to 2^48");
  }
  auto allocation = allocate(buckets, deadline);
  if (absl::Status all = agree(all_, allocation.status(), "the hash table did not grow", deadline);
      !all.ok()) {
    return all;
  }
  // The owner of a key does not depend on the number of buckets, so each process moves its own
  // keys, in its own memory.
  TableGeometry grown = geometry_;
  grown.buckets = buckets;
  grown.probe_limit = probe_limit(buckets);
  auto* const to = reinterpret_cast<uint64_t*>(allocation->memory.address().address);
  const uint64_t* const from = local_words().data();
  absl::Status moved;
  for (uint64_t i = 0; i < geometry_.buckets && moved.ok(); ++i) {
    const uint64_t* const key = from + i * words_;
    if (key[words_ - 1] == 0) continue;  // empty, or a claim that was never completed
    uint64_t position = grown.home_of(key[0]).position;
    uint64_t probed = 0;
    while (to[position * words_] != 0 && probed < grown.probe_limit) {
      position = position + 1 == buckets ? 0 : position + 1;
      ++probed;
    }
    if (probed == grown.probe_limit) {
      moved = make_error(absl::StatusCode::kResourceExhausted, ErrorScope::kOperation,
                         "the hash table did not grow: a key has no empty bucket within " +
                             std::to_string(probed) + " buckets",
                         "pass a larger number of buckets");
    } else {
      std::memcpy(to + position * words_, key, words_ * sizeof(uint64_t));
    }
  }
  if (absl::Status all = agree(all_, moved, "the hash table did not grow", deadline); !all.ok()) {
    // Other processes may have agreed before their deadline, and use the new share.
    if (absl::IsDeadlineExceeded(all)) possibly_used_.push_back(std::move(allocation->memory));
    return all;
  }
  RemoteMemory old = std::move(memory_);
  adopt(*std::move(allocation), buckets);
  absl::Status all = all_.barrier(deadline);
  // If the barrier has failed, other processes may still use the old share.
  if (!all.ok()) possibly_used_.push_back(std::move(old));
  // All processes had agreed to grow. So the death of one does not undo that; the operations on its
  // keys report it.
  return absl::IsUnavailable(all) ? absl::OkStatus() : all;
}

absl::Status TableCore::destroy(Deadline deadline) {
  if (absl::Status idle =
          await_readiness(Step::kDestroy, "the hash table was not destroyed", deadline);
      !idle.ok()) {
    return idle;
  }
  destroyed_ = true;
  memory_ = {};
  possibly_used_.clear();
  return absl::OkStatus();
}

}  // namespace cariama
