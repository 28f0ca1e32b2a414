#include "dsfabric/calls/pulls.h"

#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

#include "dsfabric/calls/fabric_parts.h"
#include "dsfabric/calls/running_call.h"
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
  auto pull = std::make_unique<Pull>(*this);
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
  throw_unless_ok(reads_.prepare());
  std::unique_ptr<Pull> pull = begin(rank, source);
  pull->function = std::move(function);
  if (call.notify != nullptr) pull->notify = *call.notify;
  call.answered_later = true;
  counts_.begin(rank);
  reads_.add(std::move(pull));
}

// ---- A pull -------------------------------------------------------------------------------------

Pulls::Pull::~Pull() {
  if (buffer.get_buffer() != nullptr) {
    pulls.memory_.general().free_or_keep(std::move(buffer));
  }
}

bool Pulls::Pull::ended() {
  if (outcome) return true;
  if (connection != nullptr) {
    connection->poll_sends();
    if (!has_ended(connection->queue(), done)) return false;
  }
  return !pulls.running_.exchange(true, std::memory_order_acquire);
}

void Pulls::Pull::run_function() {
  outcome.emplace();
  const TraceScope trace("dsfabric", "call with pulled buffer", "bytes", size);
  try {
    throw_unless_ok(done.status());
    function->run(buffer.get_buffer(), size);
  } catch (...) {
    note_exception(*outcome);
  }
}

// The function runs once: without memory for the answer, only the answer is repeated.
void Pulls::Pull::finish() {
  const RunningScope running(pulls.job_.fabric(), rank);
  if (!outcome) {
    run_function();
    pulls.running_.store(false, std::memory_order_release);
  }
  if (buffer.get_buffer() != nullptr) {
    pulls.memory_.general().free_or_keep(std::move(buffer));
  }
  pulls.answers_.answer(rank, notify ? &*notify : nullptr, *outcome, "");
  pulls.counts_.end(rank);
}

}  // namespace cariama::internal
