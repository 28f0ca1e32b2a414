#include "dsfabric/calls/pulls.h"

#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

#include "dsfabric/calls/fabric_parts.h"
#include "dsfabric/calls/running_call.h"
#include "dtutils/internal/start_thread.h"
#include "dtutils/trace.h"

namespace cariama::internal {
namespace {

void throw_unless_ok(const absl::Status& status) {
  if (!status.ok()) throw std::runtime_error(std::string(status.message()));
}

}  // namespace

void pull_and_run(IncomingCall& call, const RemoteMemoryLocator& source, Pulling pulling,
                  std::unique_ptr<PulledFunction> function) {
  const RunningCall here = this_running_call;
  Pulls& pulls = pulls_of(*here.fabric);
  if (pulling == Pulling::kAsync) {
    pulls.run_later(call, here.source, source, std::move(function));
  } else {
    pulls.run(here.source, source, *function);
  }
}

std::unique_ptr<Pulls::Pull> Pulls::begin(uint32_t rank, const RemoteMemoryLocator& source) {
  const TraceScope trace("dsfabric", "begin pull", "bytes", source.length);
  auto pull = std::make_unique<Pull>(memory_.general());
  pull->rank = rank;
  pull->size = source.length;
  auto buffer = memory_.general().allocate(source.length);
  throw_unless_ok(buffer.status());
  pull->buffer = *std::move(buffer);
  if (rank == job_.rank()) {
    std::memcpy(pull->buffer.get_buffer(), reinterpret_cast<const void*>(source.address),
                source.length);
    pull->done.decrease();
    return pull;
  }
  auto connected = sender_.connection_of_this_thread(rank);
  throw_unless_ok(connected.status());
  pull->connection = *connected;
  throw_unless_ok(sender_.transfer(**connected, [&](Connection& through) {
    return through.read(pull->buffer, 0, pull->size, source, &pull->done);
  }));
  return pull;
}

void Pulls::run(uint32_t rank, const RemoteMemoryLocator& source, PulledFunction& function) {
  const std::unique_ptr<Pull> pull = begin(rank, source);
  if (pull->connection != nullptr) {
    throw_unless_ok(sender_.await_transfer(*pull->connection, pull->done));
  }
  const TraceScope trace("dsfabric", "call with pulled buffer", "bytes", pull->size);
  function.run(pull->buffer.get_buffer(), pull->size);
}

void Pulls::run_later(IncomingCall& call, uint32_t rank, const RemoteMemoryLocator& source,
                      std::unique_ptr<PulledFunction> function) {
  {
    const std::lock_guard lock(mutex_);
    if (job_.options().service_threads != 0 && !thread_.joinable()) {
      auto thread = start_thread([this] { run_until_stopped(); });
      throw_unless_ok(thread.status());
      thread_ = *std::move(thread);
    }
  }
  std::unique_ptr<Pull> pull = begin(rank, source);
  pull->function = std::move(function);
  if (call.notify != nullptr) pull->notify = *call.notify;
  call.answered_later = true;
  counts_.begin(rank);
  const std::lock_guard lock(mutex_);
  pulls_.push_back(std::move(pull));
  count_.fetch_add(1, std::memory_order_release);
  wake_.ring();
}

size_t Pulls::run_arrived() {
  if (count_.load(std::memory_order_acquire) == 0) return 0;
  if (running_.exchange(true, std::memory_order_acquire)) return 0;
  std::vector<std::unique_ptr<Pull>> arrived;
  {
    const std::lock_guard lock(mutex_);
    for (auto& pull : pulls_) {
      if (pull->connection != nullptr) pull->connection->poll_sends();
      // `done` is read last: if nothing is in flight, no other thread counts it down any more.
      const bool lost = pull->connection != nullptr && !pull->connection->status().ok() &&
                        !pull->connection->queue().has_outstanding() && !pull->done.done();
      if (lost) pull->done.fail(pull->connection->status());
      if (pull->done.done()) arrived.push_back(std::move(pull));
    }
    std::erase(pulls_, nullptr);
  }
  const size_t ended = arrived.size();
  for (auto& pull : arrived) {
    const uint32_t rank = pull->rank;
    const std::optional<NotifyTarget> notify = pull->notify;
    const RunningScope running(job_.fabric(), rank);
    IncomingCall call;
    const TraceScope trace("dsfabric", "call with pulled buffer", "bytes", pull->size);
    try {
      throw_unless_ok(pull->done.status());
      pull->function->run(pull->buffer.get_buffer(), pull->size);
    } catch (...) {
      note_exception(call);
    }
    pull.reset();
    answers_.answer(rank, notify ? &*notify : nullptr, call, "");
    counts_.end(rank);
  }
  count_.fetch_sub(ended, std::memory_order_relaxed);
  running_.store(false, std::memory_order_release);
  if (ended != 0) workers_.notify_waiters();
  return ended;
}

void Pulls::run_until_stopped() {
  DoorbellSleeper sleeper(wake_);
  const auto stopped = [&] { return job_.lifecycle().is_stopping(); };
  while (!stopped()) {
    const auto look = [&] { return run_arrived() != 0 || stopped(); };
    // While a READ is in flight this thread must poll for its completion, so it does not sleep.
    const bool idle = count_.load(std::memory_order_acquire) == 0;
    static_cast<void>(
        wait_until([&] { return look() || (idle && count_.load(std::memory_order_acquire) != 0); },
                   kForever, idle ? &sleeper : nullptr));
  }
}

void Pulls::stop() {
  wake_.ring();
  if (thread_.joinable()) thread_.join();
}

}  // namespace cariama::internal
