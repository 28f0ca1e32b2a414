#include "tasks/internal/queue_pair_access.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "dtutils/completion.h"
#include "dtutils/error.h"
#include "dtutils/exchange_connect.h"
#include "dtutils/internal/peer_remedy.h"
#include "dtutils/internal/yield.h"
#include "dtutils/wait.h"
#include "tasks/internal/peer_words.h"

namespace cariama::tasks {
namespace {

// The most unsignaled requests that may be outstanding to a peer, if the queue of the device is
// deep enough. A multiple of the number of requests of one steal, so that few requests are
// signaled.
constexpr uint32_t kMostUnsignaled = 64;
constexpr uint32_t kDepth = 2 * kMostUnsignaled;
constexpr size_t kMostPieces = 4;
constexpr uint32_t kInlineWanted = 120;  // enough for the result in a join record

// How long a client waits for a served atomic before it checks that the server's process is alive.
constexpr std::chrono::milliseconds kServerCheckInterval{100};

// The id of a work request is the peer's rank + 1; a receive for an answer of a served atomic has
// this bit too.
constexpr uint64_t kAnswer = uint64_t{1} << 32;

absl::Status bad_address(const std::string& whose, uint64_t address, size_t bytes) {
  return make_error(
      absl::StatusCode::kInternal, ErrorScope::kProcess,
      absl::StrFormat("%s has no registered memory at %#x, %d bytes", whose, address, bytes),
      "run the same program, with the same options, in every process");
}

// Returns the error of an operation. If the peer has failed, the remedy is not that of to_status(),
// which is for a program that owns the queue pair.
absl::Status failure(const Completion& completion, const std::string& peer) {
  absl::Status status = to_status(completion, peer);
  if (!absl::IsUnavailable(status)) return status;
  return make_error(
      status.code(), error_scope(status),
      absl::StrFormat("%s: %s failed: %s", peer, kind_name(completion.kind),
                      status_name(completion.status)),
      cariama::internal::peer_remedy(completion.status == CompletionStatus::kPeerDied
                                         ? cariama::internal::PeerRemedy::kEnded
                                         : cariama::internal::PeerRemedy::kUnreachable));
}

}  // namespace

absl::StatusOr<std::unique_ptr<QueuePairAccess>> QueuePairAccess::connect(
    Exchange& exchange, std::shared_ptr<Device> device, const MemorySource& region,
    AccessArea& area, Exchange::Deadline deadline, const std::string& name,
    std::span<AtomicCell> served, std::chrono::microseconds ack_timeout) {
  std::unique_ptr<QueuePairAccess> access(
      new QueuePairAccess(exchange, region, area, served, ack_timeout));
  const absl::Status status = access->set_up(exchange, std::move(device), deadline, name);
  if (!status.ok()) return status;
  return access;
}

absl::Status QueuePairAccess::set_up(Exchange& exchange, std::shared_ptr<Device> device,
                                     Exchange::Deadline deadline, const std::string& name) {
  device_ = std::move(device);
  if (!device_->limits().atomics && served_.empty()) {
    return make_error(absl::StatusCode::kUnimplemented, ErrorScope::kProcess,
                      device_->description() + " has no remote atomics",
                      "set TaskOptions::atomics to kServed or kAutomatic, or use another device");
  }
  native_atomics_ = device_->transport() == Transport::kShm || !served_.empty();
  auto domain = device_->create_domain();
  if (!domain.ok()) return domain.status();
  domain_ = *domain;
  auto completions =
      domain_->create_completion_queue({.depth = 2 * kDepth * static_cast<uint32_t>(size())});
  if (!completions.ok()) return completions.status();
  completions_ = *completions;
  auto region = domain_->register_memory(source_, Access::kAll);
  if (!region.ok()) return region.status();
  region_ = *region;
  absl::Status status =
      put_value(exchange, name + " region", region_->locator(0, source_.length, exchange.rank()));
  if (!status.ok()) return status;

  QueuePairOptions options;
  options.send_completions = options.receive_completions = completions_;
  options.send_depth = kDepth;
  options.receive_depth = 1;
  options.max_send_segments = 1;
  options.max_receive_segments = 1;
  options.max_inline = kInlineWanted;
  peers_.resize(static_cast<size_t>(size()));
  if (!served_.empty()) {
    auto server = AtomicServer::create(*domain_, rank(), size(), served_,
                                       [this](uint64_t address) { return is_known(address); });
    if (!server.ok()) return server.status();
    server_ = *std::move(server);
  }
  // All ranks connect in ascending order of the peer's rank, so no cycle of ranks can wait for each
  // other.
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank() && native_atomics_) continue;
    auto queue_pair = domain_->create_queue_pair(options);
    if (!queue_pair.ok()) return queue_pair.status();
    Peer& to = peers_[static_cast<size_t>(peer)];
    to.queue_pair = *std::move(queue_pair);
    const uint32_t depth = to.queue_pair->limits().send_depth;
    if (depth <= kMostPieces) {
      return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kProcess,
                        absl::StrFormat("%s has queues of %d requests only; tasks need %d",
                                        device_->description(), depth, kMostPieces + 1),
                        "use another device, or shm");
    }
    to.most_unsignaled = std::min<uint32_t>(kMostUnsignaled, depth - kMostPieces);
    if (peer == rank()) {
      status = to.queue_pair->connect(to.queue_pair->address(), {.peer = "itself"});
    } else {
      const std::string pair =
          absl::StrFormat("%s %d-%d", name, std::min(peer, rank()), std::max(peer, rank()));
      if (server_ == nullptr) {
        status = connect_over(exchange, peer, *to.queue_pair, deadline, pair,
                              {.ack_timeout = ack_timeout_});
      } else {
        status = connect_served(exchange, peer, deadline, pair);
      }
    }
    if (!status.ok()) return status;
    auto locator = get_value<RemoteMemoryLocator>(exchange, peer, name + " region", deadline);
    if (!locator.ok()) return locator.status();
    to.region = *locator;
  }
  if (server_ != nullptr) {
    const uint64_t offset =
        reinterpret_cast<uint64_t>(served_.data()) - reinterpret_cast<uint64_t>(source_.address);
    std::vector<RemoteMemoryLocator> cells;
    for (const Peer& peer : peers_)
      cells.push_back(peer.region.slice(offset, served_.size_bytes()));
    if (absl::Status started = server_->start(cells, region_->local_key()); !started.ok()) {
      return started;
    }
  }
  return exchange.fence(deadline);
}

