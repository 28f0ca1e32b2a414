// The table of the functions that calls may name. A call names a function by its id, not by an
// address.
//
// A call carries a FunctionId, and the receiver looks it up in the table of this program's
// invocable functions (Seriema §4.3 ii).
//
// Each function that a program passes to call() anywhere has a stub, a template instance that runs
// it. Naming the stub anywhere in the program registers it before main(). When the table is built,
// the stubs are sorted by the build-id of their program or library and their offset in it, and
// numbered from 1. Two processes of one build have the same table, also if their code has different
// addresses. fingerprint() identifies the table, and processes compare it before they connect. So
// all processes of a job run the same build; functions registered under ids that the user chooses,
// for calls between separately built programs (Seriema §4.3 i), do not exist.
//
// resolve() rejects an id that is not in the table, so an invalid id is never jumped to.
#ifndef CARIAMA_DSFABRIC_FUNCTION_TABLE_H_
#define CARIAMA_DSFABRIC_FUNCTION_TABLE_H_

#include <array>
#include <atomic>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dsfabric/export.h"

namespace cariama {

struct IncomingCall;

// Runs a call: reads the closure from call.closure, invokes the function, destroys the closure.
// Never throws: the stub catches the function's exceptions and reports them in `call`.
using FunctionStub = void (*)(IncomingCall& call);

// 0 is not a valid id.
struct FunctionId {
  uint32_t value = 0;
  friend auto operator<=>(FunctionId, FunctionId) = default;
};

// 32 bytes that processes compare before they call each other.
struct ProgramFingerprint {
  std::array<uint8_t, 20>
      build_id{};           // of the main program, as the linker wrote it; zeros if it has none
  uint32_t functions = 0;   // number of stubs in the table
  uint64_t table_hash = 0;  // over every function's library and offset
  friend bool operator==(const ProgramFingerprint&, const ProgramFingerprint&) = default;
};
static_assert(sizeof(ProgramFingerprint) == 32);

namespace internal {

// The registration of a stub: one static object per stub, linked into a list before main().
struct CARIAMA_DSFABRIC_EXPORT FunctionRegistration {
  explicit FunctionRegistration(FunctionStub stub);
  FunctionStub stub;
  FunctionRegistration* next;
  // Set when the table is built. 0 before that, and for stubs of libraries loaded after that.
  std::atomic<uint32_t> id{0};
};

// Naming this type's `registration` registers Stub.
template <FunctionStub Stub>
struct RegisteredFunction {
  static inline FunctionRegistration registration{Stub};
};

}  // namespace internal

// The table of this program. build() builds it once; every Fabric's init calls build(). Immutable
// afterwards. resolve() is wait-free.
class CARIAMA_DSFABRIC_EXPORT FunctionTable {
 public:
  // Builds the table from the stubs of the program and of the libraries loaded so far. Idempotent,
  // thread-safe. Error: FAILED_PRECONDITION (a program or library with stubs carries no build-id:
  // link it with -Wl,--build-id; two builds could not be distinguished).
  [[nodiscard]] static absl::Status build();

  // Returns the id of a stub, or 0 if the table has not been built yet or the stub is in a library
  // loaded later.
  template <FunctionStub Stub>
  [[nodiscard]] static FunctionId id_of() {
    internal::FunctionRegistration& registration = internal::RegisteredFunction<Stub>::registration;
    return {registration.id.load(std::memory_order_relaxed)};
  }

  // Returns the stub of an id received from another process, or nullptr if there is none; then the
  // rejection is counted.
  [[nodiscard]] static FunctionStub resolve(FunctionId id) {
    if (id.value < stubs_.count) [[likely]] {
      if (FunctionStub stub = stubs_.first[id.value]; stub != nullptr) [[likely]]
        return stub;
    }
    return reject();
  }

  // Returns the number of ids that resolve() has rejected so far.
  [[nodiscard]] static uint64_t rejected();

  [[nodiscard]] static ProgramFingerprint fingerprint();

  // Returns OK if a process with the fingerprint `theirs` has the same functions under the same
  // ids. Otherwise returns FAILED_PRECONDITION; the text names the difference and the remedy.
  // `peer` is the label of that process.
  [[nodiscard]] static absl::Status check(const ProgramFingerprint& theirs,
                                          const std::string& peer);

 private:
  struct Stubs {
    const FunctionStub* first = nullptr;
    uint32_t count = 0;
  };
  static FunctionStub reject();

  static Stubs stubs_;  // by id; entry 0 is nullptr
};

}  // namespace cariama

#endif  // CARIAMA_DSFABRIC_FUNCTION_TABLE_H_
