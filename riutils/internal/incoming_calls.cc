#include "riutils/internal/incoming_calls.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <exception>
#include <iterator>
#include <new>
#include <optional>
#include <utility>

#include "dtutils/error.h"
#include "dtutils/internal/exception_error.h"
#include "dtutils/trace.h"
#include "riutils/internal/grant_checks.h"

namespace cariama::internal {
namespace {

// Offsets within IncomingChannel::words.
constexpr uint64_t kPushed = 0;
constexpr uint64_t kLastPushed = 32;
constexpr uint64_t kWords = 64;
static_assert(sizeof(uint64_t) + RemoteSleeper::kScratchBytes <= kLastPushed);

// Returns true if a sleeping receiver has to arm the doorbell in the memory of the sender.
[[nodiscard]] bool polls_memory(Arrival arrival) {
  return arrival == Arrival::kPolled || arrival == Arrival::kTrailing;
}

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

[[nodiscard]] ChunkAnswer refusal(const absl::Status& status) {
  ChunkAnswer answer;
  answer.code = static_cast<int32_t>(status.code());
  answer.set_reason({status.message().data(), status.message().size()});
  return answer;
}

}  // namespace

// ---- A channel ----------------------------------------------------------------------------------

IncomingChannel::IncomingChannel(IncomingCalls& calls, uint32_t rank, const ChunkRequest& request,
                                 uint32_t number, uint64_t key,
                                 std::vector<std::span<std::byte>> chunks)
    : RemoteSleeper(
          request.control.slice(offsetof(ChannelControl, doorbell), sizeof(RemoteDoorbell))),
      calls(calls),
      rank(rank),
      request(request),
      number(number),
      key(key),
      follows(request.follows),
      receiver(*this, request.arrival, request.consumption, request.source_thread,
               std::move(chunks)) {}

ReceiverBackend::Taken IncomingChannel::take_chunks(uint32_t count,
                                                    std::vector<std::span<std::byte>>& chunks) {
  if (calls.map_.count(key) < count) {
    calls.absorb();
    if (calls.map_.count(key) < count) {
      return calls.map_.is_absorbed() ? Taken::kMissing : Taken::kNotYet;
    }
  }
  chunks.reserve(chunks.size() + count);  // no chunk is extracted and then lost
  for (uint32_t i = 0; i < count; ++i) chunks.push_back(calls.map_.extract(key).chunk);
  return Taken::kTaken;
}

void IncomingChannel::replaced(std::span<std::byte> chunk) {
  calls.free_chunk(*this, chunk.data());
}

bool IncomingChannel::push(uint64_t consumed_chunks) {
  if (rank == calls.fabric_.rank()) {
    reinterpret_cast<ChannelControl*>(request.control.address)
        ->consumed_chunks.store(consumed_chunks, std::memory_order_release);
    return true;
  }
  // A WRITE of an earlier count that is still in flight may transfer a newer count instead. That is
  // harmless, because the count only grows, except with the last count: when the sender has that,
  // it frees the memory to which the WRITE goes. So the last count has a word of its own.
  const bool last = receiver.ended();
  const uint64_t at = last ? kLastPushed : kPushed;
  std::atomic_ref(*reinterpret_cast<uint64_t*>(words.get_buffer() + at))
      .store(consumed_chunks, std::memory_order_relaxed);
  // All counts take the same connection, in whichever thread the worker's calls run: a later count
  // arrives later.
  absl::Status posted;
  try {
    auto through = path();
    posted = through.status();
    if (posted.ok()) {
      if (last) last_push->reset(1);
      posted = (*through)->write(words, at, sizeof consumed_chunks,
                                 request.control.slice(0, sizeof consumed_chunks),
                                 last ? last_push.get() : nullptr);
    }
  } catch (const std::bad_alloc&) {  // an idle receiver would not run again after an exception
    posted = absl::ResourceExhaustedError("");
  }
  if (last && !posted.ok()) last_push->reset(0);
  // A failed process does not need the count.
  if (posted.ok() || !calls.fabric_.peer_status(rank).ok()) return true;
  calls.run_again();
  return false;
}

void IncomingChannel::finished(const NotifyTarget* notify, const IncomingCall& call,
                               const std::string& result) {
  if (call.outcome == CallOutcome::kUnknown || call.outcome == CallOutcome::kMalformed) {
    reject_call(calls.fabric_, rank,
                call.outcome == CallOutcome::kUnknown ? "no function has its id"
                                                      : "its closure is malformed");
  }
  if (call.answered_later) return;
  const uint32_t to = call.answer_to == kAnswerSource ? rank : call.answer_to;
  answer_call(calls.fabric_, to, notify, call, result);
}

void IncomingChannel::broken(std::string_view why) {
  reject_call(calls.fabric_, rank, "its channel was closed: " + std::string(why));
}

absl::StatusOr<Transmitter*> IncomingChannel::path() { return calls.transmitter(rank); }
CallSource* IncomingChannel::source() { return &calls; }

// ---- Service threads ----------------------------------------------------------------------------

IncomingCalls::IncomingCalls(Fabric& fabric, uint32_t index, MemoryBudget& budget,
                             ReportBroken report_broken)
    : fabric_(fabric),
      index_(index),
      budget_(budget),
      report_broken_(report_broken),
      forwarder_(fabric, index),
      counters_("one_sided", "thread " + std::to_string(index), [this] {
        return CounterSet::Values{
            {"calls_run", calls_run_.value()},
            {"bytes_run", bytes_run_.value()},
            {"chunks_granted", chunks_granted_.load(std::memory_order_relaxed)},
            {"chunks_freed", chunks_freed_.load(std::memory_order_relaxed)},
            {"chunk_bytes_granted", chunk_bytes_granted_.load(std::memory_order_relaxed)},
            {"chunk_bytes_freed", chunk_bytes_freed_.load(std::memory_order_relaxed)},
            {"calls_forwarded", forwarder_.forwarded().value()},
            {"calls_postponed", forwarder_.postponed().value()},
            {"calls_lost", forwarder_.lost().value()}};
      }) {}

IncomingCalls::~IncomingCalls() {
  // Frees the map's nodes. The chunks are freed together with memory_.
  map_.absorb();
}

absl::StatusOr<RDMAMemory> IncomingCalls::allocate_chunk(const ChunkRequest& request) {
  // Channels that have chunks leave the last quarter of the budget to those that have none.
  const uint64_t spare = request.first != 0 ? 0 : budget_.limit() / 4;
  if (absl::Status full = budget_.reserve(request.chunk_bytes, spare); !full.ok()) return full;
  try {
    auto piece = memory_->allocate(request.chunk_bytes);
    if (!piece.ok()) budget_.release(request.chunk_bytes);
    return piece;
  } catch (...) {
    budget_.release(request.chunk_bytes);
    throw;
  }
}

// Memory of a grant. It is freed unless the grant succeeds.
struct IncomingCalls::Pieces {
  explicit Pieces(IncomingCalls& calls) : calls(calls) {}
  ~Pieces() {
    for (RDMAMemory& chunk : chunks) calls.free_unused(std::move(chunk));
    if (words.get_buffer() != nullptr) calls.memory_->free_or_keep(std::move(words));
  }
  Pieces(const Pieces&) = delete;
  Pieces& operator=(const Pieces&) = delete;

