#include "dht/table_engine.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "dht/bucket_scan.h"
#include "dht/internal/owner_calls.h"
#include "dsfabric/fabric.h"
#include "dtutils/error.h"
#include "dtutils/trace.h"
#include "dtutils/wait.h"

namespace cariama {
namespace {

// The measured load is an average over about this many buckets. Keys form clusters, of 50 buckets
// at load 0.9, so a shorter average would vary by more than 0.02.
constexpr double kLoadWindow = 16384;
// Deadlines are checked once in so many polls: reading the clock takes as long as a poll.
constexpr uint64_t kPollsPerClock = 64;
// If the clock is read less often than this, each poll reads it.
constexpr std::chrono::milliseconds kRareClock{100};
// The most time between two readings of the clock that counts towards the deadlines. The thread may
// have been stopped, or may have done other work, while the owners answered.
constexpr std::chrono::seconds kLongestGap{1};

}  // namespace

struct TableEngine::Slot {
  enum class Stage : uint8_t {
    kFree,
    // Has an operation that starts a transfer. Starting one may run code that uses the same access:
    // then the operation does not advance.
    kTaken,
    kChunk,  // waits for a chunk
    kRoom,   // waits until the owner accepts a compare-and-swap
    kWord,   // waits for a compare-and-swap
    kRead,   // waits for the words of one bucket
    kOwner,  // waits for the owner that executes it
    kLate,   // the operation has ended; a transfer may still be in flight
  };
  // A run of buckets of the probe path: one transfer, or two where the path wraps around.
  struct Chunk {
    std::array<GlobalTransfer, 2> pieces;
    uint64_t first = 0;  // position of its first bucket
    uint32_t count = 0;  // buckets; 0: not requested
  };

