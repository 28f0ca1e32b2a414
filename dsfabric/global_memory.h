// Memory of all processes of a job under one pointer type. get, put and atomics return handles, and
// many may be in flight.
//
//   auto memory = GlobalMemory::create(fabric);                    // one per thread
//   auto table = (*memory)->allocate<uint64_t>(3, 1000, deadline);  // in process 3, zeroed
//   global_ptr<uint64_t> slot = *table + 17;
//   GlobalTransfer put = (*memory)->rput(uint64_t{42}, slot);       // proceeds in the background
//   GlobalValue<uint64_t> got = (*memory)->rget(other);             // at the same time
//   absl::StatusOr<uint64_t> value = got.wait(deadline);
//   auto before = (*memory)->fetch_add(slot, 1).wait(deadline);
//
// get and put are one-sided: no thread of the owner takes part. The owner's service thread may
// execute atomics (below). Each pointer determines the path. Memory of this process, and memory of
// a process of this host that is mapped here (shm), are accessed by loads and stores: no work
// request, no additional copy. All other memory is accessed by READ, WRITE and atomics of the
// connection; their data passes through registered memory that the transfer allocates and frees.
//
// Order. An operation is complete when done() of its handle returns true, or wait() returns OK.
// done() does not fill the span of an rget(); wait() does. The span is written inside of rget() and
// wait(), or before the event of notify().
// Two operations in flight are unordered, even on the same memory. A put is visible to all
// processes once it is complete. To wait for the puts of another process, use a call, a barrier or
// an atomic.
//
// Atomics operate on aligned 8-byte words. They are sequentially consistent if all users of a word
// use atomics. Devices do not guarantee that their atomics are atomic with respect to those of
// CPUs. So by default (AtomicsBy::kAutomatic) the CPU executes all atomics of a word: if all
// processes of the job reach one another through shared memory, the initiator's CPU, also for
// operations through the connection; if any pair uses verbs, the owner's service thread (one call
// per atomic). kDevice makes atomics one-sided everywhere. It is correct only for words that no
// process, including the owner and its shm neighbours, accesses in another way.
//
// Cost. A GlobalMemory takes 64 bytes of registered memory per small operation in flight, in blocks
// of 8 KiB (the first one at the first operation), and 768 bytes in each connection that it uses (a
// lane and its first block of records). A get or put of n > 64 bytes on memory that is not mapped
// takes n bytes while it is in flight.
#ifndef CARIAMA_DSFABRIC_GLOBAL_MEMORY_H_
#define CARIAMA_DSFABRIC_GLOBAL_MEMORY_H_

#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dsfabric/call_options.h"
#include "dsfabric/call_result.h"
#include "dsfabric/completions.h"
#include "dsfabric/export.h"
#include "dsfabric/fabric.h"
#include "dsfabric/future.h"
#include "dsfabric/remote_memory.h"
#include "dsfabric/transfer_completion.h"
#include "dtutils/memory.h"
#include "dtutils/synchronizer.h"
#include "dtutils/wait.h"

namespace cariama {

namespace internal {

// Returns the size in bytes of `count` objects, or the largest number if the size exceeds it. No
// memory has that size, so the functions that get it refuse it.
template <typename T>
[[nodiscard]] constexpr size_t bytes_of(size_t count) {
  return count > SIZE_MAX / sizeof(T) ? SIZE_MAX : count * sizeof(T);
}

}  // namespace internal

// A pointer to a T of some process: trivially copyable, 32 bytes, may be sent in messages.
// Arithmetic as for pointers. It may hold any address; the memory must exist when it is accessed.
// (The name is UPC++'s.)
template <typename T>
class global_ptr {  // NOLINT(readability-identifier-naming)
 public:
  static_assert(std::is_trivially_copyable_v<T>,
                "cariama: global memory holds trivially copyable values");
  using element_type = T;

  global_ptr() = default;
  explicit global_ptr(const GlobalAddress& address) : address_(address) {}
  // Conversion to a pointer to const.
  operator global_ptr<const T>() const {  // NOLINT(google-explicit-constructor)
    return global_ptr<const T>(address_);
  }

  [[nodiscard]] Rank rank() const { return address_.rank; }
  [[nodiscard]] const GlobalAddress& address() const { return address_; }
  [[nodiscard]] bool is_null() const { return address_.address == 0; }
  explicit operator bool() const { return !is_null(); }
  // Returns a pointer to the same address with another element type.
  template <typename Other>
  [[nodiscard]] global_ptr<Other> cast() const {
    return global_ptr<Other>(address_);
  }
  // Returns the plain pointer if this process is the owner, else nullptr.
  [[nodiscard]] T* local(const Fabric& fabric) const {
    return rank() == fabric.rank() ? reinterpret_cast<T*>(address_.address) : nullptr;
  }