  IncomingCalls& calls;
  RDMAMemory words;
  std::vector<RDMAMemory> chunks;
};

ChunkAnswer IncomingCalls::grant(uint32_t rank, const ChunkRequest& request) {
  try {
    ChunkAnswer answer = try_grant(rank, request);
    // The thread that runs the worker's calls may have gone to sleep before the channel existed,
    // without arming a doorbell for its sender. Wake the thread.
    if (answer.code == 0) static_cast<void>(wake_worker(fabric_, fabric_.rank(), index_));
    return answer;
  } catch (const std::exception& error) {
    return refusal(
        exception_error(error, "granting chunks", absl::InternalError("granting chunks")));
  }
}

ChunkAnswer IncomingCalls::try_grant(uint32_t rank, const ChunkRequest& request) {
  const std::lock_guard lock(mutex_);
  const auto found = accounts_.find({rank, request.serial});
  std::optional<size_t> granted;
  if (found != accounts_.end()) {
    // Without a small first chunk, which the requested chunks replace.
    const std::vector<RDMAMemory>& memory = found->second.memory;
    const bool is_small = !memory.empty() && memory.front().size() < request.chunk_bytes;
    granted = memory.size() - (is_small ? 1 : 0);
  }
  if (!is_possible(request, rank, fabric_.threads(), granted)) {
    return refusal(make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                              "a request for chunks is malformed"));
  }
  auto& numbers = by_number_[rank];
  if (found == accounts_.end() && numbers.size() >= ChunkAnswer::kNumbers / fabric_.threads()) {
    return refusal(make_error(absl::StatusCode::kResourceExhausted, ErrorScope::kProcess,
                              "too many channels from one process to one thread"));
  }
  if (memory_ == nullptr) {
    auto node = worker_memory(fabric_, index_);
    if (!node.ok()) return refusal(node.status());
    auto made = GeneralAllocator::create(*std::move(node), {});
    if (!made.ok()) return refusal(made.status());
    memory_ = *std::move(made);
  }

