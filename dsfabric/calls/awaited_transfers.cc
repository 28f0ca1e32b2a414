#include "dsfabric/calls/awaited_transfers.h"

#include <memory>
#include <string_view>
#include <utility>

#include "dsfabric/calls/fabric_parts.h"
#include "dsfabric/completions.h"
#include "dsfabric/transfer_completion.h"
#include "dtutils/error.h"
#include "dtutils/internal/first_exception.h"
#include "dtutils/internal/missing_memory.h"
#include "dtutils/internal/start_thread.h"

namespace cariama::internal {
namespace {

constexpr std::string_view kTransferMemoryKey = "dsfabric.transfers.memory";
constexpr std::string_view kTransferMemoryText =
    "this process lacks memory for the end of a transfer";

// Transfers that a user has posted. Their end completes an event.
class TransfersWithEvent final : public AwaitedTransfer {
 public:
  TransfersWithEvent(TransmitQueue& queue, Synchronizer& done, EventReceiver event)
      : queue_(queue), done_(done), event_(std::move(event)) {}
  [[nodiscard]] bool ended() override { return has_ended(queue_, done_); }
  void finish() override { event_.complete(done_.status()); }
  void drop(const absl::Status& why) override { event_.complete(why); }

 private:
  TransmitQueue& queue_;
  Synchronizer& done_;
  const EventReceiver event_;
};

}  // namespace

absl::Status watch_transfers(Fabric& fabric, TransmitQueue& queue, Synchronizer& done,
                             EventReceiver event) {
  AwaitedTransfers& transfers = transfers_of(fabric);
  if (absl::Status prepared = transfers.prepare(); !prepared.ok()) return prepared;
  transfers.add(std::make_unique<TransfersWithEvent>(queue, done, std::move(event)));
  return absl::OkStatus();
}

bool has_ended(TransmitQueue& queue, Synchronizer& done) {
  if (done.done()) return true;
  queue.progress();
  // `done` is read last: if nothing is in flight, no other thread counts it down any more.
  const bool lost = !queue.status().ok() && !queue.has_outstanding() && !done.done();
  if (lost) done.fail(queue.status());
  return done.done();
}

absl::Status AwaitedTransfers::prepare() {
  const std::lock_guard lock(mutex_);
  if (stopped_ || job_.lifecycle().is_stopping()) return stopped_error();
  if (job_.options().service_threads == 0 || thread_.joinable()) return absl::OkStatus();
  auto thread = start_thread([this] { run_until_stopped(); });
  if (!thread.ok()) return thread.status();
  thread_ = *std::move(thread);
  return absl::OkStatus();
}

AwaitedTransfers::~AwaitedTransfers() {
  transfers_.clear();
  dropped_.clear();
}

void AwaitedTransfers::List::append(std::unique_ptr<AwaitedTransfer> transfer) noexcept {
  AwaitedTransfer* const added = transfer.get();
  (last == nullptr ? first : last->next_) = std::move(transfer);
  last = added;
}

std::unique_ptr<AwaitedTransfer> AwaitedTransfers::List::take_first() noexcept {
  std::unique_ptr<AwaitedTransfer> taken = std::move(first);
  if (taken == nullptr) return nullptr;
  first = std::move(taken->next_);
  if (first == nullptr) last = nullptr;
  return taken;
}

void AwaitedTransfers::List::clear() noexcept {
  while (take_first() != nullptr) {
  }
}

void AwaitedTransfers::add(std::unique_ptr<AwaitedTransfer> transfer) noexcept {
  AwaitedTransfer& added = *transfer;
  bool dropped = false;
  {
    const std::lock_guard lock(mutex_);
    dropped = stopped_;
    (dropped ? dropped_ : transfers_).append(std::move(transfer));
    if (!dropped) count_.fetch_add(1, std::memory_order_release);
  }
  if (dropped) return added.drop(stopped_error());  // `added` lives as long as this object
  wake_.ring();
}

size_t AwaitedTransfers::run_ended() {
  if (count_.load(std::memory_order_acquire) == 0) return 0;
  List ended;
  {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock()) return 0;  // another thread polls them
    List others;
    while (auto transfer = transfers_.take_first()) {
      bool over = false;
      static_cast<void>(has_memory_for(kTransferMemoryKey, kTransferMemoryText,
                                       [&] { over = transfer->ended(); }));
      List& list = over ? ended : others;
      list.append(std::move(transfer));
    }
    transfers_ = std::move(others);
  }
  size_t count = 0;
  FirstException exceptions;  // of the coroutines that await the transfers
  while (auto transfer = ended.take_first()) {
    exceptions.run([&] {
      if (!has_memory_for(kTransferMemoryKey, kTransferMemoryText, [&] { transfer->finish(); })) {
        add(std::move(transfer));  // which counts it again
      }
    });
    ++count;
  }
  count_.fetch_sub(count, std::memory_order_relaxed);
  if (count != 0) exceptions.run([&] { workers_.notify_waiters(); });
  exceptions.rethrow();
  return count;
}

void AwaitedTransfers::run_until_stopped() {
  DoorbellSleeper sleeper(wake_);
  const auto stopped = [&] { return job_.lifecycle().is_stopping(); };
  while (!stopped()) {
    const auto look = [&] { return run_ended() != 0 || stopped(); };
    const bool idle = count_.load(std::memory_order_acquire) == 0;
    static_cast<void>(
        wait_until([&] { return look() || idle == (count_.load(std::memory_order_acquire) != 0); },
                   kForever, idle ? &sleeper : nullptr));
  }
}

void AwaitedTransfers::stop() {
  wake_.ring();
  std::thread thread;
  {
    const std::lock_guard lock(mutex_);
    thread = std::move(thread_);
  }
  if (thread.joinable()) thread.join();
  List dropped;
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    dropped = std::move(transfers_);
    transfers_ = {};
  }
  while (auto transfer = dropped.take_first()) {
    transfer->drop(stopped_error());
    count_.fetch_sub(1, std::memory_order_relaxed);
    const std::lock_guard lock(mutex_);
    dropped_.append(std::move(transfer));
  }
  workers_.notify_waiters();
}

absl::Status AwaitedTransfers::stopped_error() const {
  const Lifecycle& lifecycle = job_.lifecycle();
  return lifecycle.is_closed() ? lifecycle.closed_error()
                               : make_error(absl::StatusCode::kUnavailable, ErrorScope::kProcess,
                                            "the fabric was destroyed before a transfer had ended",
                                            "wait for the transfers before");
}

}  // namespace cariama::internal