  global_ptr& operator+=(ptrdiff_t count) {
    address_.address += static_cast<uint64_t>(count) * sizeof(T);
    return *this;
  }
  global_ptr& operator-=(ptrdiff_t count) { return *this += -count; }
  global_ptr& operator++() { return *this += 1; }
  global_ptr& operator--() { return *this -= 1; }
  [[nodiscard]] friend global_ptr operator+(global_ptr pointer, ptrdiff_t count) {
    return pointer += count;
  }
  [[nodiscard]] friend global_ptr operator-(global_ptr pointer, ptrdiff_t count) {
    return pointer -= count;
  }
  // Requires: both point into one array.
  [[nodiscard]] friend ptrdiff_t operator-(const global_ptr& a, const global_ptr& b) {
    return static_cast<ptrdiff_t>(a.address_.address - b.address_.address) /
           static_cast<ptrdiff_t>(sizeof(T));
  }
  [[nodiscard]] friend bool operator==(const global_ptr& a, const global_ptr& b) {
    return a.address_.address == b.address_.address && a.rank() == b.rank();
  }
  // Orders by process, then by address.
  [[nodiscard]] friend std::strong_ordering operator<=>(const global_ptr& a, const global_ptr& b) {
    if (a.rank() != b.rank()) return a.rank() <=> b.rank();
    return a.address_.address <=> b.address_.address;
  }

 private:
  GlobalAddress address_;
};

class GlobalMemory;

// A handle to an operation that may be in flight. Movable. Belongs to the thread of its
// GlobalMemory, which must outlive it. If the handle is destroyed before the operation has ended,
// the operation continues, and its status is lost.
class CARIAMA_DSFABRIC_EXPORT GlobalTransfer {
 public:
  GlobalTransfer() = default;  // complete, with OK
  ~GlobalTransfer() { drop(); }
  GlobalTransfer(GlobalTransfer&& other) noexcept { swap(other); }
  GlobalTransfer& operator=(GlobalTransfer&& other) noexcept {
    GlobalTransfer(std::move(other)).swap(*this);
    return *this;
  }

  // Returns the error because of which the operation did not start, else OK. Call it before wait().
  // Never blocks.
  [[nodiscard]] const absl::Status& start_status() const { return status_; }
  // Polls the connection once, and returns true if the operation has ended. Never blocks. Does not
  // poll for the answer of an atomic that the owner executes: without service threads, use wait().
  [[nodiscard]] bool done();
  // Blocks until the operation has ended; meanwhile the thread runs its calls, as in
  // Fabric::wait(). Runs no calls if done() has returned true. Errors: UNAVAILABLE (the owner is
  // dead), INVALID_ARGUMENT (a null pointer, no such process), RESOURCE_EXHAUSTED (no registered
  // memory for the operation), DEADLINE_EXCEEDED (the operation continues; wait again). As on any
  // RDMA device, an access outside of the owner's registered memory breaks the connection: the
  // operation fails with UNAVAILABLE, and the owner is considered failed.
  [[nodiscard]] absl::Status wait(Deadline deadline);
  // Returns the counter of an atomic that the owner executes (AtomicsBy): it is done() when the
  // owner has answered, or has failed. Any thread may read it, also after the GlobalMemory has been
  // destroyed. Returns nullptr for every other operation, and after wait() has returned a value.
  [[nodiscard]] std::shared_ptr<const Synchronizer> execution() const;
  // Notifies `object` of the operation's end, once, so that no thread has to wait for it. `object`:
  // a Synchronizer& or a Future<void>&, or a callback of type void(const absl::Status&), as in
  // completions.h. A put is complete at its target then; the span of an rget() is filled, and must
  // live until then, not in the frame of a task, which may move. Does not wait; may be used inside
  // of a call. Afterwards wait() of this handle returns FAILED_PRECONDITION.
  //
  // Where memory is mapped, a callback runs inside of notify(). Otherwise it runs like a call to
  // the calling worker, or, in a thread without context, in the thread that polls
  // (transfer_completion.h), where it must not wait. It must not destroy the GlobalMemory.
  //
  // Errors: that of start_status(), that of an earlier wait() except DEADLINE_EXCEEDED, UNAVAILABLE
  // (the fabric has ended), RESOURCE_EXHAUSTED (no thread), FAILED_PRECONDITION (the handle belongs
  // to no operation; a Future then belongs to no call). After these errors a Synchronizer or a
  // callback gets no event, and a Future is ready with the error. The event has the operation's own
  // error, or UNAVAILABLE if the fabric ends first.
  template <typename Object>
  CallResult notify(Object&& object) {
    return notify_of({}, std::forward<Object>(object));
  }