// Connects the two queue pairs of a pair of ranks: first the one on which the lower rank is the
// client, then the other one.
absl::Status QueuePairAccess::connect_served(Exchange& exchange, int peer,
                                             Exchange::Deadline deadline, const std::string& pair) {
  absl::Status status;
  for (const bool as_client : {rank() < peer, peer < rank()}) {
    QueuePair& end =
        as_client ? *peers_[static_cast<size_t>(peer)].queue_pair : server_->queue_pair(peer);
    const int client = as_client ? rank() : peer;
    if (status.ok()) {
      status =
          connect_over(exchange, peer, end, deadline, absl::StrFormat("%s by %d", pair, client),
                       {.ack_timeout = ack_timeout_});
    }
  }
  return status;
}

bool QueuePairAccess::is_known(uint64_t address) const {
  const auto begin = reinterpret_cast<uint64_t>(source_.address);
  if (lies_within(address, sizeof(uint64_t), begin, source_.length)) return true;
  return address >= kPinnedAddress &&
         segment_of(address) < segment_count_.load(std::memory_order_acquire);
}

absl::StatusOr<LocalKey> QueuePairAccess::local_key(const void* local, size_t bytes) const {
  const auto address = reinterpret_cast<uint64_t>(local);
  const auto begin = reinterpret_cast<uint64_t>(source_.address);
  if (lies_within(address, bytes, begin, source_.length)) return region_->local_key();
  if (address >= kPinnedAddress) {
    const size_t index = segment_of(address);
    if (index < kMaxSegments && segments_[index] != nullptr) return segments_[index]->local_key();
  }
  return bad_address("this worker", address, bytes);
}

