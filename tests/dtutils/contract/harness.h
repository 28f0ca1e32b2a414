// Fixtures of the contract suite: two connected endpoints in one process, over any transport.
//
//   class TransferContract : public ContractTest {};
//   TEST_P(TransferContract, WriteArrives) {
//     Link link = make_link();
//     Buffer from(*near_domain_, 64), to(*far_domain_, 64);
//     from.fill(1);
//     const Segments segments = {from.segment()};
//     post(link.near, to_remote(Opcode::kWrite, 7, segments, to.locator()));
//     EXPECT_TRUE(succeeded(take_one(*link.near.sends), 7, CompletionKind::kWrite));
//     EXPECT_TRUE(holds(to, 0, pattern(1, 64)));
//   }
//   INSTANTIATE_TEST_SUITE_P(On, TransferContract, ::testing::ValuesIn(every_transport()),
//                            transport_of);
//
// Every suite is instantiated with every transport, so that each transport runs the same number of
// tests. If the machine has no RDMA device, the verbs instances are skipped with this reason.
#ifndef CARIAMA_TESTS_DTUTILS_CONTRACT_HARNESS_H_
#define CARIAMA_TESTS_DTUTILS_CONTRACT_HARNESS_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "dtutils/device.h"
#include "gtest/gtest.h"

namespace cariama {

class FaultControl;
class SimFabric;

namespace testing {

struct TransportCase {
  std::string name;  // "shm", "fault_verbs", ...
  Transport base = Transport::kShm;
  bool fault = false;  // wraps the device in the fault decorator, with benign faults
};
void PrintTo(const TransportCase& transport, std::ostream* out);

// Returns all transports.
[[nodiscard]] std::vector<TransportCase> every_transport();
// Returns the transports that can connect processes.
[[nodiscard]] std::vector<TransportCase> every_process_transport();
[[nodiscard]] std::string transport_of(const ::testing::TestParamInfo<TransportCase>& info);

// Returns the reason why `transport` cannot run on this machine, or "". Creates no device, so that
// the process may still fork.
[[nodiscard]] std::string reason_to_skip(const TransportCase& transport);

// Opens a device of this transport, with its faults. Not for sim, whose devices must be created by
// one fabric. Devices with different `stream`s have different fault sequences.
[[nodiscard]] absl::StatusOr<std::shared_ptr<Device>> open_case(const TransportCase& transport,
                                                                uint64_t stream);

// Returns the value. If it is an error, throws an exception with its text.
template <typename T>
[[nodiscard]] T must(absl::StatusOr<T> value) {
  if (!value.ok()) throw std::runtime_error(value.status().ToString());
  return *std::move(value);
}
inline void must(const absl::Status& status) {
  if (!status.ok()) throw std::runtime_error(status.ToString());
}

using Bytes = std::vector<std::byte>;
using Segments = std::vector<Segment>;

// Returns bytes that differ between seeds and between positions. A shorter pattern is a prefix of a
// longer one with the same seed.
[[nodiscard]] Bytes pattern(uint64_t seed, size_t bytes);

// Registered memory. It is filled with kUntouched at first.
class Buffer {
 public:
  enum class Backing {
    kShared,  // a sealed memfd, which shm peers can map
    kUser,    // plain malloc'ed memory, which peers cannot map
  };
  static constexpr std::byte kUntouched{0xa5};

  Buffer(ProtectionDomain& domain, size_t bytes, Access access = Access::kAll,
         Backing backing = Backing::kShared);
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] size_t size() const { return bytes_; }
  [[nodiscard]] const MemoryRegion& region() const { return *region_; }
  [[nodiscard]] Segment segment() const { return segment(0, bytes_); }
  [[nodiscard]] Segment segment(size_t offset, size_t bytes) const;
  [[nodiscard]] RemoteMemoryLocator locator() const { return region_->locator(); }
  [[nodiscard]] RemoteMemoryLocator locator(size_t offset, size_t bytes) const {
    return region_->locator(offset, bytes);
  }
  void fill(uint64_t seed);  // fills it with pattern(seed, size())
  void clear();              // fills it with kUntouched
  // The 8-byte word at `offset`.
  [[nodiscard]] uint64_t word(size_t offset) const;
  void set_word(size_t offset, uint64_t value);
  // Ends the registration. The memory remains allocated.
  void deregister() { region_.reset(); }
  // Ends the registration and registers the memory again.
  void register_again(ProtectionDomain& domain, Access access);

 private:
  size_t bytes_;
  std::byte* data_ = nullptr;
  size_t mapped_ = 0;  // 0 for malloc'ed memory
  int descriptor_ = -1;
  std::shared_ptr<MemoryRegion> region_;
};

[[nodiscard]] ::testing::AssertionResult holds(const Buffer& buffer, size_t offset,
                                               std::span<const std::byte> expected);
[[nodiscard]] ::testing::AssertionResult untouched(const Buffer& buffer, size_t offset,
                                                   size_t bytes);

// Create work requests. `segments` must exist until the request is posted.
[[nodiscard]] WorkRequest to_peer(Opcode opcode, uint64_t id, const Segments& segments,
                                  uint8_t flags = kSignaled, uint32_t immediate = 0);
[[nodiscard]] WorkRequest to_remote(Opcode opcode, uint64_t id, const Segments& segments,
                                    const RemoteMemoryLocator& remote, uint8_t flags = kSignaled);
[[nodiscard]] WorkRequest fetch_add(uint64_t id, const Segments& result,
                                    const RemoteMemoryLocator& remote, uint64_t addend,
                                    uint8_t flags = kSignaled);
[[nodiscard]] WorkRequest compare_swap(uint64_t id, const Segments& result,
                                       const RemoteMemoryLocator& remote, uint64_t expected,
                                       uint64_t desired, uint8_t flags = kSignaled);

// One end of a connection with its completion queues.
struct End {
  std::shared_ptr<CompletionQueue> sends;
  std::shared_ptr<CompletionQueue> receives;
  std::unique_ptr<QueuePair> pair;