 protected:
  friend class GlobalMemory;
  struct Operation;  // in flight, or ended and not waited for
  struct Execution;  // an atomic that the owner executes
  class Ending;      // an operation in flight that was handed over to the fabric
  class Executing;   // an Execution that was handed over

  void swap(GlobalTransfer& other) {
    std::swap(memory_, other.memory_);
    std::swap(operation_, other.operation_);
    std::swap(execution_, other.execution_);
    std::swap(status_, other.status_);
  }
  // Blocks until the operation has ended. Copies `bytes` of the received data to `result`, unless
  // the data was stored there at the start.
  [[nodiscard]] absl::Status finish(Deadline deadline, void* result, size_t bytes);
  // notify() for an operation whose value is copied to `result`. `ready`: the value, if it was
  // stored at the start.
  template <typename Object>
  [[nodiscard]] CallResult notify_of(std::span<std::byte> result, Object&& object,
                                     std::span<const std::byte> ready = {}) {
    if constexpr (internal::require_transfer_completion<Object>()) {
      if (memory_ == nullptr) return nothing_to_notify();
      return internal::start_completing(
          memory_fabric(), std::forward<Object>(object),
          [&](const internal::EventReceiver& event) { return hand_over(event, result, ready); });
    } else {
      return {};
    }
  }
  // Hands the operation over to the fabric, which copies its value to `result` and completes
  // `event`. `ready`: as in notify_of().
  [[nodiscard]] absl::Status hand_over(internal::EventReceiver event, std::span<std::byte> result,
                                       std::span<const std::byte> ready);
  [[nodiscard]] static absl::Status nothing_to_notify();
  [[nodiscard]] Fabric& memory_fabric() const;
  void drop();

  GlobalMemory* memory_ = nullptr;
  Operation* operation_ = nullptr;
  std::shared_ptr<Execution> execution_;
  absl::Status status_;
};

// A handle to an operation that yields a value.
template <typename T>
class GlobalValue : public GlobalTransfer {
 public:
  GlobalValue() = default;
  // As GlobalTransfer::wait(), and returns the value. May be called any number of times.
  [[nodiscard]] absl::StatusOr<T> wait(Deadline deadline) {
    if (absl::Status ended = finish(deadline, value_, sizeof value_); !ended.ok()) return ended;
    T value;
    std::memcpy(&value, value_, sizeof value);
    return value;
  }
  // As GlobalTransfer::notify(object), which drops the value. `result` gets the value before the
  // event, and must live until then.
  using GlobalTransfer::notify;
  template <typename Object>
  CallResult notify(T& result, Object&& object) {
    return notify_of(std::as_writable_bytes(std::span(&result, 1)), std::forward<Object>(object),
                     value_);
  }
  // Returns a Future of the value, for co_await or for another thread. Afterwards wait() of this
  // handle returns FAILED_PRECONDITION. A coroutine resumes where calls to its worker run, which
  // may be another thread (CallConsumer); only with kThread may it use this GlobalMemory then.
  [[nodiscard]] Future<T> future() {
    if (memory_ == nullptr) return {};
    auto state = std::make_shared<internal::FutureValue<T>>(memory_fabric());
    absl::Status accepted = hand_over(internal::EventReceiver(state), {}, value_);
    if (!accepted.ok()) state->finish(std::move(accepted), {});
    return internal::FutureAccess::of(std::move(state));
  }