  // A new channel also needs its words. They are allocated first, because the chunks may take all
  // the memory.
  Pieces pieces(*this);
  pieces.chunks.reserve(request.count);
  if (request.first != 0) {
    auto piece = memory_->allocate(kWords);
    if (!piece.ok()) return refusal(piece.status());
    pieces.words = *std::move(piece);
    std::memset(pieces.words.get_buffer(), 0, kWords);
  }
  // If there is memory for some of the requested chunks only, grants these.
  while (pieces.chunks.size() < request.count) {
    auto piece = allocate_chunk(request);
    if (piece.ok()) {
      pieces.chunks.push_back(*std::move(piece));
    } else if (!pieces.chunks.empty() && absl::IsResourceExhausted(piece.status())) {
      break;
    } else {
      return refusal(piece.status());
    }
  }
  ChunkAnswer answer;
  answer.count = static_cast<uint32_t>(pieces.chunks.size());
  const ProtectionDomain* const domain = fabric_.domain(rank);
  std::vector<std::span<std::byte>> chunks;
  for (uint32_t i = 0; i < answer.count; ++i) {
    std::byte* const chunk = pieces.chunks[i].get_buffer();
    chunks.emplace_back(chunk, request.chunk_bytes);
    ChannelReceiver::prepare(chunks.back(), request.arrival);
    answer.chunks[i] =
        domain != nullptr
            ? pieces.chunks[i].locator(domain, fabric_.rank())
            : RemoteMemoryLocator{
                  reinterpret_cast<uint64_t>(chunk), request.chunk_bytes, {}, fabric_.rank(), 0};
    answer.chunks[i].length = request.chunk_bytes;
  }
  // All allocations come before the first change of the records: without memory nothing is granted,
  // and the sender may repeat the request.
  std::vector<IncomingMap<Entry>::Prepared> entries;
  if (request.first != 0) {
    uint32_t number = 0;
    while (numbers.contains(number)) ++number;
    const uint64_t key = ++last_key_;
    auto channel =
        std::make_unique<IncomingChannel>(*this, rank, request, number, key, std::move(chunks));
    entries.push_back(IncomingMap<Entry>::prepare(key, {channel.get(), {}}));
    auto& place = numbers[number];
    try {
      Account& account = accounts_[{rank, request.serial}];
      place = channel.get();
      channel->words = std::exchange(pieces.words, {});
      account.channel = std::move(channel);
      account.memory = std::exchange(pieces.chunks, {});
    } catch (...) {
      numbers.erase(number);
      throw;
    }
    // The number in events also identifies the worker.
    answer.number = number * fabric_.threads() + index_;
  } else {
    Account& account = found->second;
    entries.reserve(chunks.size());
    for (const auto chunk : chunks) {
      entries.push_back(IncomingMap<Entry>::prepare(account.channel->key, {nullptr, chunk}));
    }
    account.memory.reserve(account.memory.size() + pieces.chunks.size());
    std::move(pieces.chunks.begin(), pieces.chunks.end(), std::back_inserter(account.memory));
    pieces.chunks.clear();
  }
  for (auto& entry : entries) map_.insert(std::move(entry));
  chunks_granted_.fetch_add(answer.count, std::memory_order_relaxed);
  chunk_bytes_granted_.fetch_add(answer.count * request.chunk_bytes, std::memory_order_relaxed);
  trace_instant("riutils", "grant chunks", "chunks", answer.count);
  return answer;
}

void IncomingCalls::announced(uint32_t rank, uint32_t number, uint64_t words) {
  const std::lock_guard lock(mutex_);
  const auto numbers = by_number_.find(rank);
  if (numbers == by_number_.end()) return;
  const auto found = numbers->second.find(number);
  if (found == numbers->second.end()) return;
  found->second->receiver.announced(words);
}

void IncomingCalls::peer_died(uint32_t rank) {
  {
    const std::lock_guard lock(mutex_);
    dead_[rank] = true;
    any_dead_.store(true, std::memory_order_release);
    new_failures_.store(true, std::memory_order_release);
  }
  static_cast<void>(wake_worker(fabric_, fabric_.rank(), index_));
}