  QueuePair* operator->() const { return pair.get(); }
};
struct Link {
  End near;
  End far;
};

// Posts a request and checks that it is accepted.
void post(const End& end, const WorkRequest& request);
void post_receive(const End& end, uint64_t id, const Segments& segments = {});

// Takes `count` completions, waiting for them, and no more than these. If they do not arrive in
// time, the test fails, and the missing ones have the status kUnknown.
[[nodiscard]] std::vector<Completion> take(CompletionQueue& queue, size_t count);
[[nodiscard]] Completion take_one(CompletionQueue& queue);
// Takes the completions in the queue, and those that arrive within a short time.
[[nodiscard]] std::vector<Completion> drain(CompletionQueue& queue);
// Checks that the queue is empty, and that nothing arrives within a short time.
[[nodiscard]] ::testing::AssertionResult quiet(CompletionQueue& queue);

// Waits until `condition` holds, without polling a queue. If it does not hold in time, fails the
// test and returns false.
bool eventually(const std::function<bool()>& condition);

[[nodiscard]] ::testing::AssertionResult succeeded(const Completion& completion, uint64_t id,
                                                   CompletionKind kind);
// The statuses with which a failure may be reported. It is one, except where RDMA devices differ:
// see ContractTest::local_protection() and the two functions after it.
using Statuses = std::vector<CompletionStatus>;

// Checks that the completion has one of these statuses, and that its Status names the operation,
// the peer of `end`, and a remedy.
[[nodiscard]] ::testing::AssertionResult failed(const Completion& completion, uint64_t id,
                                                const Statuses& statuses, const End& end);
[[nodiscard]] inline ::testing::AssertionResult failed(const Completion& completion, uint64_t id,
                                                       CompletionStatus status, const End& end) {
  return failed(completion, id, Statuses{status}, end);
}

struct LinkOptions {
  // Completion queues that are not given are created.
  QueuePairOptions near{.send_depth = 64, .receive_depth = 64};
  QueuePairOptions far{.send_depth = 64, .receive_depth = 64};
  ConnectOptions connect{};
  bool connected = true;
};

// Deadline of waits that should succeed. It lets a defect fail the test instead of hanging it.
#if defined(__SANITIZE_THREAD__)
inline constexpr std::chrono::seconds kPatience{60};  // everything takes 20 times longer
#else
inline constexpr std::chrono::seconds kPatience{20};
#endif

// Devices, domains and connections of two endpoints of the transport that the parameter names.
class ContractTest : public ::testing::TestWithParam<TransportCase> {
 protected:
  static constexpr const char* kNearLabel = "the near end";
  static constexpr const char* kFarLabel = "the far end";

  void SetUp() override;

  // The statuses of a wrong local key, and of a message longer than its receive, at the sender and
  // at the receiver. The verbs specification has one status for each, but soft-RoCE reports only
  // the general error.
  [[nodiscard]] static Statuses local_protection() {
    return with_general(CompletionStatus::kLocalProtection, CompletionStatus::kLocalOperation);
  }
  [[nodiscard]] static Statuses sent_too_much() {
    return with_general(CompletionStatus::kRemoteInvalid, CompletionStatus::kRemoteOperation);
  }
  [[nodiscard]] static Statuses received_too_much() {
    return with_general(CompletionStatus::kLocalLength, CompletionStatus::kLocalOperation);
  }

  // Creates another device of the transport. The other devices of the test can reach it.
  [[nodiscard]] std::shared_ptr<Device> make_device();
  [[nodiscard]] Link make_link(LinkOptions options = {});
  void connect(Link& link, const ConnectOptions& options = {});
  // Calls repair() on both ends, and drops all completions in their queues.
  void repair(Link& link);
  // Checks that traffic flows in both directions, by every kind of operation, and compares all
  // bytes. Requires: nothing is posted, and the queues are empty. Not for links with shared receive
  // queues.
  void expect_flow(Link& link);

  [[nodiscard]] static Statuses with_general(CompletionStatus exact, CompletionStatus general) {
    return GetParam().base == Transport::kVerbs ? Statuses{exact, general} : Statuses{exact};
  }

  std::shared_ptr<SimFabric> fabric_;      // null except for sim
  std::shared_ptr<FaultControl> control_;  // null except for faults above sim
  uint64_t devices_ = 0;
  std::shared_ptr<Device> near_device_;
  std::shared_ptr<Device> far_device_;
  std::shared_ptr<ProtectionDomain> near_domain_;
  std::shared_ptr<ProtectionDomain> far_domain_;
};

}  // namespace testing
}  // namespace cariama

#endif  // CARIAMA_TESTS_DTUTILS_CONTRACT_HARNESS_H_
