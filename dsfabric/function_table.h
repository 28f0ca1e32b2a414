// Functions that calls may name: an identity, not an address (DESIGN invariant 5).
//
// A call carries a FunctionId, and the receiver looks it up in a table of this program's invocable
// functions. By type: each function that a program ever passes to call() has a stub, a template
// instance that knows how to run it; naming the stub anywhere in the program registers it before
// main(). When the table is built, stubs are sorted by the build-id of the program or library they
// are in and their offset in it, and numbered from 1. Two processes of one build have the same
// table, whatever addresses their code has; fingerprint() proves it, and connections compare it. By
// name: a function registered under a user's number keeps that number in every build (Seriema
// §4.3).
//
// An id that the table does not have is rejected by resolve(), and never jumped to. Only a build
// that compares with the paper's way (CMake option CARIAMA_RAW_FUNCTION_ADDRESSES; all else is as
// ever) sends addresses and believes them: there all processes need equal ones, as forks have.
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
// Throws nothing: what the function throws is caught by the stub and reported as the call says.
using FunctionStub = void (*)(IncomingCall& call);

// 0 names nothing. The top bit marks numbers that a user chose.
struct FunctionId {
  static constexpr uint32_t kUserBit = uint32_t{1} << 31;
  uint32_t value = 0;
  friend auto operator<=>(FunctionId, FunctionId) = default;
};

// 32 bytes that two processes compare before they call each other.
struct ProgramFingerprint {
  std::array<uint8_t, 20>
      build_id{};           // of the main program, as the linker wrote it; zeros without one
  uint32_t functions = 0;   // in the table
  uint64_t table_hash = 0;  // over every function's library, offset and number
  friend bool operator==(const ProgramFingerprint&, const ProgramFingerprint&) = default;
};
static_assert(sizeof(ProgramFingerprint) == 32);

namespace internal {

// A stub on its way into the table: one static object per stub, linked into a list before main().
struct CARIAMA_DSFABRIC_EXPORT FunctionRegistration {
  explicit FunctionRegistration(FunctionStub stub);
  FunctionStub stub;
  FunctionRegistration* next;
  // Set when the table is built; 0 before, and for stubs of libraries that were loaded later.
  std::atomic<uint32_t> id{0};
};

// Registers Stub by being named.
template <FunctionStub Stub>
struct RegisteredFunction {
  static inline FunctionRegistration registration{Stub};
};

}  // namespace internal

// The table of this program. Built once, by build(), which every Fabric's init calls; immutable
// after that but for register_function(). resolve() is wait-free.
class CARIAMA_DSFABRIC_EXPORT FunctionTable {
 public:
  // Builds the table from the stubs of the program and of the libraries loaded so far. Idempotent,
  // thread-safe. Error: FAILED_PRECONDITION (a program or library with stubs carries no build-id:
  // link it with -Wl,--build-id; two builds could not be told apart).
  [[nodiscard]] static absl::Status build();

  // The id of a stub. 0 if the table was not built yet, or if the stub is in a library loaded
  // later.
  template <FunctionStub Stub>
  [[nodiscard]] static FunctionId id_of() {
    internal::FunctionRegistration& registration = internal::RegisteredFunction<Stub>::registration;
#ifdef CARIAMA_RAW_FUNCTION_ADDRESSES
    return {static_cast<uint32_t>(reinterpret_cast<uintptr_t>(registration.stub))};
#else
    return {registration.id.load(std::memory_order_relaxed)};
#endif
  }

  // Gives a stub a number of the user's own, below 2^16. To be called before build(), by every
  // process alike. Error: ALREADY_EXISTS (another function has the number), OUT_OF_RANGE,
  // FAILED_PRECONDITION (the table was built).
  [[nodiscard]] static absl::StatusOr<FunctionId> register_stub(uint32_t number, FunctionStub stub);

  // The stub of an id that came from outside, or nullptr: the rejection is counted.
  [[nodiscard]] static FunctionStub resolve(FunctionId id) {
#ifdef CARIAMA_RAW_FUNCTION_ADDRESSES
    return reinterpret_cast<FunctionStub>(program_half_ | id.value);
#else
    const uint32_t index = id.value & ~FunctionId::kUserBit;
    const Stubs& stubs = (id.value & FunctionId::kUserBit) == 0 ? by_type_ : by_number_;
    if (index < stubs.count) [[likely]] {
      if (FunctionStub stub = stubs.first[index]; stub != nullptr) [[likely]]
        return stub;
    }
    return reject();
#endif
  }

  // Ids that resolve() did not find so far.
  [[nodiscard]] static uint64_t rejected();

  [[nodiscard]] static ProgramFingerprint fingerprint();

  // OK if a process with that fingerprint has the same functions under the same ids, else
  // FAILED_PRECONDITION with a sentence that says what differs and what to do. `peer` is its label.
  [[nodiscard]] static absl::Status check(const ProgramFingerprint& theirs,
                                          const std::string& peer);

 private:
  struct Stubs {
    const FunctionStub* first = nullptr;
    uint32_t count = 0;
  };
  static FunctionStub reject();

  static Stubs by_type_;  // index 0 is never used
  static Stubs by_number_;
#ifdef CARIAMA_RAW_FUNCTION_ADDRESSES
  static uintptr_t program_half_;  // of all addresses of functions, the upper
#endif
};

}  // namespace cariama

#endif  // CARIAMA_DSFABRIC_FUNCTION_TABLE_H_
