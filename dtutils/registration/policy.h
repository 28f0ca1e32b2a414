// Policies of a RegistrationCache: how long memory stays registered after its use.
//
//   options.policy = make_registration_policy("leave-pinned").value();
//
// | name            | after the last use                 | registers                         |
// |-----------------|------------------------------------|-----------------------------------|
// | leave-pinned    | stays registered for ever          | at the first use                  |
// | on-demand       | deregistered immediately           | at each use                       |
// | pipeline        | deregistered immediately           | at each use, in pieces of 1 MiB   |
// | pipeline-pinned | stays registered                   | in pieces of 1 MiB                |
// | lru             | stays registered within the budget | at the first use                  |
// | oracle-0, oracle-1ms, oracle-10ms | stays if the next use is that near | at a use        |
// | helper, helper-improved | a helper thread decides    | before the predicted use          |
//
// The oracles know the future and serve the replay of traces only; helper_thread.h describes the
// helper.
// Every policy obeys the budget of the cache. When the budget is full, acquire() fails with
// "leave-pinned"; the other policies end idle registrations, least recently used first.
#ifndef CARIAMA_DTUTILS_REGISTRATION_POLICY_H_
#define CARIAMA_DTUTILS_REGISTRATION_POLICY_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtutils/export.h"
#include "dtutils/registration/helper_board.h"

namespace cariama {

// Names a range that a cache knows, registered or not. A name is never used again for another
// range.
struct RegionName {
  uint64_t value = 0;
  friend bool operator==(RegionName, RegionName) = default;
};

// The return addresses of the calls that led to a use, innermost first; the rest of the array is 0.
// The first one is the call of this library by the program, however program and library were
// compiled. In a program that is compiled with -fno-omit-frame-pointer its callers follow. In other
// programs the caller's frame pointer may contain anything: the array ends after the first address,
// or continues with words of the thread's stack that are addresses of code. On a stack that is not
// the thread's own (fibers, the tasks of the layer `tasks`) the array ends after the first address.
using CallStack = std::array<uintptr_t, 8>;

// Stores the return address of the function whose __builtin_frame_address(0) is `frame`, and those
// of its callers. Requires: that function has not returned. A walk over frame pointers: behind the
// first frame it reads only this thread's stack, and it stops at an address that is not in an
// executable segment of the program or of a library. About 1 ns for each frame. The first time that
// a thread finds an address, the walk takes about a microsecond and a lock of the dynamic linker.
CARIAMA_DTUTILS_EXPORT void capture_call_stack(CallStack& stack, const void* frame);

// One use of a region by a transfer.
struct RegionUse {
  RegionName region;
  uintptr_t address = 0;         // of the first page
  size_t bytes = 0;              // whole pages
  int64_t begin = 0;             // when the memory was acquired, in ns of the cache's clock
  int64_t next_use = INT64_MAX;  // replay of traces only: when the memory will be used next
  // If the policy records_uses(): the calls that led to acquire(); a number of the thread that made
  // them, unique in the process (another thread may end the use); and how many uses that thread had
  // begun before, modulo 2^32.
  CallStack stack{};
  uint32_t thread = 0;
  uint32_t before = 0;
};

// The time in which a policy expects the next use of a region, in ns of the cache's clock.
struct ExpectedUse {
  int64_t earliest = 0;
  int64_t latest = 0;
};

enum class RegisterAheadResult : uint8_t {
  kRegistered,         // by this call
  kAlreadyRegistered,  // by a use that came before, or by the policy
  // The memory was unmapped, the budget is full of memory that is in use or that is expected to be
  // used earlier, the kernel refuses the memory, or another thread registers or deregisters the
  // region now.
  kRefused,
  kUnknown,  // the cache has forgotten the region; the name is not used again
};

enum class DeregisterResult : uint8_t {
  kDeregistered,  // by this call
  kInUse,
  kNotRegistered,  // the budget ended the registration, for example; or a thread registers it now
  kUnknown,        // the cache has forgotten the region; the name is not used again
};

// The interface by which a policy changes the registrations of its cache. Thread-safe.
class CARIAMA_DTUTILS_EXPORT RegionControl {
 public:
  virtual ~RegionControl() = default;
  // Registers a known region that is not registered. Blocks for the system call. Where a budget is
  // full, ends the registration of idle memory that was used least recently, but not one that was
  // made ahead of a use that is expected earlier and can still come.
  [[nodiscard]] virtual RegisterAheadResult register_ahead(RegionName region,
                                                           const ExpectedUse& use) = 0;
  // Deregisters a region that is not in use. Blocks for the system call.
  [[nodiscard]] virtual DeregisterResult deregister_idle(RegionName region) = 0;
  // Return the bytes that are registered now, and the budget in bytes.
  [[nodiscard]] virtual uint64_t registered_bytes() const = 0;
  [[nodiscard]] virtual uint64_t max_bytes() const = 0;
  [[nodiscard]] virtual int64_t now() const = 0;                  // the cache's clock, in ns
  [[nodiscard]] virtual HelperPlace place() const { return {}; }  // RegistrationOptions::place
};

// Decides how long the registrations of one cache stay after their uses. Several threads may call
// the functions of a policy at the same time. No function may throw: the cache calls some of them
// with its lock held, in destructors, or between steps that belong together.
class CARIAMA_DTUTILS_EXPORT RegistrationPolicy {
 public:
  virtual ~RegistrationPolicy() = default;
  [[nodiscard]] virtual std::string_view name() const = 0;

  // Called by RegistrationCache::create(), which returns the error: INVALID_ARGUMENT for options
  // that the policy cannot follow.
  [[nodiscard]] virtual absl::Status validate() const { return absl::OkStatus(); }

  // Called before the first use with the control of the cache, and with nullptr before the cache is
  // destroyed.
  virtual void attach(RegionControl* /*control*/) {}

  // Returns true if the cache is to measure the time and the call stack of each use.
  [[nodiscard]] virtual bool records_uses() const { return false; }

  // Called when a use has ended, in the application's thread. The region is idle then, unless
  // another use is in progress. Returns true if an idle region stays registered. Must not block.
  [[nodiscard]] virtual bool ended(const RegionUse& use) = 0;

  // Called when the cache no longer knows the region: its memory changed or was forgotten, a longer
  // range replaced it, or too many idle ranges were known. The name is not used again. The caller
  // holds a lock of the cache, so the policy must not call RegionControl.
  virtual void forgotten(RegionName /*region*/) {}

  // Returns true if idle registrations are ended when a budget or a limit of the system is met.
  [[nodiscard]] virtual bool evicts() const { return true; }

  // Returns the size in bytes of the pieces in which a message of that size is registered; 0:
  // whole. A message that is not longer than a piece is registered whole.
  [[nodiscard]] virtual size_t piece_bytes(size_t /*message_bytes*/) const { return 0; }

  // Called by the cache. take() reserves the policy for this cache, and returns false if another
  // cache uses it. give_back() ends the reservation.
  [[nodiscard]] bool take() { return !taken_.exchange(true, std::memory_order_acq_rel); }
  void give_back() { taken_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> taken_{false};
};

// Returns a policy by its name in the table above. "helper" has the default HelperOptions (the
// paper's system), "helper-improved" those of HelperOptions::improved(); both have the name()
// "helper". Error: INVALID_ARGUMENT (the text lists the names).
[[nodiscard]] CARIAMA_DTUTILS_EXPORT absl::StatusOr<std::shared_ptr<RegistrationPolicy>>
make_registration_policy(std::string_view name);

}  // namespace cariama

#endif  // CARIAMA_DTUTILS_REGISTRATION_POLICY_H_
