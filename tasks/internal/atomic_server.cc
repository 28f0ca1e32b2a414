#include "tasks/internal/atomic_server.h"

#include <array>
#include <chrono>
#include <cstddef>
#include <utility>

#include "dtutils/error.h"
#include "dtutils/internal/start_thread.h"
#include "tasks/internal/sanitizer.h"

namespace cariama::tasks {
namespace {

constexpr uint32_t kSendDepth = 16;
constexpr uint32_t kReceiveDepth = 2;
// Number of fruitless polls before the thread sleeps. An answer is often followed by the next
// request.
constexpr int kSpins = 200;
// Longest sleep of the thread. A lost wake-up would block the job; this bounds the delay.
constexpr std::chrono::milliseconds kMaxSleep{20};

// The id of a work request is the rank of the client, plus this bit for a receive.
constexpr uint64_t kReceiveId = uint64_t{1} << 32;

}  // namespace

absl::StatusOr<std::unique_ptr<AtomicServer>> AtomicServer::create(ProtectionDomain& domain,
                                                                   int rank, int size,
                                                                   std::span<AtomicCell> cells,
                                                                   IsKnown is_known) {
  std::unique_ptr<AtomicServer> server(new AtomicServer(rank, cells, std::move(is_known)));
  auto channel = domain.create_channel();
  if (!channel.ok()) return channel.status();
  server->channel_ = *channel;
  const auto clients = static_cast<uint32_t>(size);
  auto completions = domain.create_completion_queue(
      {.depth = (kSendDepth + kReceiveDepth) * clients, .channel = server->channel_});
  if (!completions.ok()) return completions.status();
  server->completions_ = *completions;
  QueuePairOptions options;
  options.send_completions = options.receive_completions = server->completions_;
  options.send_depth = kSendDepth;
  options.receive_depth = kReceiveDepth;
  options.max_send_segments = 1;
  options.max_receive_segments = 1;
  options.max_inline = 0;
  server->clients_.resize(clients);
  for (int client = 0; client < size; ++client) {
    if (client == rank) continue;
    auto queue_pair = domain.create_queue_pair(options);
    if (!queue_pair.ok()) return queue_pair.status();
    server->clients_[static_cast<size_t>(client)].queue_pair = *std::move(queue_pair);
    for (uint32_t i = 0; i < kReceiveDepth; ++i) {
      if (server->post_receive(client)) continue;
      return make_error(absl::StatusCode::kInternal, ErrorScope::kOperation,
                        "a receive for served atomics was refused");
    }
  }
  return server;
}

AtomicServer::~AtomicServer() {
  if (!thread_.joinable()) return;
  stop_.store(true, std::memory_order_release);
  channel_->wake();
  thread_.join();
}

absl::Status AtomicServer::start(const std::vector<RemoteMemoryLocator>& cells, LocalKey key) {
  key_ = key;
  for (size_t client = 0; client < clients_.size(); ++client) {
    RemoteMemoryLocator& cell = clients_[client].cell = cells[client];
    cell.address += static_cast<uint64_t>(rank_) * sizeof(AtomicCell);
  }
  auto thread = internal::start_thread([this] { serve(); });
  if (!thread.ok()) return thread.status();
  thread_ = *std::move(thread);
  return absl::OkStatus();
}

bool AtomicServer::post_receive(int client) {
  return clients_[static_cast<size_t>(client)]
      .queue_pair->post_receive({.id = kReceiveId | static_cast<uint64_t>(client)})
      .ok();
}

void AtomicServer::serve() {
  int idle = 0;
  while (!stop_.load(std::memory_order_acquire)) {
    if (poll() || !unanswered_.empty()) {
      idle = 0;
    } else if (++idle >= kSpins && completions_->arm().ok()) {
      if (!poll()) static_cast<void>(channel_->wait(kMaxSleep));
      idle = 0;
    }
  }
}

// Handles completions, and posts deferred answers. Returns true if there was a completion.
bool AtomicServer::poll() {
  std::array<Completion, 16> done;
  const size_t count = completions_->poll(done);
  for (const Completion& completion : std::span(done).first(count)) {
    // Ignore a failed queue pair: its client has ended, or its own worker thread observes the error
    // and leaves the run.
    if (completion.status != CompletionStatus::kSuccess || completion.id < kReceiveId) continue;
    const auto client = static_cast<int>(completion.id & ~kReceiveId);
    // Post the next receive before the answer: the client may send its next request when it has the
    // answer.
    static_cast<void>(post_receive(client));
    execute(client);
  }
  for (size_t waiting = unanswered_.size(); waiting > 0; --waiting) {
    const int client = unanswered_.front();
    unanswered_.pop_front();
    answer(client);
  }
  return count != 0;
}

void AtomicServer::execute(int client) {
  const AtomicRequest request = cells_[static_cast<size_t>(client)].request;
  if (request.address % sizeof(uint64_t) != 0 || !is_known_(request.address)) {
    // Reject the request: the client observes the failed queue pair.
    clients_[static_cast<size_t>(client)].queue_pair->fail();
    return;
  }
  after_peers();
  const std::atomic_ref word(*reinterpret_cast<uint64_t*>(request.address));
  uint64_t old = request.operand;
  if (request.kind == AtomicRequest::kFetchAdd) {
    old = word.fetch_add(request.operand);
  } else {
    word.compare_exchange_strong(old, request.desired);
  }
  before_peers();
  cells_[static_cast<size_t>(client)].source = old;
  answer(client);
}

void AtomicServer::answer(int client) {
  Client& to = clients_[static_cast<size_t>(client)];
  uint64_t& source = cells_[static_cast<size_t>(client)].source;
  const Segment segment{&source, sizeof source, key_};
  const WorkRequest request{.id = static_cast<uint64_t>(client),
                            .opcode = Opcode::kWriteImmediate,
                            .flags = kSignaled,
                            .segment_count = 1,
                            .segments = &segment,
                            .remote_address = to.cell.address + offsetof(AtomicCell, answer),
                            .remote_key = to.cell.key};
  if (to.queue_pair->post_send(request).error == PostError::kQueueFull) {
    unanswered_.push_back(client);
  }
}

}  // namespace cariama::tasks
