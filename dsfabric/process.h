// The default fabric of a process and the registration of its threads, under the names of the paper
// (Seriema, Listing 1):
//
//   int main() {
//     if (auto joined = init({.threads = 1}); !joined.ok()) ...
//     if (auto named = init_thread(0); !named.ok()) ...
//     RDMAMemory* memory = thread_information->circular_allocator->allocate();
//     Synchronizer run;
//     if (CallResult sent = call<RemoteNotify>(0, [] { ... }, run)) {
//       absl::Status waited = default_fabric().wait(run, deadline_after(10s));
//     }
//     finalize_thread();
//     absl::Status ended = finalize();
//   }
//
// A program that needs several fabrics, or no default one, uses Fabric directly (fabric.h).
#ifndef CARIAMA_DSFABRIC_PROCESS_H_
#define CARIAMA_DSFABRIC_PROCESS_H_

#include <chrono>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "dsfabric/call_result.h"
#include "dsfabric/export.h"
#include "dsfabric/fabric.h"
#include "dsfabric/send_call.h"

namespace cariama {

// Joins the job. The new fabric is the default one until finalize(). Errors: those of
// Fabric::create, ALREADY_EXISTS.
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT absl::Status init(const FabricOptions& options = {});
// Makes `fabric` the default one; the caller keeps its ownership. nullptr: there is no default
// fabric.
CARIAMA_DSFABRIC_EXPORT void set_default_fabric(Fabric* fabric);
// Requires: there is a default fabric; aborts with a message otherwise.
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT Fabric& default_fabric();
// Ends the job: calls Fabric::finalize, then destroys the fabric of init(). Requires: all other
// threads have left. Errors: those of Fabric::finalize (then the fabric remains the default one),
// FAILED_PRECONDITION (no init()).
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT absl::Status finalize(
    std::chrono::milliseconds timeout = std::chrono::seconds(30));

// The calling thread's context in the default fabric, between init_thread() and finalize_thread();
// nullptr otherwise.
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT ThreadContext*& this_thread_information();
// The paper's spelling of this_thread_information(): thread_information->circular_allocator.
// Requires: the calling thread has a context there.
struct ThreadInformation {
  ThreadContext* operator->() const { return &**this; }
  ThreadContext& operator*() const { return internal::require_context(this_thread_information()); }
  explicit operator bool() const { return this_thread_information() != nullptr; }
};
// NOLINTNEXTLINE(readability-identifier-naming)
inline constexpr ThreadInformation thread_information{};

// Makes the calling thread worker `offset` of this process. Errors: those of Fabric::init_thread,
// and FAILED_PRECONDITION without init().
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT absl::Status init_thread(
    ThreadIndex offset, CallConsumer consumer = CallConsumer::kThread);
// Ends the calling thread's registration. Does nothing without a preceding init_thread().
CARIAMA_DSFABRIC_EXPORT void finalize_thread();

// The send-based calls (send_call.h), on the default fabric.
template <auto... Options, typename F, typename... Given>
CallResult call(ThreadId destination, F&& function, Given&&... given) {
  return call<Options...>(default_fabric(), destination, std::forward<F>(function),
                          std::forward<Given>(given)...);
}
template <auto... Options, typename F, typename... Given>
CallResult call_buffer(ThreadId destination, F&& function, Given&&... given) {
  return call_buffer<Options...>(default_fabric(), destination, std::forward<F>(function),
                                 std::forward<Given>(given)...);
}
template <auto... Options, typename F, typename... Given>
CallResult call_return(ThreadId destination, F&& function, Given&&... given) {
  return call_return<Options...>(default_fabric(), destination, std::forward<F>(function),
                                 std::forward<Given>(given)...);
}
template <auto... Options, typename F, typename... Args>
[[nodiscard]] auto async_call(ThreadId destination, F&& function, Args&&... arguments) {
  return async_call<Options...>(default_fabric(), destination, std::forward<F>(function),
                                std::forward<Args>(arguments)...);
}

}  // namespace cariama

#endif  // CARIAMA_DSFABRIC_PROCESS_H_