absl::Status QueuePairAccess::address(int peer, uint64_t remote, size_t bytes,
                                      WorkRequest& request) {
  Peer& to = peers_[static_cast<size_t>(peer)];
  const auto begin = reinterpret_cast<uint64_t>(source_.address);
  if (lies_within(remote, bytes, begin, source_.length)) {
    request.remote_address = to.region.address + (remote - begin);
    request.remote_key = to.region.key;
    return absl::OkStatus();
  }
  const size_t index = remote >= kPinnedAddress ? segment_of(remote) : kMaxSegments;
  if (index >= kMaxSegments) return bad_address(to.queue_pair->peer(), remote, bytes);
  RemoteMemoryLocator& segment = to.segments[index];
  if (segment.length == 0) {
    // The owner writes the locator before it publishes an address in the segment.
    auto* copy = reinterpret_cast<RemoteMemoryLocator*>(area_.staging.data());
    const ReadPiece piece{reinterpret_cast<uint64_t>(&area_.segments[index]), copy, sizeof *copy};
    const absl::Status status = read(peer, std::span(&piece, 1));
    if (!status.ok()) return status;
    segment = *copy;
  }
  const uint64_t offset = remote - segment_address(index);
  if (!lies_within(offset, bytes, 0, segment.length))
    return bad_address(to.queue_pair->peer(), remote, bytes);
  request.remote_address = segment.address + offset;
  request.remote_key = segment.key;
  return absl::OkStatus();
}

QueuePairAccess::Done QueuePairAccess::poll(int awaited) {
  Completion completion;
  if (completions_->poll(std::span(&completion, 1)) == 0) return {};
  const auto peer = static_cast<int>((completion.id & ~kAnswer) - 1);
  Peer& from = peers_[static_cast<size_t>(peer)];
  if (completion.status != CompletionStatus::kSuccess) {
    if (from.failure.ok()) from.failure = failure(completion, from.queue_pair->peer());
    if (failed_peer_ < 0 && absl::IsUnavailable(from.failure)) failed_peer_ = peer;
    // An unsignaled operation on another peer does not fail the one in progress.
    if (peer != awaited) return {};
    return {completion.id, from.failure};
  }
  if ((completion.id & kAnswer) != 0) from.request_pending = false;
  return {completion.id, absl::OkStatus()};
}

absl::Status QueuePairAccess::execute(int peer, std::span<WorkRequest> requests) {
  Peer& to = peers_[static_cast<size_t>(peer)];
  if (!to.failure.ok()) return to.failure;
  for (WorkRequest& request : requests) request.id = static_cast<uint64_t>(peer) + 1;
  requests.back().flags |= kSignaled;
  const PostResult posted = to.queue_pair->post_send(requests);
  // The send queue has room: the number of outstanding unsignaled requests is bounded below its
  // depth.
  if (!posted.ok()) return to_status(posted, to.queue_pair->peer());
  to.unsignaled = 0;
  ++round_trips_;
  for (;;) {
    // Do not use wait_until(): its hook may run tasks, which must not happen within a steal.
    const Done done = poll(peer);
    if (!done.status.ok() || done.id == requests.back().id) return done.status;
  }
}

absl::Status QueuePairAccess::send_request(int peer, const AtomicRequest& request) {
  absl::Status status = await_answer(peer);
  if (!status.ok()) return status;
  Peer& to = peers_[static_cast<size_t>(peer)];
  const PostResult posted =
      to.queue_pair->post_receive({.id = kAnswer | (static_cast<uint64_t>(peer) + 1)});
  if (!posted.ok()) return to_status(posted, to.queue_pair->peer());
  // This worker's cell at the peer. It has the same address there as here.
  AtomicRequest* cell = &served_[static_cast<size_t>(rank())].request;
  Segment segment{const_cast<AtomicRequest*>(&request), sizeof request, {}};
  WorkRequest work{.opcode = Opcode::kWriteImmediate, .segment_count = 1, .segments = &segment};
  status = address(peer, reinterpret_cast<uint64_t>(cell), sizeof *cell, work);
  if (!status.ok()) return status;
  to.request_pending = true;
  if (sizeof request <= to.queue_pair->limits().max_inline) {
    work.flags = kInline;
    return post(peer, work);
  }
  std::memcpy(area_.staging.data(), &request, sizeof request);
  segment = {area_.staging.data(), sizeof request, region_->local_key()};
  return execute(peer, std::span(&work, 1));
}

