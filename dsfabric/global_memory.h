// Memory of all processes of a job under one kind of pointer: get, put and atomics by handles, many
// in flight.
//
//   auto memory = GlobalMemory::create(fabric);                    // one per thread
//   auto table = (*memory)->allocate<uint64_t>(3, 1000, deadline);  // of process 3, zeros
//   global_ptr<uint64_t> slot = *table + 17;
//   GlobalTransfer put = (*memory)->rput(uint64_t{42}, slot);       // goes on while we do
//   GlobalValue<uint64_t> got = (*memory)->rget(other);             // something else
//   absl::StatusOr<uint64_t> value = got.wait();
//   auto before = (*memory)->fetch_add(slot, 1).wait(deadline);
//
// One-sided: the owner of the memory takes part in nothing but the allocation. Ways, chosen per
// pointer: our own memory is accessed as it is; memory of a process of this host that is mapped
// here (shm), too: no work request, no copy besides; everything else by READ, WRITE and atomics of
// the connection, whose data passes through registered memory that a transfer takes and gives back.
//
// Order. An operation is done when its handle says so; between two under way there is no order,
// also to the same place. What was put is there for everybody once the put is done. Who waits for
// others' puts needs a call, a barrier or an atomic.
//
// Atomics are of aligned 8-byte words, sequentially consistent as far as all of a word's users use
// them. Devices do not promise that their atomics and those of CPUs see each other. So by default
// (AtomicsBy::kAutomatic) jobs whose processes all reach one another in memory use the CPU's, also
// through the connection; jobs with verbs in them have the owner's service thread execute them (a
// call each). kDevice makes them one-sided everywhere: right only for words that no process
// accesses in another way, the owner, and its neighbours over shm, included.
//
// Cost. A GlobalMemory takes 64 bytes of registered memory per small operation in flight (8 KiB to
// begin with), and 256 bytes in each connection that it uses. A get or put of n > 64 bytes that is
// not mapped takes n bytes while it is under way.
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
#include "dsfabric/export.h"
#include "dsfabric/fabric.h"
#include "dsfabric/remote_memory.h"
#include "dtutils/memory.h"
#include "dtutils/wait.h"

namespace cariama {

// A pointer to a T of some process: plain data, 32 bytes, travels in messages. Arithmetic as on
// pointers. It may point anywhere; what it points to has to exist when it is used. (UPC++'s name
// for it.)
template <typename T>
class global_ptr {  // NOLINT(readability-identifier-naming)
 public:
  static_assert(std::is_trivially_copyable_v<T>, "global memory holds plain data");
  using element_type = T;

  global_ptr() = default;
  explicit global_ptr(const GlobalAddress& address) : address_(address) {}
  // To const.
  operator global_ptr<const T>() const {  // NOLINT(google-explicit-constructor)
    return global_ptr<const T>(address_);
  }

  [[nodiscard]] uint32_t rank() const { return address_.rank; }
  [[nodiscard]] const GlobalAddress& address() const { return address_; }
  [[nodiscard]] bool is_null() const { return address_.address == 0; }
  explicit operator bool() const { return !is_null(); }
  // The same place, as another type.
  template <typename Other>
  [[nodiscard]] global_ptr<Other> cast() const {
    return global_ptr<Other>(address_);
  }
  // The plain pointer, in the owner; nullptr in others.
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
  // Of pointers into one array.
  [[nodiscard]] friend ptrdiff_t operator-(const global_ptr& a, const global_ptr& b) {
    return static_cast<ptrdiff_t>(a.address_.address - b.address_.address) /
           static_cast<ptrdiff_t>(sizeof(T));
  }
  [[nodiscard]] friend bool operator==(const global_ptr& a, const global_ptr& b) {
    return a.address_.address == b.address_.address && a.rank() == b.rank();
  }
  // By process, then by address.
  [[nodiscard]] friend std::strong_ordering operator<=>(const global_ptr& a, const global_ptr& b) {
    if (a.rank() != b.rank()) return a.rank() <=> b.rank();
    return a.address_.address <=> b.address_.address;
  }

 private:
  GlobalAddress address_;
};

class GlobalMemory;

// An operation that may be under way. Movable; belongs to the thread of its GlobalMemory, which
// must outlive it. Dropped before its end, the operation goes on, and nobody learns how it ends.
class CARIAMA_DSFABRIC_EXPORT GlobalTransfer {
 public:
  GlobalTransfer() = default;  // done, OK
  ~GlobalTransfer() { drop(); }
  GlobalTransfer(GlobalTransfer&& other) noexcept { swap(other); }
  GlobalTransfer& operator=(GlobalTransfer&& other) noexcept {
    GlobalTransfer(std::move(other)).swap(*this);
    return *this;
  }