void IncomingCalls::forwarding_failed() {
  new_failures_.store(true, std::memory_order_release);
  static_cast<void>(wake_worker(fabric_, fabric_.rank(), index_));
}

uint64_t IncomingCalls::consumed_bytes(uint32_t rank) {
  const std::lock_guard lock(mutex_);
  // Not operator[]: the caller asks for every process of the job.
  const auto before = consumed_before_.find(rank);
  uint64_t sum = before == consumed_before_.end() ? 0 : before->second;
  for (const auto& [key, account] : accounts_) {
    if (key.first == rank) sum += account.channel->receiver.consumed_bytes();
  }
  return sum;
}

void IncomingCalls::close(IncomingChannel* channel) {
  std::unique_lock lock(mutex_);
  const auto account = accounts_.find({channel->rank, channel->request.serial});
  // All allocations come first: without memory the channel stays as it is.
  auto& consumed_before = consumed_before_[channel->rank];
  withheld_.reserve(withheld_.size() + account->second.memory.size());
  ended_channels_.reserve(ended_channels_.size() + 1);
  lock.unlock();
  remote_sleepers().remove(channel);
  channel->finish();
  lock.lock();
  consumed_before += channel->receiver.consumed_bytes();
  by_number_[channel->rank].erase(channel->number);
  // Discard chunks that were granted but never inserted into the ring.
  while (map_.count(channel->key) != 0) static_cast<void>(map_.extract(channel->key));
  // A sender that has not ended the channel itself may still write to the chunks: a sender whose
  // channel this process stopped reading because of malformed data, until the sender detects that;
  // and a sender on this host that was considered failed (its connection broke, or it missed its
  // lease) and still runs. So no other channel gets these chunks.
  const bool unended = channel->receiver.is_broken() ||
                       (!channel->receiver.ended() && channel->request.arrival == Arrival::kMapped);
  for (RDMAMemory& piece : account->second.memory) {
    if (unended) {
      withheld_.push_back(std::move(piece));
    } else {
      free_memory(std::move(piece));
    }
  }
  const bool is_broken = channel->receiver.is_broken();
  ended_channels_.push_back({channel->rank, std::move(channel->words),
                             std::move(channel->last_push), is_broken ? channel->request.serial : 0,
                             channel->receiver.consumed_bytes()});
  if (is_broken) run_again();  // it is reported as soon as the last count has been transferred
  accounts_.erase(account);
}

void IncomingCalls::free_chunk(const IncomingChannel& channel, const std::byte* chunk) {
  const std::lock_guard lock(mutex_);
  std::vector<RDMAMemory>& memory =
      accounts_.find({channel.rank, channel.request.serial})->second.memory;
  const auto found = std::find_if(memory.begin(), memory.end(), [&](const RDMAMemory& piece) {
    return piece.get_buffer() == chunk;
  });
  RDMAMemory freed = std::move(*found);
  memory.erase(found);
  free_memory(std::move(freed));
}

void IncomingCalls::free_unused(RDMAMemory&& chunk) {
  budget_.release(chunk.size());
  memory_->free_or_keep(std::move(chunk));
}

void IncomingCalls::free_memory(RDMAMemory&& chunk) {
  chunks_freed_.fetch_add(1, std::memory_order_relaxed);
  chunk_bytes_freed_.fetch_add(chunk.size(), std::memory_order_relaxed);
  free_unused(std::move(chunk));
}

// Frees the words of ended channels whose last count has been transferred, or never will be.
void IncomingCalls::free_ended_channels() {
  std::erase_if(ended_channels_, [&](EndedChannel& channel) {
    const auto through = transmitters_.find(channel.rank);  // none after stop()
    if (!channel.sent->done() && through != transmitters_.end()) {
      through->second->queue().progress();
    }
    // The report follows the last WRITE to the sender's control memory, which the sender may free
    // when it has the report.
    if (!channel.sent->done() || !report_broken(channel)) {
      if (channel.broken_serial != 0) run_again();
      return false;
    }
    const std::lock_guard lock(mutex_);
    memory_->free_or_keep(std::move(channel.words));
    return true;
  });
}

