// Calls whose buffer the destination fetches by RDMA READ (Seriema §3.1, the second call_buffer),
// the same for all call paths. Not for users: the templates of call_forms.h use it.
#ifndef CARIAMA_DSFABRIC_BUFFER_PULL_H_
#define CARIAMA_DSFABRIC_BUFFER_PULL_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>
#include <utility>

#include "dsfabric/call_encoding.h"
#include "dsfabric/call_options.h"
#include "dsfabric/export.h"
#include "dsfabric/fabric.h"
#include "dtutils/memory.h"

namespace cariama::internal {

// The function of a call, to be run on the pulled buffer.
class PulledFunction {
 public:
  virtual ~PulledFunction() = default;
  virtual void run(void* buffer, uint64_t size) = 0;
};

// For stubs. Returns true if `source` can be memory of the process that sent the running call. A
// stub must check this before the READ, because a READ outside of registered memory breaks the
// connection.
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT bool can_be_pulled(const RemoteMemoryLocator& source);

// For stubs. Fetches `source` from the process that sent the running call, and runs the function on
// the fetched buffer: in this thread before it returns (kSync), or later in a thread of the fabric,
// which also answers the call (kAsync). Throws std::runtime_error if the memory cannot be read.
CARIAMA_DSFABRIC_EXPORT void pull_and_run(IncomingCall& call, const RemoteMemoryLocator& source,
                                          Pulling pulling,
                                          std::unique_ptr<PulledFunction> function);

// A call of fn(void* buffer, uint64_t size) that carries the buffer's locator instead of its bytes.
template <typename F, Pulling kPulling>
class PulledCall {
 public:
  using Result = void;

  PulledCall(const F& function, const RemoteMemoryLocator& source)
      : function_(function), source_(source) {
    require_buffer_function<F>();
  }

  [[nodiscard]] static FunctionId id() { return FunctionTable::id_of<&PulledCall::run>(); }
  [[nodiscard]] size_t bytes() const { return sizeof source_ + kClosureBytes<F>; }
  void write(std::byte* at) const {
    std::memcpy(at, &source_, sizeof source_);
    if constexpr (!std::is_empty_v<F>) std::memcpy(at + sizeof source_, &function_, sizeof(F));
  }

  static void run(IncomingCall& call) {
    if (call.closure.size() < sizeof(RemoteMemoryLocator) + kClosureBytes<F>) {
      call.outcome = CallOutcome::kMalformed;
      return;
    }
    RemoteMemoryLocator source;
    std::memcpy(&source, call.closure.data(), sizeof source);
    if (!can_be_pulled(source)) {
      call.outcome = CallOutcome::kMalformed;
      return;
    }
    try {
      pull_and_run(call, source, kPulling,
                   std::make_unique<Function>(call.closure.data() + sizeof source));
    } catch (...) {
      note_exception(call);
    }
  }

 private:
  // Owns a copy of the function, because it may run after its message has been recycled.
  class Function final : public PulledFunction {
   public:
    explicit Function(std::byte* at) {
      if constexpr (!std::is_empty_v<F>) std::memcpy(copy_, at, sizeof(F));
    }
    void run(void* buffer, uint64_t size) override {
      if constexpr (std::is_invocable_v<F&, void*, uint64_t>) {  // else PulledCall reports it
        static_cast<void>((*std::launder(reinterpret_cast<F*>(copy_)))(buffer, size));
      }
    }

   private:
    alignas(F) std::byte copy_[sizeof(F)];
  };

  F function_;
  RemoteMemoryLocator source_;
};

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_BUFFER_PULL_H_