absl::Status QueuePairAccess::await_answer(int peer) {
  constexpr uint64_t kSpins = 1000;
  auto next_liveness_check = std::chrono::steady_clock::now() + kServerCheckInterval;
  const Peer& from = peers_[static_cast<size_t>(peer)];
  for (uint64_t round = 0; from.request_pending; ++round) {
    if (!from.failure.ok()) return from.failure;
    const Done done = poll(peer);
    if (!done.status.ok()) return done.status;
    if (done.id != 0 || round < kSpins) continue;
    internal::yield_core();  // the server may need this core
    const auto now = std::chrono::steady_clock::now();
    if (now >= deadline_) {
      if (failed_peer_ < 0) failed_peer_ = peer;
      return make_error(absl::StatusCode::kDeadlineExceeded, ErrorScope::kPeer,
                        from.queue_pair->peer() + " has not executed an atomic in time",
                        cariama::internal::peer_remedy(cariama::internal::PeerRemedy::kSilent));
    }
    if (now < next_liveness_check) continue;
    // This worker has no outstanding send that would fail if the server had died, so post a read.
    // Do not count it as a round trip of the waiting operation.
    --round_trips_;
    const absl::Status status = read(peer, reinterpret_cast<uint64_t>(&area_.atomic_result),
                                     &area_.atomic_result, sizeof area_.atomic_result);
    if (!status.ok()) return status;
    next_liveness_check = std::chrono::steady_clock::now() + kServerCheckInterval;
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> QueuePairAccess::serve(int peer, const AtomicRequest& request) {
  absl::Status status = send_request(peer, request);
  if (status.ok()) status = await_answer(peer);
  if (!status.ok()) return status;
  ++round_trips_;
  return served_[static_cast<size_t>(peer)].answer;
}

absl::Status QueuePairAccess::post(int peer, WorkRequest& request) {
  Peer& to = peers_[static_cast<size_t>(peer)];
  if (!to.failure.ok()) return to.failure;
  request.id = static_cast<uint64_t>(peer) + 1;
  if (++to.unsignaled >= to.most_unsignaled) return execute(peer, std::span(&request, 1));
  const PostResult posted = to.queue_pair->post_send(request);
  return posted.ok() ? absl::OkStatus() : to_status(posted, to.queue_pair->peer());
}

absl::Status QueuePairAccess::read(int peer, std::span<const ReadPiece> pieces) {
  if (peer == rank() && native_atomics_) {
    for (const ReadPiece& piece : pieces) {
      // Load aligned words atomically, because peers write them. Acquire: this sees what peers
      // wrote before they published a word.
      auto* from = reinterpret_cast<uint64_t*>(piece.address);
      const size_t words = piece.address % 8 == 0 ? piece.bytes / 8 : 0;
      for (size_t i = 0; i < words; ++i) {
        const uint64_t word = std::atomic_ref(from[i]).load(std::memory_order_acquire);
        std::memcpy(static_cast<std::byte*>(piece.local) + 8 * i, &word, sizeof word);
      }
      std::memcpy(static_cast<std::byte*>(piece.local) + 8 * words, from + words,
                  piece.bytes - 8 * words);
    }
    return absl::OkStatus();
  }
  if (pieces.size() > kMostPieces) {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kProcess,
                      "a read of too many pieces");
  }
  std::array<WorkRequest, kMostPieces> requests;
  std::array<Segment, kMostPieces> segments;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const ReadPiece& piece = pieces[i];
    auto key = local_key(piece.local, piece.bytes);
    if (!key.ok()) return key.status();
    segments[i] = {piece.local, static_cast<uint32_t>(piece.bytes), *key};
    requests[i] = {.opcode = Opcode::kRead, .segment_count = 1, .segments = &segments[i]};
    const absl::Status status = address(peer, piece.address, piece.bytes, requests[i]);
    if (!status.ok()) return status;
  }
  return execute(peer, std::span(requests).first(pieces.size()));
}