  // Looks for its end. Never waits.
  [[nodiscard]] bool done();
  // Waits through the thread's wait hook, and runs no calls (those executed by the owner, as
  // AtomicsBy says, let calls in). Errors: UNAVAILABLE (the owner is dead), INVALID_ARGUMENT (a
  // null pointer, no such process), RESOURCE_EXHAUSTED (no registered memory for it),
  // DEADLINE_EXCEEDED: it goes on, wait again. As on any RDMA device, an access beyond the owner's
  // registered memory breaks the connection: it fails with UNAVAILABLE, and the owner counts as
  // lost.
  [[nodiscard]] absl::Status wait(Deadline deadline = kForever);

 protected:
  friend class GlobalMemory;
  struct Operation;  // one under way, or ended and not waited for
  struct Execution;  // one that the owner executes

  void swap(GlobalTransfer& other) {
    std::swap(memory_, other.memory_);
    std::swap(operation_, other.operation_);
    std::swap(execution_, other.execution_);
    std::swap(status_, other.status_);
  }
  // Waits, and brings `bytes` of what came to `result`, if the value was not there at once.
  [[nodiscard]] absl::Status finish(Deadline deadline, void* result, size_t bytes);
  void drop();

  GlobalMemory* memory_ = nullptr;
  Operation* operation_ = nullptr;
  std::shared_ptr<Execution> execution_;
  absl::Status status_;
};

// One that brings a value.
template <typename T>
class GlobalValue : public GlobalTransfer {
 public:
  GlobalValue() = default;
  // The value, any number of times. Errors as GlobalTransfer::wait().
  [[nodiscard]] absl::StatusOr<T> wait(Deadline deadline = kForever) {
    if (absl::Status ended = finish(deadline, value_, sizeof value_); !ended.ok()) return ended;
    T value;
    std::memcpy(&value, value_, sizeof value);
    return value;
  }

 private:
  friend class GlobalMemory;
  alignas(T) std::byte value_[sizeof(T)] = {};
};

enum class AtomicsBy : uint8_t {
  kAutomatic,  // as the head of this file says
  kDevice,     // CPU instructions where memory is mapped, else the connection's atomics
  kOwner,      // the owner's service thread
};

struct GlobalMemoryOptions {
  AtomicsBy atomics = AtomicsBy::kAutomatic;  // equal in all users of a word
  // get() and put() of more are split into pieces of this, of which a few are under way at a time.
  size_t piece_bytes = size_t{64} << 10;
};

struct GlobalMemoryStatistics {
  uint64_t direct = 0;     // operations on memory of ours, or mapped here
  uint64_t transfers = 0;  // by the connection
  uint64_t executed = 0;   // by the owner
};

// A thread's access to global memory. Thread-compatible. The fabric must outlive it; its
// destruction waits for what is under way. Not inside of calls, unless nothing there waits.
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

  // `count` zeroed objects of process `rank`, to be freed by anybody. Errors as
  // RemoteMemory::allocate.
  template <typename T>
  [[nodiscard]] absl::StatusOr<global_ptr<T>> allocate(uint32_t rank, size_t count,
                                                       Deadline deadline) {
    auto memory = RemoteMemory::allocate(fabric_, rank, count * sizeof(T), deadline);
    if (!memory.ok()) return memory.status();
    return global_ptr<T>(memory->release());
  }
  // Frees what allocate() returned; accesses to it must be over.
  template <typename T>
  void free(global_ptr<T> pointer) {
    RemoteMemory::adopt(fabric_, pointer.address(), sizeof(T)).free();
  }

  // ---- Transfers. They begin at once; an error that shows then comes with wait().

  template <typename T>
  [[nodiscard]] GlobalValue<std::remove_const_t<T>> rget(global_ptr<T> from) {
    GlobalValue<std::remove_const_t<T>> handle;
    start_get(handle, from.address(), sizeof(T), handle.value_, false);
    return handle;
  }
  // `value` may be reused at once.
  template <typename T>
  [[nodiscard]] GlobalTransfer rput(const std::type_identity_t<T>& value, global_ptr<T> to) {
    GlobalTransfer handle;
    start_put(handle, to.address(), sizeof(T), reinterpret_cast<const std::byte*>(&value));
    return handle;
  }
  // into.size() objects, which are there when the handle has been waited for.
  template <typename T>
  [[nodiscard]] GlobalTransfer rget(global_ptr<T> from, std::span<std::remove_const_t<T>> into) {
    GlobalTransfer handle;
    const auto bytes = std::as_writable_bytes(into);
    start_get(handle, from.address(), bytes.size(), bytes.data(), true);
    return handle;
  }
  // `values` may be reused at once.
  template <typename T>
  [[nodiscard]] GlobalTransfer rput(std::span<std::add_const_t<T>> values, global_ptr<T> to) {
    GlobalTransfer handle;
    const auto bytes = std::as_bytes(values);
    start_put(handle, to.address(), bytes.size(), bytes.data());
    return handle;
  }
  // `count` objects to or from registered memory of the caller's (fabric.memory(), a thread's
  // buffers()), `offset` bytes in, which the transfer uses until it is done: no copy.
  template <typename T>
  [[nodiscard]] GlobalTransfer rget(global_ptr<T> from, RDMAMemory& into, uint64_t offset,
                                    size_t count) {
    return start_registered(from.address(), into, offset, count * sizeof(T), false);
  }
  template <typename T>
  [[nodiscard]] GlobalTransfer rput(RDMAMemory& values, uint64_t offset, size_t count,
                                    global_ptr<T> to) {
    return start_registered(to.address(), values, offset, count * sizeof(T), true);
  }