bool IncomingCalls::report_broken(const EndedChannel& channel) {
  if (channel.broken_serial == 0) return true;
  try {
    const CallResult told =
        report_broken_(fabric_, channel.rank, channel.broken_serial, channel.consumed_bytes);
    return told.ok() || !fabric_.peer_status(channel.rank).ok() || fabric_.finalized();
  } catch (const std::bad_alloc&) {
    return false;
  }
}

void IncomingCalls::run_again() { static_cast<void>(wake_worker(fabric_, fabric_.rank(), index_)); }

bool IncomingCalls::may_run(IncomingChannel& channel) {
  if (channel.follows == 0) [[likely]]
    return true;
  const std::lock_guard lock(mutex_);
  if (accounts_.contains({channel.rank, channel.follows})) return false;
  channel.follows = 0;
  return true;
}

// ---- The thread that runs the calls -------------------------------------------------------------

absl::StatusOr<Transmitter*> IncomingCalls::transmitter(uint32_t rank) {
  std::unique_ptr<Transmitter>& transmitter = transmitters_[rank];
  if (transmitter == nullptr) {
    auto queue = fabric_.connection(rank, index_);
    if (!queue.ok()) return queue.status();
    auto made = Transmitter::create(**queue);
    if (!made.ok()) return made.status();
    transmitter = std::make_unique<Transmitter>(*std::move(made));
  }
  return transmitter.get();
}

void IncomingCalls::absorb() {
  map_.absorb([this](uint64_t key) { fresh_.push_back(key); });
}

size_t IncomingCalls::run(size_t most) {
  if (map_.has_pending()) absorb();
  if (!fresh_.empty()) [[unlikely]] {
    // Without memory the remaining keys stay in fresh_, for the next run().
    channels_.reserve(channels_.size() + fresh_.size());
    for (; !fresh_.empty(); fresh_.pop_back()) {
      const uint64_t key = fresh_.back();
      // The entry of the channel itself precedes the entries of its later chunks.
      if (map_.count(key) == 0 || map_.front(key).channel == nullptr) continue;
      IncomingChannel* const channel = map_.front(key).channel;
      if (polls_memory(channel->request.arrival)) remote_sleepers().add(channel);
      channels_.push_back(map_.extract(key).channel);
    }
  }
  size_t count = 0;
  const size_t channels = channels_.size();
  bool ended = false;
  bool follower = false;  // a channel was left out, because the one that it follows has not ended
  for (size_t i = 0; i < channels && count < most; ++i) {
    if (++first_ >= channels) first_ = 0;
    IncomingChannel& channel = *channels_[first_];
    if (!may_run(channel)) {
      follower = true;
      continue;
    }
    const RunningCalls running(fabric_, channel.rank);
    const uint64_t before = channel.receiver.consumed_bytes();
    if (const size_t ran = channel.receiver.run(most - count); ran != 0) {
      count += ran;
      bytes_run_.add(channel.receiver.consumed_bytes() - before);
    }
    ended |= channel.receiver.ended();
  }
  forwarder_.flush();
  if (new_failures_.load(std::memory_order_relaxed) &&
      new_failures_.exchange(false, std::memory_order_acquire)) [[unlikely]] {
    forwarder_.want_report();
  }
  forwarder_.report_failures();
  if (count != 0) calls_run_.add(count);
  if (count == 0 && channels != 0) {
    // The receiver polls the cache line that the sender writes next. The pause between two polls
    // lets the sender obtain the line.
    relax();
    relax();
  }
  if (!ended_channels_.empty()) [[unlikely]]
    free_ended_channels();
  const bool any_dead = any_dead_.load(std::memory_order_acquire);
  if (ended || (any_dead && count == 0)) [[unlikely]] {
    const auto is_over = [&](IncomingChannel* channel) {
      if (channel->receiver.ended()) return !channel->receiver.has_to_push();
      if (channel->follows != 0) return false;  // its calls have not run yet
      if (!any_dead || count != 0 || channel->receiver.is_postponed()) return false;
      const std::lock_guard lock(mutex_);
      return dead_.contains(channel->rank);
    };
    // Not std::erase_if(): close() may throw, and no channel may be lost or closed twice then.
    for (size_t i = 0; i < channels_.size();) {
      if (!is_over(channels_[i])) {
        ++i;
        continue;
      }
      close(channels_[i]);
      channels_.erase(channels_.begin() + static_cast<ptrdiff_t>(i));
    }
    // The calls of a channel that was left out may run now, and a thread that gets 0 may sleep.
    if (follower && count == 0 && channels_.size() != channels) return run(most);
  }
  return count;
}

}  // namespace cariama::internal
