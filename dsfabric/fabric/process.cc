#include "dsfabric/process.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>

#include "dtutils/error.h"

namespace cariama {
namespace {

std::atomic<Fabric*> default_one{nullptr};
std::mutex own_mutex;
std::unique_ptr<Fabric> own;  // created by init()

thread_local std::unique_ptr<ThreadContext> own_context;
thread_local ThreadContext* information = nullptr;

}  // namespace

absl::Status init(const FabricOptions& options) {
  const std::lock_guard lock(own_mutex);
  if (default_one.load() != nullptr) {
    return make_error(absl::StatusCode::kAlreadyExists, ErrorScope::kProcess,
                      "this process has a default fabric already", "call finalize() first");
  }
  auto fabric = Fabric::create(options);
  if (!fabric.ok()) return fabric.status();
  own = *std::move(fabric);
  default_one.store(own.get());
  return absl::OkStatus();
}

void set_default_fabric(Fabric* fabric) { default_one.store(fabric); }
Fabric& default_fabric() {
  Fabric* const fabric = default_one.load(std::memory_order_acquire);
  if (fabric == nullptr) [[unlikely]] {
    std::fputs(
        "cariama: the default fabric is used, but there is none: call init() or "
        "set_default_fabric() before, or pass the Fabric: call(fabric, thread, function)\n",
        stderr);
    std::abort();
  }
  return *fabric;
}

absl::Status finalize(std::chrono::milliseconds timeout) {
  const std::lock_guard lock(own_mutex);
  if (own == nullptr) {
    return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kProcess,
                      "finalize() without init()");
  }
  if (absl::Status ended = own->finalize(deadline_after(timeout)); !ended.ok()) return ended;
  finalize_thread();
  default_one.store(nullptr);
  own.reset();
  return absl::OkStatus();
}

ThreadContext*& this_thread_information() { return information; }

absl::Status init_thread(ThreadIndex offset, CallConsumer consumer) {
  Fabric* const fabric = default_one.load(std::memory_order_acquire);
  if (fabric == nullptr) {
    return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kProcess,
                      "init_thread() without init()");
  }
  auto context = fabric->init_thread(offset, consumer);
  if (!context.ok()) return context.status();
  own_context = *std::move(context);
  information = own_context.get();
  return {};
}

void finalize_thread() {
  information = nullptr;
  own_context.reset();
}

}  // namespace cariama
