#include "dsfabric/fabric.h"

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "dsfabric/fabric/crash_report.h"
#include "dsfabric/fabric/create_fabric.h"
#include "dsfabric/fabric/fabric_core.h"
#include "dtutils/error.h"
#include "dtutils/system_info.h"

namespace cariama {

absl::StatusOr<FabricOptions> fabric_preset(std::string_view name) {
  if (name == "default") return FabricOptions{};
  if (name == "paper") return FabricOptions::paper();
  return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kProcess,
                    "no preset of fabric options is called '" + std::string(name) + "'",
                    "use 'default' or 'paper'");
}

ThreadContext& internal::require_context(ThreadContext* context) {
  // `context` may be the address of a reference to nothing. The empty instruction keeps the
  // compiler from the conclusion that an address of a reference is not nullptr.
  asm("" : "+r"(context));
  if (context != nullptr) return *context;
  std::fputs(
      "cariama: the ThreadContext of the calling thread is used, but it has none: it has not "
      "called init_thread(), runs a service call, or runs a call to a thread that has left. "
      "Fabric::this_thread() is nullptr there; use the send-based calls instead of a messenger\n",
      stderr);
  std::abort();
}

internal::FabricUse::FabricUse(const Fabric& fabric, const char* object)
    : fabric_(fabric.core_), object_(object) {}

void internal::FabricUse::end() const {
  if (object_ == nullptr || !fabric_.expired()) return;
  std::fprintf(stderr,
               "cariama: %s is destroyed after the Fabric that it uses: destroy it before the "
               "Fabric, for example by declaring it behind the Fabric\n",
               object_);
  std::abort();
}

ThreadContext::~ThreadContext() {
  use_.end();
  if (named_) internal::core_of(fabric_).workers().leave(index_);
}

absl::StatusOr<std::unique_ptr<Fabric>> internal::create_fabric(
    const FabricOptions& options, std::unique_ptr<Bootstrap> bootstrap,
    const BrokerMaker& broker_of, SharedJobDirectory* directory) {
  auto core = FabricCore::create(options, std::move(bootstrap), directory);
  if (!core.ok()) return core.status();
  auto fabric = FabricAccess::fabric_of(*std::move(core));
  if (absl::Status started = core_of(*fabric).start(fabric.get(), broker_of); !started.ok()) {
    return started;
  }
  return fabric;
}

absl::StatusOr<std::unique_ptr<Fabric>> Fabric::create(const FabricOptions& options) {
  auto bootstrap = make_bootstrap({.kind = {}, .timeout = options.timeout});
  if (!bootstrap.ok()) return bootstrap.status();
  const Deadline deadline = deadline_after(options.timeout);
  return internal::create_fabric(
      options, *std::move(bootstrap), [&](Bootstrap& job, internal::Broker::Handler handler) {
        return internal::make_socket_broker(job, std::move(handler), deadline);
      });
}

Fabric::Fabric(std::unique_ptr<internal::FabricCore> core) : core_(std::move(core)) {}

Fabric::~Fabric() {
  // In a child of fork(), the parent owns the threads of the core and the other ends of its sockets
  // and queue pairs. So the child releases nothing.
  if (!core_->job().lifecycle().is_inherited()) return;
  using Core = std::shared_ptr<internal::FabricCore>;
  alignas(Core) static std::byte never_destroyed[sizeof(Core)];
  new (never_destroyed) Core(std::move(core_));
}

Rank Fabric::rank() const { return core_->job().rank(); }
uint32_t Fabric::size() const { return core_->job().size(); }
uint32_t Fabric::threads() const { return core_->job().threads(); }
std::string Fabric::label(Rank rank) const { return core_->job().label(rank); }

absl::StatusOr<std::unique_ptr<ThreadContext>> Fabric::init_thread(ThreadIndex index,
                                                                   CallConsumer consumer) {
  const int node = numa_node_of_this_thread();
  // On a machine with one NUMA node, all threads share one allocator.
  auto allocator = core_->memory().allocator(numa_nodes().size() > 1 ? node : kAnyNode);
  if (!allocator.ok()) return allocator.status();
  auto buffers = CircularAllocator::create(*std::move(allocator), options().thread_buffers);
  if (!buffers.ok()) return buffers.status();
  auto context = std::unique_ptr<ThreadContext>(
      new ThreadContext(*this, index, thread_of(rank(), index), node, *std::move(buffers)));
  if (absl::Status taken = core_->dispatch().take_worker(index, consumer, context.get());
      !taken.ok()) {
    return taken;
  }
  context->named_ = true;
  core_->job().set_node_of_worker(index, node);
  internal::report_overflows_of_this_thread();
  return context;
}

ThreadContext* Fabric::this_thread() const { return core_->workers().this_context(); }

size_t Fabric::process_calls(size_t most) {
  const uint32_t index = core_->workers().this_worker();
  const auto run = [&](size_t limit) {
    return index == kNoThread ? 0 : core_->dispatch().process_calls(index, limit);
  };
  const size_t count = run(most);
  const bool polls_alone = options().service_threads == 0;
  if (count != 0 && !polls_alone) return count;
  const size_t came = polls_alone ? core_->dispatch().progress() : core_->ports().receive();
  return came == 0 || count == most ? count : count + run(most - count);
}
size_t Fabric::progress() { return core_->dispatch().progress(); }
bool Fabric::wait(const std::function<bool()>& condition, Deadline deadline) {
  return core_->dispatch().wait(condition, deadline);
}
absl::Status Fabric::wait(const Synchronizer& done, Deadline deadline) {
  if (wait([&] { return done.done(); }, deadline)) return done.status();
  return make_error(absl::StatusCode::kDeadlineExceeded, ErrorScope::kOperation,
                    std::to_string(done.operations_left()) +
                        " operations have not ended before the deadline" +
                        core_->workers().why_no_calls(),
                    "wait again: the operations continue");
}
bool Fabric::wait_polling(const std::function<bool()>& condition, Deadline deadline) {
  return core_->dispatch().wait_polling(condition, deadline);
}
void Fabric::wake(ThreadIndex index) { core_->workers().wake(index); }
absl::Status Fabric::finalize(Deadline deadline) { return core_->finalize(deadline); }
bool Fabric::finalized() const { return core_->job().lifecycle().is_closed(); }
absl::Status Fabric::peer_status(Rank rank) const { return core_->peers().status(rank); }
GeneralAllocator& Fabric::memory() { return core_->memory().general(); }

absl::StatusOr<TransmitQueue*> Fabric::connection(Rank rank, ThreadIndex thread_index) {
  auto connection = core_->peers().connection(rank, thread_index);
  if (!connection.ok()) return connection.status();
  return &(*connection)->queue();
}

const ProtectionDomain* Fabric::domain(Rank rank) const { return core_->ports().domain(rank); }
Bootstrap& Fabric::bootstrap() { return core_->job().bootstrap(); }
const FabricOptions& Fabric::options() const { return core_->job().options(); }
FabricStatistics Fabric::statistics() const { return core_->statistics(); }
std::string Fabric::device_description(Rank rank) const {
  const Device* const device = core_->ports().device(rank);
  return device == nullptr ? "" : device->description();
}
RDMAAllocatorStatistics Fabric::memory_statistics() const { return core_->memory().statistics(); }

}  // namespace cariama