 private:
  friend class GlobalMemory;
  alignas(T) std::byte value_[sizeof(T)] = {};
};

enum class AtomicsBy : uint8_t {
  kAutomatic,  // as the head of this file describes
  kDevice,     // CPU instructions where memory is mapped, else the connection's atomics
  kOwner,      // the owner's service thread
};

struct GlobalMemoryOptions {
  AtomicsBy atomics = AtomicsBy::kAutomatic;  // must be equal in all users of a word
  // get() and put() split longer transfers into pieces of this size; a few pieces are in flight at
  // a time.
  size_t piece_bytes = size_t{64} << 10;
};

struct GlobalMemoryStatistics {
  uint64_t direct = 0;     // operations on memory of this process, or mapped here
  uint64_t transfers = 0;  // operations through a connection
  uint64_t executed = 0;   // atomics executed by the owner
};

// A thread's access to global memory. Thread-compatible. The fabric must outlive it. The destructor
// blocks until the operations in flight have ended, except atomics that owners execute. Inside of a
// call it may be used only for operations that do not wait.
class CARIAMA_DSFABRIC_EXPORT GlobalMemory {
 public:
  // Error: INVALID_ARGUMENT (piece_bytes is 0).
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<GlobalMemory>> create(
      Fabric& fabric, const GlobalMemoryOptions& options = {});
  ~GlobalMemory();
  GlobalMemory(const GlobalMemory&) = delete;
  GlobalMemory& operator=(const GlobalMemory&) = delete;

  [[nodiscard]] Fabric& fabric() const { return fabric_; }
  [[nodiscard]] const GlobalMemoryStatistics& statistics() const { return statistics_; }
  // Returns true if the service threads of the owners execute the atomics (AtomicsBy).
  [[nodiscard]] bool owners_execute_atomics() const { return by_owner_; }

  // Allocates `count` zeroed objects in process `rank`. Any process may free them. Errors as
  // RemoteMemory::allocate.
  template <typename T>
  [[nodiscard]] absl::StatusOr<global_ptr<T>> allocate(Rank rank, size_t count, Deadline deadline) {
    auto memory = RemoteMemory::allocate(fabric_, rank, internal::bytes_of<T>(count), deadline);
    if (!memory.ok()) return memory.status();
    return global_ptr<T>(memory->release());
  }
  // Frees memory that allocate() returned. Requires: all accesses to it have ended.
  template <typename T>
  void free(global_ptr<T> pointer) {
    RemoteMemory::adopt(fabric_, pointer.address(), sizeof(T)).free();
  }

  // ---- Transfers. They start immediately. If the start fails, wait() returns the error.

  template <typename T>
  [[nodiscard]] GlobalValue<std::remove_const_t<T>> rget(global_ptr<T> from) {
    GlobalValue<std::remove_const_t<T>> handle;
    start_get(handle, from.address(), sizeof(T), handle.value_, false);
    return handle;
  }
  // The argument `value` may be reused immediately.
  template <typename T>
  [[nodiscard]] GlobalTransfer rput(const std::type_identity_t<T>& value, global_ptr<T> to) {
    GlobalTransfer handle;
    start_put(handle, to.address(), sizeof(T), reinterpret_cast<const std::byte*>(&value));
    return handle;
  }
  // Reads into.size() objects. `into` holds them after the handle's wait() has returned OK.
  template <typename T>
  [[nodiscard]] GlobalTransfer rget(global_ptr<T> from, std::span<std::remove_const_t<T>> into) {
    GlobalTransfer handle;
    const auto bytes = std::as_writable_bytes(into);
    start_get(handle, from.address(), bytes.size(), bytes.data(), true);
    return handle;
  }
  // The array `values` may be reused immediately.
  template <typename T>
  [[nodiscard]] GlobalTransfer rput(std::span<std::add_const_t<T>> values, global_ptr<T> to) {
    GlobalTransfer handle;
    const auto bytes = std::as_bytes(values);
    start_put(handle, to.address(), bytes.size(), bytes.data());
    return handle;
  }
  // Transfers `count` objects to or from registered memory of the caller's (fabric.memory(), a
  // thread's buffers()), starting at `offset` bytes. The device accesses that memory directly,
  // without a copy, until the transfer has ended.
  template <typename T>
  [[nodiscard]] GlobalTransfer rget(global_ptr<T> from, RDMAMemory& into, uint64_t offset,
                                    size_t count) {
    return start_registered(from.address(), into, offset, internal::bytes_of<T>(count), false);
  }
  template <typename T>
  [[nodiscard]] GlobalTransfer rput(RDMAMemory& values, uint64_t offset, size_t count,
                                    global_ptr<T> to) {
    return start_registered(to.address(), values, offset, internal::bytes_of<T>(count), true);
  }

  // Transfers any number of objects, in pieces. Blocks until the transfer has ended, runs calls,
  // and returns errors as GlobalTransfer::wait(). After an error, pieces may still be in flight: a
  // put may still change the target. After DEADLINE_EXCEEDED the transfer cannot be waited for
  // again.
  template <typename T>
  [[nodiscard]] absl::Status get(global_ptr<T> from, std::span<std::remove_const_t<T>> into,
                                 Deadline deadline) {
    const auto bytes = std::as_writable_bytes(into);
    return in_pieces(from.address(), bytes.size(), bytes.data(), nullptr, deadline);
  }
  template <typename T>
  [[nodiscard]] absl::Status put(std::span<std::add_const_t<T>> values, global_ptr<T> to,
                                 Deadline deadline) {
    const auto bytes = std::as_bytes(values);
    return in_pieces(to.address(), bytes.size(), nullptr, bytes.data(), deadline);
  }