absl::Status QueuePairAccess::write(int peer, uint64_t remote, const void* local, size_t bytes) {
  if (peer == rank() && native_atomics_) {
    auto* to = reinterpret_cast<uint64_t*>(remote);
    const size_t words = remote % 8 == 0 ? bytes / 8 : 0;
    for (size_t i = 0; i < words; ++i) {
      uint64_t word = 0;
      std::memcpy(&word, static_cast<const std::byte*>(local) + 8 * i, sizeof word);
      std::atomic_ref(to[i]).store(word, std::memory_order_release);
    }
    std::memcpy(to + words, static_cast<const std::byte*>(local) + 8 * words, bytes - 8 * words);
    return absl::OkStatus();
  }
  Segment segment{const_cast<void*>(local), static_cast<uint32_t>(bytes), {}};
  WorkRequest request{.opcode = Opcode::kWrite, .segment_count = 1, .segments = &segment};
  const absl::Status status = address(peer, remote, bytes, request);
  if (!status.ok()) return status;
  if (bytes <= peers_[static_cast<size_t>(peer)].queue_pair->limits().max_inline) {
    request.flags = kInline;
    return post(peer, request);
  }
  auto key = local_key(local, bytes);
  if (!key.ok() && bytes <= area_.staging.size()) {
    std::memcpy(area_.staging.data(), local, bytes);
    segment.address = area_.staging.data();
    key = region_->local_key();
  }
  if (!key.ok()) return key.status();
  segment.key = *key;
  return execute(peer, std::span(&request, 1));
}

absl::StatusOr<uint64_t> QueuePairAccess::atomic(int peer, uint64_t remote, WorkRequest request) {
  Segment result{&area_.atomic_result, sizeof area_.atomic_result, region_->local_key()};
  request.segment_count = 1;
  request.segments = &result;
  absl::Status status = address(peer, remote, sizeof(uint64_t), request);
  if (status.ok()) status = execute(peer, std::span(&request, 1));
  if (!status.ok()) return status;
  return area_.atomic_result;
}

absl::StatusOr<uint64_t> QueuePairAccess::fetch_add(int peer, uint64_t remote, uint64_t addend) {
  if (peer == rank() && native_atomics_) {
    return std::atomic_ref(*reinterpret_cast<uint64_t*>(remote)).fetch_add(addend);
  }
  if (server_ != nullptr) return serve(peer, {AtomicRequest::kFetchAdd, remote, addend, 0});
  return atomic(peer, remote, {.opcode = Opcode::kFetchAdd, .operand = addend});
}

absl::StatusOr<uint64_t> QueuePairAccess::compare_swap(int peer, uint64_t remote, uint64_t expected,
                                                       uint64_t desired) {
  if (peer == rank() && native_atomics_) {
    std::atomic_ref(*reinterpret_cast<uint64_t*>(remote))
        .compare_exchange_strong(expected, desired);
    return expected;
  }
  if (server_ != nullptr) {
    return serve(peer, {AtomicRequest::kCompareSwap, remote, expected, desired});
  }
  return atomic(peer, remote,
                {.opcode = Opcode::kCompareSwap, .operand = expected, .swap = desired});
}

absl::Status QueuePairAccess::post_add(int peer, uint64_t remote, uint64_t addend) {
  if (peer == rank() && native_atomics_) return fetch_add(peer, remote, addend).status();
  if (server_ != nullptr) return send_request(peer, {AtomicRequest::kFetchAdd, remote, addend, 0});
  Segment result{&area_.discarded_result, sizeof area_.discarded_result, region_->local_key()};
  WorkRequest request{
      .opcode = Opcode::kFetchAdd, .segment_count = 1, .segments = &result, .operand = addend};
  const absl::Status status = address(peer, remote, sizeof(uint64_t), request);
  return status.ok() ? post(peer, request) : status;
}

absl::Status QueuePairAccess::add_segment(size_t index, const MemorySource& source) {
  auto region = domain_->register_memory(source, Access::kAll);
  if (!region.ok()) return region.status();
  segments_[index] = *region;
  // No fence is needed: peers get addresses in the segment only by later operations, which release.
  area_.segments[index] = segments_[index]->locator();
  segment_count_.store(index + 1, std::memory_order_release);
  return absl::OkStatus();
}

void* QueuePairAccess::mapped(int peer, uint64_t address, size_t bytes) {
  const auto begin = reinterpret_cast<uint64_t>(source_.address);
  if (!lies_within(address, bytes, begin, source_.length)) return nullptr;
  if (peer == rank()) return reinterpret_cast<void*>(address);
  const Peer& to = peers_[static_cast<size_t>(peer)];
  RemoteMemoryLocator place = to.region;
  place.address += address - begin;
  place.length = bytes;
  return to.queue_pair->direct_access(place);
}

}  // namespace cariama::tasks