  // Any number of objects, in pieces; blocks until they are there. Errors as
  // GlobalTransfer::wait().
  template <typename T>
  [[nodiscard]] absl::Status get(global_ptr<T> from, std::span<std::remove_const_t<T>> into,
                                 Deadline deadline = kForever) {
    const auto bytes = std::as_writable_bytes(into);
    return in_pieces(from.address(), bytes.size(), bytes.data(), nullptr, deadline);
  }
  template <typename T>
  [[nodiscard]] absl::Status put(std::span<std::add_const_t<T>> values, global_ptr<T> to,
                                 Deadline deadline = kForever) {
    const auto bytes = std::as_bytes(values);
    return in_pieces(to.address(), bytes.size(), nullptr, bytes.data(), deadline);
  }

  // ---- Atomics, of aligned words. Each brings the value from before.

  [[nodiscard]] GlobalValue<uint64_t> fetch_add(global_ptr<uint64_t> word, uint64_t addend) {
    return start_atomic(word.address(), Atomic::kFetchAdd, addend, 0);
  }
  // Sets the word to `desired` if it is `expected`: it was if the value is.
  [[nodiscard]] GlobalValue<uint64_t> compare_exchange(global_ptr<uint64_t> word, uint64_t expected,
                                                       uint64_t desired) {
    return start_atomic(word.address(), Atomic::kCompareExchange, expected, desired);
  }
  [[nodiscard]] GlobalValue<uint64_t> load(global_ptr<uint64_t> word) { return fetch_add(word, 0); }
  // Blocks: connections have no atomic store, so it is tried until nobody came between.
  [[nodiscard]] absl::StatusOr<uint64_t> exchange(global_ptr<uint64_t> word, uint64_t value,
                                                  Deadline deadline = kForever);

 private:
  friend class GlobalTransfer;
  enum class Atomic : uint8_t { kFetchAdd, kCompareExchange };
  struct Lane;
  struct Pool;

  GlobalMemory(Fabric& fabric, const GlobalMemoryOptions& options);

  // With `later`, data that does not come at once is copied to `into` when the handle is waited
  // for; without, it stays with the operation until then.
  void start_get(GlobalTransfer& handle, const GlobalAddress& from, size_t bytes, std::byte* into,
                 bool later);
  void start_put(GlobalTransfer& handle, const GlobalAddress& to, size_t bytes,
                 const std::byte* data);
  [[nodiscard]] GlobalTransfer start_registered(const GlobalAddress& remote, RDMAMemory& local,
                                                uint64_t offset, size_t bytes, bool put);
  [[nodiscard]] GlobalValue<uint64_t> start_atomic(const GlobalAddress& word, Atomic kind,
                                                   uint64_t operand, uint64_t desired);
  [[nodiscard]] absl::Status in_pieces(const GlobalAddress& remote, size_t bytes, std::byte* into,
                                       const std::byte* from, Deadline deadline);
  [[nodiscard]] static uint64_t execute(Atomic kind, uint64_t* word, uint64_t operand,
                                        uint64_t desired);
  void ask_owner(GlobalValue<uint64_t>& handle, const GlobalAddress& word, Atomic kind,
                 uint64_t operand, uint64_t desired);

  // The memory, if it can be accessed as it is; else nullptr.
  [[nodiscard]] absl::StatusOr<std::byte*> mapped(const GlobalAddress& place, size_t bytes);
  [[nodiscard]] absl::StatusOr<Lane*> lane(uint32_t rank);
  [[nodiscard]] absl::StatusOr<GlobalTransfer::Operation*> take_operation(uint32_t rank,
                                                                          size_t bytes);
  void give_back(GlobalTransfer::Operation* operation);

  Fabric& fabric_;
  const GlobalMemoryOptions options_;
  bool by_owner_ = false;
  GlobalMemoryStatistics statistics_;
  std::unique_ptr<Pool> pool_;
};

}  // namespace cariama

#endif  // CARIAMA_DSFABRIC_GLOBAL_MEMORY_H_