  // ---- Atomics on aligned words. Each yields the word's value before the operation.

  [[nodiscard]] GlobalValue<uint64_t> fetch_add(global_ptr<uint64_t> word, uint64_t addend) {
    return start_atomic(word.address(), Atomic::kFetchAdd, addend, 0, WhenFull::kRetry);
  }
  // Sets the word to `desired` if it equals `expected`. Yields the value before: the word was set
  // if that value equals `expected`.
  [[nodiscard]] GlobalValue<uint64_t> compare_exchange(global_ptr<uint64_t> word, uint64_t expected,
                                                       uint64_t desired) {
    return start_atomic(word.address(), Atomic::kCompareExchange, expected, desired,
                        WhenFull::kRetry);
  }
  // As compare_exchange(), but does not wait for room: if the owner executes the operation, and has
  // no receive posted for it now, the handle has ended with RESOURCE_EXHAUSTED, and the word was
  // not changed. Call it again later.
  [[nodiscard]] GlobalValue<uint64_t> try_compare_exchange(global_ptr<uint64_t> word,
                                                           uint64_t expected, uint64_t desired) {
    return start_atomic(word.address(), Atomic::kCompareExchange, expected, desired,
                        WhenFull::kFail);
  }
  [[nodiscard]] GlobalValue<uint64_t> load(global_ptr<uint64_t> word) { return fetch_add(word, 0); }
  // Sets the word to `value`, and returns the value before. Blocks: connections have no atomic
  // exchange, so the function repeats compare_exchange() until no other access has changed the word
  // in between.
  [[nodiscard]] absl::StatusOr<uint64_t> exchange(global_ptr<uint64_t> word, uint64_t value,
                                                  Deadline deadline);

 private:
  friend class GlobalTransfer;
  enum class Atomic : uint8_t { kFetchAdd, kCompareExchange };
  struct Lane;
  struct Pool;

  GlobalMemory(Fabric& fabric, const GlobalMemoryOptions& options);

  // If the data does not arrive immediately, the operation stores it until the handle is waited
  // for. With `later`, the wait then copies the data to `into`.
  void start_get(GlobalTransfer& handle, const GlobalAddress& from, size_t bytes, std::byte* into,
                 bool later);
  void start_put(GlobalTransfer& handle, const GlobalAddress& to, size_t bytes,
                 const std::byte* data);
  [[nodiscard]] GlobalTransfer start_registered(const GlobalAddress& remote, RDMAMemory& local,
                                                uint64_t offset, size_t bytes, bool put);
  [[nodiscard]] GlobalValue<uint64_t> start_atomic(const GlobalAddress& word, Atomic kind,
                                                   uint64_t operand, uint64_t desired,
                                                   WhenFull when_full);
  [[nodiscard]] absl::Status in_pieces(const GlobalAddress& remote, size_t bytes, std::byte* into,
                                       const std::byte* from, Deadline deadline);
  [[nodiscard]] static uint64_t execute(Atomic kind, uint64_t* word, uint64_t operand,
                                        uint64_t desired);
  void ask_owner(GlobalValue<uint64_t>& handle, const GlobalAddress& word, Atomic kind,
                 uint64_t operand, uint64_t desired, WhenFull when_full);

  // Returns the local address of the memory if it can be accessed by loads and stores, else
  // nullptr.
  [[nodiscard]] absl::StatusOr<std::byte*> mapped(const GlobalAddress& place, size_t bytes);
  [[nodiscard]] absl::StatusOr<Lane*> lane(Rank rank);
  [[nodiscard]] absl::StatusOr<GlobalTransfer::Operation*> take_operation(Rank rank, size_t bytes);
  void give_back(GlobalTransfer::Operation* operation);

  Fabric& fabric_;
  const internal::FabricUse use_{fabric_, "a GlobalMemory"};
  const GlobalMemoryOptions options_;
  bool by_owner_ = false;
  GlobalMemoryStatistics statistics_;
  std::unique_ptr<Pool> pool_;
};

}  // namespace cariama

#endif  // CARIAMA_DSFABRIC_GLOBAL_MEMORY_H_