  Stage stage = Stage::kFree;
  Mode mode = Mode::kFind;
  bool overdue = false;  // the deadline has passed
  uint8_t current = 0;   // of chunks
  uint32_t owner = 0;
  uint32_t at = 0;       // bucket within the current chunk
  uint32_t word = 0;     // that the compare-and-swap sets
  uint32_t ordinal = 0;  // of the current chunk in the probe path
  uint32_t round_trips = 0;
  uint64_t next = 0;       // position of the first bucket that was not requested
  uint64_t requested = 0;  // buckets
  uint64_t index = 0;      // of the bucket, for a kRead, or if the owner has executed the operation
  uint64_t tag = 0;
  Target target{};
  const size_t* waiter = nullptr;  // kLate and not overdue: Target::left of the operation
  Deadline deadline;
  std::array<uint64_t, kMaxKeyWords> stored{};
  std::array<Chunk, 2> chunks;
  GlobalValue<uint64_t> swap;
  OwnerCalls::Operation by_owner;
  RDMAMemory buffer;
};

TableEngine::TableEngine(TableCore& core, std::unique_ptr<GlobalMemory> memory,
                         const TableAccessOptions& options)
    : core_(core),
      use_(core.fabric(), "a TableAccess"),
      memory_(std::move(memory)),
      options_(options),
      puts_by_owner_(core.options().operations == OperationsBy::kOwner ||
                     (core.options().operations == OperationsBy::kAutomatic &&
                      memory_->owners_execute_atomics() &&
                      core.fabric().options().service_threads != 0)),
      others_by_owner_(core.options().operations == OperationsBy::kOwner),
      chunk_(core.options().chunk != 0 ? core.options().chunk : chunk_for_load(0)),
      largest_(core.options().chunk != 0 ? core.options().chunk : TableOptions::kMaxChunk),
      in_advance_(core.options().prefetch == TablePrefetch::kEager),
      owner_calls_(std::make_unique<OwnerCalls>(core, statistics_)) {
  statistics_.chunk = chunk_;
  core_.add_engine(this);
}

TableEngine::~TableEngine() {
  use_.end();
  // What an owner executes writes to memory of its own, and does not end while the owner is
  // stopped: the table waits for it before it frees or clears the share. It is added before the
  // table forgets this engine, so that the table always knows it.
  owner_calls_->leave_to_core();
  for (const std::unique_ptr<Slot>& slot : slots_) {
    if (!slot->swap.done()) core_.add_execution(slot->swap.execution());
  }
  core_.remove_engine(this);
  // Other transfers write to the slots' memory until they have ended. Every transfer ends, at the
  // latest by the failure of the peer.
  for (const std::unique_ptr<Slot>& slot : slots_) {
    for (Slot::Chunk& chunk : slot->chunks) {
      for (GlobalTransfer& piece : chunk.pieces) {
        // Not piece.wait(), which runs calls: they may use the table.
        static_cast<void>(wait_until([&] { return piece.done(); }, kForever));
      }
    }
    if (slot->buffer.get_buffer() != nullptr) {
      core_.fabric().memory().free_or_keep(std::move(slot->buffer));
    }
  }
}

bool TableEngine::has_transfers() const {
  return std::any_of(slots_.begin(), slots_.end(), [](const std::unique_ptr<Slot>& slot) {
    return slot->stage != Slot::Stage::kFree;
  });
}

uint64_t* TableEngine::attach(uint32_t owner) {
  if (absl::Status attached = core_.attach(owner); !attached.ok()) {
    status_ = std::move(attached);
    return nullptr;
  }
  return core_.mapped(owner).load(std::memory_order_acquire);
}

// ---- Slots --------------------------------------------------------------------------------------

// Operations on an owner that does not answer would occupy slots until their deadlines, while
// operations on other owners wait for a slot.
bool TableEngine::is_overdue(uint32_t owner, bool may_run_calls) {
  const auto answered = [&] { return !overdue_.contains(owner); };
  if (answered()) [[likely]]
    return false;
  // Without service threads, the answers of owners arrive only while a thread waits.
  if (may_run_calls) return !poll_until(answered, Deadline::min());
  poll();
  return !answered();
}

absl::Status TableEngine::allocate(Slot& slot) {
  if (slot.buffer.get_buffer() != nullptr) return absl::OkStatus();
  const size_t chunks = core_.options().prefetch == TablePrefetch::kNone ? 1 : 2;
  const size_t bytes = chunks * largest_ * core_.words() * sizeof(uint64_t);
  auto memory = core_.fabric().memory().allocate(bytes);
  if (!memory.ok()) {
    return make_error(
        absl::StatusCode::kResourceExhausted, ErrorScope::kProcess,
        "no registered memory for an operation on a hash table: " +
            std::string(memory.status().message()),
        "or lower TableAccessOptions::in_flight, " + std::to_string(bytes) + " bytes for each");
  }
  slot.buffer = *std::move(memory);
  return absl::OkStatus();
}

absl::Status TableEngine::reserve() {
  while (slots_.size() < options_.in_flight) slots_.push_back(std::make_unique<Slot>());
  if (others_by_owner_) return absl::OkStatus();
  for (const std::unique_ptr<Slot>& slot : slots_) {
    if (absl::Status allocated = allocate(*slot); !allocated.ok()) return allocated;
  }
  return absl::OkStatus();
}

TableEngine::Slot& TableEngine::take_slot(Mode mode) {
  Slot* free = nullptr;
  for (const std::unique_ptr<Slot>& slot : slots_) {
    if (slot->stage == Slot::Stage::kFree) free = slot.get();
  }
  if (free == nullptr) free = slots_.emplace_back(std::make_unique<Slot>()).get();
  if (!is_by_owner(mode)) {
    if (absl::Status allocated = allocate(*free); !allocated.ok()) status_ = std::move(allocated);
    // Remove the use tags of peers that the memory was used with before.
    if (free->buffer.is_free()) free->buffer.clear_uses();
  }
  free->stage = Slot::Stage::kTaken;
  ++active_;
  return *free;
}

bool TableEngine::start(Mode mode, const uint64_t* stored, uint64_t index, uint64_t tag) {
  if (!has_room()) return false;
  Slot& slot = take_slot(mode);
  slot.tag = tag;
  slot.target = {};
  launch(slot, mode, stored, index);
  return true;
}

bool TableEngine::start(Mode mode, const uint64_t* stored, uint64_t index, const Target& target) {
  if (active_ >= options_.in_flight) return false;
  Slot& slot = take_slot(mode);
  slot.target = target;
  launch(slot, mode, stored, index);
  return true;
}

TableResult TableEngine::execute(Mode mode, uint64_t* stored, uint64_t index) {
  TableResult result;
  size_t left = 1;
  // A blocked operation must not wait for a free slot: the thread's wait hook may have suspended
  // operations that occupy all of them, and that continue only after this one.
  Slot& slot = take_slot(mode);
  slot.target = {&result, mode == Mode::kRead ? stored : nullptr, &left};
  launch(slot, mode, stored, index);
  wait_for_all(&left);
  return result;
}

void TableEngine::launch(Slot& slot, Mode mode, const uint64_t* stored, uint64_t index) {
  ++statistics_.operations;
  slot.mode = mode;
  slot.round_trips = 0;
  if (mode != Mode::kRead) std::copy_n(stored, core_.words(), slot.stored.begin());
  const Deadline now = read_clock();
  // In milliseconds: nanoseconds of a long time would overflow.
  using std::chrono::milliseconds;
  const auto timeout = std::max(core_.options().timeout, milliseconds::zero());
  slot.deadline =
      timeout < std::chrono::duration_cast<milliseconds>(kForever - now) ? now + timeout : kForever;
  if (!is_by_owner(mode) && slot.buffer.get_buffer() == nullptr) {
    return end(slot, TableOutcome::kUnavailable);
  }
  const TableGeometry& geometry = core_.geometry();
  TablePlace place{};
  if (mode == Mode::kRead) {
    place = geometry.place_of(index);
    if (!geometry.contains(place)) return end(slot, TableOutcome::kAbsent);
  } else {
    place = geometry.home_of(stored[0]);
  }
  slot.owner = place.owner;
  if (is_overdue(slot.owner, /*may_run_calls=*/slot.target.left != nullptr)) {
    return fail(slot, make_error(absl::StatusCode::kDeadlineExceeded, ErrorScope::kPeer,
                                 core_.fabric().label(slot.owner) +
                                     " has not yet answered earlier operations on its share of a "
                                     "hash table",
                                 "raise TableOptions::timeout if its host is overloaded"));
  }
  absl::Status usable = slot.owner == core_.fabric().rank()
                            ? absl::OkStatus()
                            : core_.fabric().peer_status(slot.owner);
  // The caller has attached the share: if that failed, this returns the error at once.
  if (usable.ok()) usable = core_.attach(slot.owner);
  if (!usable.ok()) return fail(slot, std::move(usable));
  if (is_by_owner(mode)) {  // poll() sends the call
    slot.index = index;
    try {
      slot.by_owner = owner_calls_->add(slot.owner, mode, place.position, slot.stored.data());
    } catch (const std::bad_alloc&) {
      return fail(slot, absl::ResourceExhaustedError("no memory for an operation on a hash table"));
    }
    slot.stage = Slot::Stage::kOwner;
    slot.round_trips = 1;
    return;
  }
  if (mode == Mode::kRead) {
    slot.index = index;
    GlobalAddress address = core_.address(slot.owner);
    address.address += place.position * core_.words() * sizeof(uint64_t);
    slot.chunks[0].pieces[0] =
        memory_->rget(global_ptr<uint64_t>(address), slot.buffer, 0, core_.words());
    slot.stage = Slot::Stage::kRead;
    slot.round_trips = 1;
    return advance(slot);
  }
  slot.next = place.position;
  slot.requested = 0;
  slot.current = 0;
  slot.at = 0;
  slot.ordinal = 0;
  slot.chunks[1].count = 0;
  request_chunk(slot, 0);
  if (in_advance_ && slot.requested < geometry.probe_limit) request_chunk(slot, 1);
  slot.stage = Slot::Stage::kChunk;
  slot.round_trips = 1;
  advance(slot);
}

void TableEngine::end(Slot& slot, TableOutcome outcome) {
  switch (outcome) {
    case TableOutcome::kFound:
    case TableOutcome::kAbsent:
      if (slot.mode == Mode::kRead) {
        ++statistics_.remote_reads;
        break;
      }
      ++statistics_.remote_finds;
      statistics_.find_round_trips += slot.round_trips;
      break;
    case TableOutcome::kInserted:
      ++statistics_.inserted;
      ++statistics_.remote_inserts;
      statistics_.insert_round_trips += slot.round_trips;
      break;
    case TableOutcome::kFull:
      ++statistics_.full;
      break;
    case TableOutcome::kUnavailable:
      ++statistics_.unavailable;
      break;
    case TableOutcome::kInvalidKey:  // TableAccess starts no operation
      break;
  }
  TableResult result{UINT64_MAX, outcome};
  if (outcome == TableOutcome::kFound || outcome == TableOutcome::kInserted) {
    const Slot::Chunk& chunk = slot.chunks[slot.current];
    const uint64_t position = chunk.first + slot.at;
    result.index =
        slot.mode == Mode::kRead || slot.by_owner.call != nullptr
            ? slot.index
            : core_.geometry().index_of(slot.owner, position < core_.geometry().buckets
                                                        ? position
                                                        : position - core_.geometry().buckets);
  }
  if (slot.target.left != nullptr) {
    *slot.target.result = result;
    if (slot.target.stored != nullptr && outcome == TableOutcome::kFound) {
      std::copy_n(slot.stored.begin(), core_.words(), slot.target.stored);
    }
    --*slot.target.left;
  } else {
    ended_.push_back({slot.tag, result, slot.stored});
  }
  slot.waiter = slot.overdue ? nullptr : slot.target.left;
  slot.target = {};
  // A chunk that was requested in advance may still arrive.
  slot.stage = Slot::Stage::kLate;
  advance(slot);
}

void TableEngine::fail(Slot& slot, absl::Status status) {
  status_ = std::move(status);
  end(slot, TableOutcome::kUnavailable);
}

// ---- Progress -----------------------------------------------------------------------------------

void TableEngine::advance(Slot& slot) {
  while (true) {
    switch (slot.stage) {
      case Slot::Stage::kFree:
      case Slot::Stage::kTaken:
        return;
      case Slot::Stage::kChunk:
        if (!advance_chunk(slot)) return;
        break;
      case Slot::Stage::kRoom:
        swap_word(slot);
        if (slot.stage == Slot::Stage::kRoom) return;
        break;
      case Slot::Stage::kWord:
        if (!advance_word(slot)) return;
        break;
      case Slot::Stage::kRead: {
        GlobalTransfer& transfer = slot.chunks[0].pieces[0];
        if (!transfer.done()) return;
        if (absl::Status read = transfer.wait(kForever); !read.ok())
          return fail(slot, std::move(read));
        const auto* const words = reinterpret_cast<const uint64_t*>(slot.buffer.get_buffer());
        std::copy_n(words, core_.words(), slot.stored.begin());
        const bool is_complete =
            std::all_of(words, words + core_.words(), [](uint64_t word) { return word != 0; });
        return end(slot, is_complete ? TableOutcome::kFound : TableOutcome::kAbsent);
      }
      case Slot::Stage::kOwner:
        if (!OwnerCalls::has_ended(slot.by_owner)) return;
        return advance_call(slot);
      case Slot::Stage::kLate: {
        bool done = slot.swap.done() &&
                    (slot.by_owner.call == nullptr || OwnerCalls::has_ended(slot.by_owner));
        for (Slot::Chunk& chunk : slot.chunks) {
          for (GlobalTransfer& piece : chunk.pieces) done = piece.done() && done;
        }
        if (!done) return;
        for (Slot::Chunk& chunk : slot.chunks) {
          for (GlobalTransfer& piece : chunk.pieces) piece = {};
        }
        slot.swap = {};
        slot.by_owner = {};
        slot.waiter = nullptr;
        slot.stage = Slot::Stage::kFree;
        if (!std::exchange(slot.overdue, false)) {
          --active_;
        } else {
          const auto of_owner = overdue_.find(slot.owner);
          if (--of_owner->second == 0) overdue_.erase(of_owner);
          late_.fetch_sub(1, std::memory_order_release);
        }
        return;
      }
    }
  }
}

const uint64_t* TableEngine::bucket(const Slot& slot) const {
  return reinterpret_cast<const uint64_t*>(slot.buffer.get_buffer()) +
         (slot.current * size_t{largest_} + slot.at) * core_.words();
}

void TableEngine::request_chunk(Slot& slot, size_t which) {
  const TableGeometry& geometry = core_.geometry();
  Slot::Chunk& chunk = slot.chunks[which];
  chunk.first = slot.next;
  chunk.count =
      static_cast<uint32_t>(std::min<uint64_t>(chunk_, geometry.probe_limit - slot.requested));
  const size_t bucket_bytes = core_.words() * sizeof(uint64_t);
  const uint64_t before_end = std::min<uint64_t>(chunk.count, geometry.buckets - chunk.first);
  const size_t offset = which * largest_ * bucket_bytes;
  GlobalAddress address = core_.address(slot.owner);
  const uint64_t base = address.address;
  address.address = base + chunk.first * bucket_bytes;
  chunk.pieces[0] =
      memory_->rget(global_ptr<uint64_t>(address), slot.buffer, offset, before_end * core_.words());
  chunk.pieces[1] = {};
  if (before_end < chunk.count) {
    address.address = base;
    chunk.pieces[1] = memory_->rget(global_ptr<uint64_t>(address), slot.buffer,
                                    offset + before_end * bucket_bytes,
                                    (chunk.count - before_end) * core_.words());
  }
  ++statistics_.chunks_read;
  statistics_.bytes_read += chunk.count * bucket_bytes;
  slot.requested += chunk.count;
  slot.next = (chunk.first + chunk.count) % geometry.buckets;
}

bool TableEngine::advance_chunk(Slot& slot) {
  Slot::Chunk& chunk = slot.chunks[slot.current];
  if (!chunk.pieces[0].done() || !chunk.pieces[1].done()) return false;
  for (GlobalTransfer& piece : chunk.pieces) {
    if (absl::Status read = piece.wait(kForever); !read.ok()) {
      fail(slot, std::move(read));
      return true;
    }
  }
  if (slot.ordinal == 0) observe_load(slot);
  scan(slot);
  return true;
}

// Examines the buckets from `at` on, until the operation has ended or starts a transfer.
void TableEngine::scan(Slot& slot) {
  const Slot::Chunk& chunk = slot.chunks[slot.current];
  const size_t words = core_.words();
  slot.at += static_cast<uint32_t>(
      scan_buckets(bucket(slot), chunk.count - slot.at, words, slot.stored[0]));
  if (slot.at == chunk.count) return next_chunk(slot);
  slot.word = 0;
  next_word(slot);
}

// Examines word `word` of the current bucket and those that follow; all words before are equal to
// the key's.
void TableEngine::next_word(Slot& slot) {
  const uint64_t* const words = bucket(slot);
  for (; slot.word < core_.words(); ++slot.word) {
    if (words[slot.word] == 0) {
      if (slot.mode == Mode::kFind) return end(slot, TableOutcome::kAbsent);
      return swap_word(slot);
    }
    if (words[slot.word] != slot.stored[slot.word]) {
      ++slot.at;
      return scan(slot);
    }
  }
  end(slot, TableOutcome::kFound);
}

// An owner that executes the compare-and-swaps may have no receive posted for one more call. Then
// the operation tries again with each poll: a wait for room would not end while the owner is
// stopped.
void TableEngine::swap_word(Slot& slot) {
  const Slot::Chunk& chunk = slot.chunks[slot.current];
  const uint64_t position = (chunk.first + slot.at) % core_.geometry().buckets;
  GlobalAddress address = core_.address(slot.owner);
  address.address += (position * core_.words() + slot.word) * sizeof(uint64_t);
  slot.stage = Slot::Stage::kTaken;
  trace_instant("dht", slot.word + 1 == core_.words() ? "publish key" : "claim key", "rank",
                slot.owner);
  slot.swap =
      memory_->try_compare_exchange(global_ptr<uint64_t>(address), 0, slot.stored[slot.word]);
  if (const absl::Status& started = slot.swap.start_status();
      !started.ok() && absl::IsResourceExhausted(started)) {
    slot.stage = Slot::Stage::kRoom;
    return;
  }
  ++slot.round_trips;
  slot.stage = Slot::Stage::kWord;
}

bool TableEngine::advance_word(Slot& slot) {
  if (!slot.swap.done()) return false;
  const absl::StatusOr<uint64_t> before = slot.swap.wait(kForever);
  if (!before.ok()) {
    fail(slot, before.status());
    return true;
  }
  if (*before != 0 && *before != slot.stored[slot.word]) {
    ++statistics_.cas_retries;
    ++slot.at;
    slot.stage = Slot::Stage::kChunk;
    scan(slot);
    return true;
  }
  ++slot.word;
  if (slot.word == core_.words()) {
    end(slot, *before == 0 ? TableOutcome::kInserted : TableOutcome::kFound);
  } else {
    slot.stage = Slot::Stage::kChunk;
    next_word(slot);
  }
  return true;
}

void TableEngine::advance_call(Slot& slot) {
  const absl::StatusOr<OwnerCalls::Answer> answer = owner_calls_->answer(slot.by_owner);
  if (!answer.ok()) return fail(slot, answer.status());
  slot.index = core_.geometry().index_of(slot.owner, answer->position);
  if (slot.mode == Mode::kRead) std::copy_n(answer->words, core_.words(), slot.stored.begin());
  end(slot, answer->outcome);
}

void TableEngine::next_chunk(Slot& slot) {
  const auto other = static_cast<uint8_t>(1 - slot.current);
  const uint64_t limit = core_.geometry().probe_limit;
  slot.at = 0;
  slot.stage = Slot::Stage::kTaken;
  if (slot.chunks[other].count != 0) {  // requested in advance
    slot.chunks[slot.current].count = 0;
    slot.current = other;
    // Chunks 0 and 1 were requested together, chunk i + 2 after chunk i was scanned.
    if (++slot.ordinal % 2 == 0) ++slot.round_trips;
    if (in_advance_ && slot.requested < limit) request_chunk(slot, 1 - other);
    slot.stage = Slot::Stage::kChunk;
    return;
  }
  if (slot.requested >= limit) {
    return end(slot, slot.mode == Mode::kFind ? TableOutcome::kAbsent : TableOutcome::kFull);
  }
  ++slot.ordinal;
  ++slot.round_trips;
  request_chunk(slot, slot.current);
  slot.stage = Slot::Stage::kChunk;
}

// ---- Load ---------------------------------------------------------------------------------------

// The far half of the first chunk of a probe path is a sample of the table: its distance from the
// home bucket makes it almost independent of whether the key is present.
void TableEngine::observe_load(const Slot& slot) {
  const Slot::Chunk& chunk = slot.chunks[slot.current];
  const size_t count = chunk.count / 2;
  if (count == 0) return;
  const size_t words = core_.words();
  const double occupied = static_cast<double>(
      count_occupied(bucket(slot) + (chunk.count - count) * words, count, words));
  const auto buckets = static_cast<double>(core_.geometry().buckets * core_.geometry().processes);
  const double window = std::clamp(buckets / 16, 256.0, kLoadWindow);
  observed_ = std::min(observed_ + static_cast<double>(count), window);
  load_ += (occupied - static_cast<double>(count) * load_) / observed_;
  statistics_.load = load_;
  if (core_.options().chunk == 0) chunk_ = chunk_for_load(load_);
  statistics_.chunk = chunk_;
  if (core_.options().prefetch == TablePrefetch::kLoad) {
    in_advance_ = load_ > 1 - std::sqrt(1.0 / (2.0 * chunk_ - 1));
  }
}

// ---- Waiting ------------------------------------------------------------------------------------

// Reads the clock. If the last reading was too long ago, moves the deadlines, so that the time
// between counts only in part.
Deadline TableEngine::read_clock() {
  const Deadline now = std::chrono::steady_clock::now();
  const auto gap = now - std::exchange(clock_, now);
  rare_clock_ = gap > kRareClock;
  if (gap <= kLongestGap) return now;
  for (const std::unique_ptr<Slot>& slot : slots_) {
    if (slot->deadline < kForever - gap) slot->deadline += gap - kLongestGap;
  }
  return now;
}

void TableEngine::poll() {
  const bool check = ++polls_ % kPollsPerClock == 0 || rare_clock_;
  const Deadline now = check ? read_clock() : Deadline{};
  owner_calls_->send();
  // Uses an index instead of an iterator, because a nested poll may add slots.
  for (size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = *slots_[i];
    advance(slot);
    if (!check || slot.stage == Slot::Stage::kFree || slot.stage == Slot::Stage::kTaken ||
        slot.overdue || now < slot.deadline) {
      continue;
    }
    slot.overdue = true;
    slot.waiter = nullptr;
    if (slot.by_owner.call != nullptr) OwnerCalls::end_late(slot.by_owner);
    --active_;
    ++overdue_[slot.owner];
    late_.fetch_add(1, std::memory_order_release);
    if (slot.stage != Slot::Stage::kLate) {
      fail(slot, make_error(absl::StatusCode::kDeadlineExceeded, ErrorScope::kPeer,
                            core_.fabric().label(slot.owner) +
                                " did not answer an operation on its share of a hash table in time",
                            "raise TableOptions::timeout if its host is overloaded"));
    }
  }
}

template <typename Condition>
bool TableEngine::poll_until(const Condition& condition, Deadline deadline) {
  const auto met = [&] {
    if (condition()) return true;
    poll();
    return condition();
  };
  if (core_.fabric().options().service_threads != 0) return wait_until(met, deadline);
  // This thread also receives the answers of owners that execute compare-and-swaps.
  return core_.fabric().wait_polling(met, deadline);
}

// Every operation has a deadline, after which its slot does not count as active. So these waits
// need none.

void TableEngine::wait_for_all(const size_t* left) {
  // A chunk that was requested in advance may arrive after its operation has ended. The caller may
  // then let another process free the share, so this also waits for such chunks of its operations.
  const auto ended = [this, left] {
    return *left == 0 && std::none_of(slots_.begin(), slots_.end(),
                                      [left](const auto& slot) { return slot->waiter == left; });
  };
  static_cast<void>(poll_until(ended, kForever));
}

void TableEngine::await_ended() {
  static_cast<void>(poll_until([this] { return !ended_.empty() || active_ == 0; }, kForever));
}

void TableEngine::wait_for_room() {
  static_cast<void>(poll_until([this] { return active_ < options_.in_flight; }, kForever));
}

bool TableEngine::take_ended(Ended& into) {
  if (ended_.empty()) return false;
  into = ended_.front();
  ended_.pop_front();
  return true;
}

}  // namespace cariama
