#include "tests/dtutils/contract/harness.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ostream>
#include <system_error>
#include <thread>
#include <utility>

#include "dtutils/fault/fault_device.h"
#include "dtutils/sim/sim_fabric.h"

namespace cariama::testing {
namespace {

using Clock = std::chrono::steady_clock;

// A queue is quiet if no completion arrives for this time, and during at least this many polls. The
// number of polls matters because polling advances virtual time and the delays of the fault
// decorator.
constexpr std::chrono::milliseconds kQuietTime{3};
constexpr int kQuietPolls = 64;

// The environment variable CARIAMA_TEST_SEED selects another run of the seeded transports.
uint64_t seed() {
  const char* text = std::getenv("CARIAMA_TEST_SEED");
  return text == nullptr ? 1 : std::strtoull(text, nullptr, 10);
}

std::runtime_error system_failure(const char* call) {
  return std::runtime_error(std::string(call) + ": " + std::generic_category().message(errno));
}

std::shared_ptr<Device> with_faults(std::shared_ptr<Device> device, uint64_t stream,
                                    std::shared_ptr<FaultControl> control = nullptr) {
  return make_fault_device(std::move(device), FaultOptions::benign(2 * seed() + stream),
                           std::move(control));
}

}  // namespace

void PrintTo(const TransportCase& transport, std::ostream* out) { *out << transport.name; }

std::vector<TransportCase> every_transport() {
  return {{"shm", Transport::kShm},
          {"verbs", Transport::kVerbs},
          {"sim", Transport::kSim},
          {"fault_shm", Transport::kShm, true},
          {"fault_verbs", Transport::kVerbs, true},
          {"fault_sim", Transport::kSim, true}};
}

std::vector<TransportCase> every_process_transport() {
  std::vector<TransportCase> transports = every_transport();
  std::erase_if(transports, [](const TransportCase& transport) {
    // All endpoints of a simulated fabric are in one process.
    return transport.base == Transport::kSim;
  });
  return transports;
}

std::string transport_of(const ::testing::TestParamInfo<TransportCase>& info) {
  return info.param.name;
}

std::string reason_to_skip(const TransportCase& transport) {
  if (transport.base != Transport::kVerbs) return "";
  constexpr const char* kDevices = "/sys/class/infiniband";
  bool any = false;
  if (DIR* directory = opendir(kDevices)) {
    while (const dirent* entry = readdir(directory)) any = any || entry->d_name[0] != '.';
    closedir(directory);
  }
  return any ? "" : std::string("no RDMA device in ") + kDevices + ": run it in tests/rdma_vm";
}

absl::StatusOr<std::shared_ptr<Device>> open_case(const TransportCase& transport, uint64_t stream) {
  absl::StatusOr<std::shared_ptr<Device>> device = open_device({.transport = transport.base});
  if (device.ok() && transport.fault) return with_faults(*std::move(device), stream);
  return device;
}

Bytes pattern(uint64_t seed, size_t bytes) {
  Bytes data(bytes);
  uint64_t state = seed * 0x9e3779b97f4a7c15 + 0x1234567;
  for (std::byte& byte : data) {
    state = state * 6364136223846793005 + 1442695040888963407;
    byte = static_cast<std::byte>(state >> 56);
  }
  return data;
}

Buffer::Buffer(ProtectionDomain& domain, size_t bytes, Access access, Backing backing)
    : bytes_(bytes) {
  const size_t size = std::max<size_t>(bytes, 1);
  if (backing == Backing::kUser) {
    data_ = static_cast<std::byte*>(std::malloc(size));
  } else {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    mapped_ = (size + page - 1) / page * page;
    descriptor_ = memfd_create("contract buffer", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (descriptor_ < 0) throw system_failure("memfd_create");
    if (ftruncate(descriptor_, static_cast<off_t>(mapped_)) != 0) throw system_failure("ftruncate");
    if (fcntl(descriptor_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
      throw system_failure("F_ADD_SEALS");
    }
    void* address = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
    if (address == MAP_FAILED) throw system_failure("mmap");
    data_ = static_cast<std::byte*>(address);
  }
  clear();
  region_ = must(domain.register_memory({data_, size, descriptor_, 0}, access));
}

Buffer::~Buffer() {
  region_.reset();
  if (mapped_ == 0) {
    std::free(data_);
  } else {
    munmap(data_, mapped_);
    close(descriptor_);
  }
}

void Buffer::register_again(ProtectionDomain& domain, Access access) {
  region_.reset();
  region_ =
      must(domain.register_memory({data_, std::max<size_t>(bytes_, 1), descriptor_, 0}, access));
}

Segment Buffer::segment(size_t offset, size_t bytes) const {
  return {data_ + offset, static_cast<uint32_t>(bytes), region_->local_key()};
}

void Buffer::fill(uint64_t seed) {
  const Bytes bytes = pattern(seed, bytes_);
  std::copy(bytes.begin(), bytes.end(), data_);
}

void Buffer::clear() { std::fill_n(data_, bytes_, kUntouched); }

uint64_t Buffer::word(size_t offset) const {
  uint64_t value = 0;
  std::memcpy(&value, data_ + offset, sizeof value);
  return value;
}

void Buffer::set_word(size_t offset, uint64_t value) {
  std::memcpy(data_ + offset, &value, sizeof value);
}

::testing::AssertionResult holds(const Buffer& buffer, size_t offset,
                                 std::span<const std::byte> expected) {
  const std::byte* begin = buffer.data() + offset;
  const auto difference = std::mismatch(expected.begin(), expected.end(), begin);
  if (difference.first == expected.end()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << "byte " << difference.second - begin << " of " << expected.size() << " is "
         << static_cast<int>(*difference.second) << " instead of "
         << static_cast<int>(*difference.first);
}

::testing::AssertionResult untouched(const Buffer& buffer, size_t offset, size_t bytes) {
  return holds(buffer, offset, Bytes(bytes, Buffer::kUntouched));
}

WorkRequest to_peer(Opcode opcode, uint64_t id, const Segments& segments, uint8_t flags,
                    uint32_t immediate) {
  WorkRequest request;
  request.id = id;
  request.opcode = opcode;
  request.flags = flags;
  request.segment_count = static_cast<uint16_t>(segments.size());
  request.segments = segments.data();
  request.immediate = immediate;
  return request;
}

WorkRequest to_remote(Opcode opcode, uint64_t id, const Segments& segments,
                      const RemoteMemoryLocator& remote, uint8_t flags) {
  WorkRequest request = to_peer(opcode, id, segments, flags);
  request.remote_address = remote.address;
  request.remote_key = remote.key;
  return request;
}

WorkRequest fetch_add(uint64_t id, const Segments& result, const RemoteMemoryLocator& remote,
                      uint64_t addend, uint8_t flags) {
  WorkRequest request = to_remote(Opcode::kFetchAdd, id, result, remote, flags);
  request.operand = addend;
  return request;
}

WorkRequest compare_swap(uint64_t id, const Segments& result, const RemoteMemoryLocator& remote,
                         uint64_t expected, uint64_t desired, uint8_t flags) {
  WorkRequest request = to_remote(Opcode::kCompareSwap, id, result, remote, flags);
  request.operand = expected;
  request.swap = desired;
  return request;
}

void post(const End& end, const WorkRequest& request) {
  const PostResult result = end->post_send(request);
  EXPECT_TRUE(result.ok()) << to_status(result, end->peer()).ToString();
  EXPECT_EQ(result.posted, result.ok() ? 1U : 0U);
}

void post_receive(const End& end, uint64_t id, const Segments& segments) {
  const ReceiveRequest request{id, segments.data(), static_cast<uint32_t>(segments.size())};
  const PostResult result = end->post_receive(request);
  EXPECT_TRUE(result.ok()) << to_status(result, end->peer()).ToString();
  EXPECT_EQ(result.posted, result.ok() ? 1U : 0U);
}

std::vector<Completion> take(CompletionQueue& queue, size_t count) {
  std::vector<Completion> completions(count);
  size_t taken = 0;
  const Clock::time_point deadline = Clock::now() + kPatience;
  while (taken < count && Clock::now() < deadline) {
    const size_t got = queue.poll(std::span(completions).subspan(taken));
    taken += got;
    if (got == 0) std::this_thread::yield();
  }
  EXPECT_EQ(taken, count) << "completions that arrived before the deadline";
  return completions;
}

Completion take_one(CompletionQueue& queue) { return take(queue, 1)[0]; }

std::vector<Completion> drain(CompletionQueue& queue) {
  std::vector<Completion> completions;
  Clock::time_point until = Clock::now() + kQuietTime;
  int polls = 0;
  while (polls < kQuietPolls || Clock::now() < until) {
    Completion completion;
    if (queue.poll(std::span(&completion, 1)) == 1) {
      completions.push_back(completion);
      until = Clock::now() + kQuietTime;
      polls = 0;
    } else {
      ++polls;
      std::this_thread::yield();
    }
  }
  return completions;
}

::testing::AssertionResult quiet(CompletionQueue& queue) {
  const std::vector<Completion> completions = drain(queue);
  if (completions.empty()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << completions.size() << " completions, the first: " << kind_name(completions[0].kind)
         << " with id " << completions[0].id << ", " << status_name(completions[0].status);
}

bool eventually(const std::function<bool()>& condition) {
  const Clock::time_point deadline = Clock::now() + kPatience;
  while (!condition()) {
    if (Clock::now() >= deadline) {
      ADD_FAILURE() << "the condition did not become true before the deadline";
      return false;
    }
    std::this_thread::yield();
  }
  return true;
}

::testing::AssertionResult succeeded(const Completion& completion, uint64_t id,
                                     CompletionKind kind) {
  if (completion.status == CompletionStatus::kSuccess && completion.id == id &&
      completion.kind == kind) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure()
         << "id " << completion.id << " instead of " << id << ", " << kind_name(completion.kind)
         << " instead of " << kind_name(kind) << ": " << status_name(completion.status)
         << ", vendor error " << completion.vendor_error;
}

::testing::AssertionResult failed(const Completion& completion, uint64_t id,
                                  const Statuses& statuses, const End& end) {
  const bool expected =
      std::find(statuses.begin(), statuses.end(), completion.status) != statuses.end();
  if (!expected || completion.id != id || completion.queue_pair != end->number()) {
    return ::testing::AssertionFailure()
           << "id " << completion.id << " instead of " << id << ", \""
           << status_name(completion.status) << "\" instead of \"" << status_name(statuses[0])
           << "\", queue pair " << completion.queue_pair << " of " << end->number()
           << ", vendor error " << completion.vendor_error;
  }
  const absl::Status error = to_status(completion, end->peer());
  const std::string text(error.message());
  const size_t peer = text.find(end->peer());
  if (error.ok() || text.find(kind_name(completion.kind)) == std::string::npos ||
      peer == std::string::npos || text.find(": ", peer) == text.rfind(": ")) {
    return ::testing::AssertionFailure() << "the error should name the operation, " << end->peer()
                                         << ", a reason and a remedy: " << error.ToString();
  }
  return ::testing::AssertionSuccess();
}

void ContractTest::SetUp() {
  const TransportCase& transport = GetParam();
  if (const std::string reason = reason_to_skip(transport); !reason.empty()) {
    GTEST_SKIP() << reason;
  }
  if (transport.base == Transport::kSim) {
    // While one thread of a test sleeps in virtual time, other threads still have to post: time
    // waits for them.
    fabric_ = std::make_shared<SimFabric>(
        SimOptions{.seed = seed(), .idle_grace = std::chrono::milliseconds(5)});
    // One control for all devices of the fabric, so that polling any device advances all of them.
    if (transport.fault) control_ = std::make_shared<FaultControl>();
  }
  near_device_ = make_device();
  far_device_ = make_device();
  near_domain_ = must(near_device_->create_domain());
  far_domain_ = must(far_device_->create_domain());
}

std::shared_ptr<Device> ContractTest::make_device() {
  const uint64_t stream = devices_++;
  if (fabric_ == nullptr) return must(open_case(GetParam(), stream));
  std::shared_ptr<Device> endpoint = fabric_->create_endpoint();
  return GetParam().fault ? with_faults(std::move(endpoint), stream, control_) : endpoint;
}

Link ContractTest::make_link(LinkOptions options) {
  Link link;
  const auto make_end = [](ProtectionDomain& domain, QueuePairOptions& wanted, End& end) {
    if (wanted.send_completions == nullptr) {
      wanted.send_completions = must(domain.create_completion_queue({.depth = 1024}));
    }
    if (wanted.receive_completions == nullptr) {
      wanted.receive_completions = must(domain.create_completion_queue({.depth = 1024}));
    }
    end.sends = wanted.send_completions;
    end.receives = wanted.receive_completions;
    end.pair = must(domain.create_queue_pair(wanted));
  };
  make_end(*near_domain_, options.near, link.near);
  make_end(*far_domain_, options.far, link.far);
  if (options.connected) connect(link, options.connect);
  return link;
}

void ContractTest::connect(Link& link, const ConnectOptions& options) {
  ConnectOptions labelled = options;
  labelled.peer = kFarLabel;
  must(link.near->connect(link.far->address(), labelled));
  labelled.peer = kNearLabel;
  must(link.far->connect(link.near->address(), labelled));
}

void ContractTest::repair(Link& link) {
  must(link.near->repair());
  must(link.far->repair());
  EXPECT_EQ(link.near->state(), QueuePairState::kConnected);
  EXPECT_EQ(link.far->state(), QueuePairState::kConnected);
  for (const End* end : {&link.near, &link.far}) {
    // All outstanding requests have ended, as repair() promises, so their completions are in the
    // queues.
    static_cast<void>(drain(*end->sends));
    static_cast<void>(drain(*end->receives));
  }
}

void ContractTest::expect_flow(Link& link) {
  constexpr size_t kBytes = 1000;
  constexpr uint64_t kWord = 1024;  // offset of the word for the atomics
  Buffer near(*near_domain_, 2048);
  Buffer far(*far_domain_, 2048);

  struct Direction {
    End& from;
    Buffer& source;
    End& to;
    Buffer& target;
  };
  uint64_t round = 100;
  for (Direction way :
       {Direction{link.near, near, link.far, far}, Direction{link.far, far, link.near, near}}) {
    ++round;
    const Segments source = {way.source.segment(0, kBytes)};
    const Segments target = {way.target.segment(0, kBytes)};
    const Segments word = {way.source.segment(kWord, 8)};

    way.source.fill(round);
    way.target.clear();
    post_receive(way.to, round, target);
    post(way.from, to_peer(Opcode::kSend, round, source));
    const Completion received = take_one(*way.to.receives);
    EXPECT_TRUE(succeeded(received, round, CompletionKind::kReceive));
    EXPECT_EQ(received.bytes, kBytes);
    EXPECT_TRUE(succeeded(take_one(*way.from.sends), round, CompletionKind::kSend));
    EXPECT_TRUE(holds(way.target, 0, pattern(round, kBytes)));

    way.target.clear();
    post(way.from, to_remote(Opcode::kWrite, round, source, way.target.locator(0, kBytes)));
    EXPECT_TRUE(succeeded(take_one(*way.from.sends), round, CompletionKind::kWrite));
    EXPECT_TRUE(holds(way.target, 0, pattern(round, kBytes)));

    way.target.fill(round + 10);
    post(way.from, to_remote(Opcode::kRead, round, source, way.target.locator(0, kBytes)));
    EXPECT_TRUE(succeeded(take_one(*way.from.sends), round, CompletionKind::kRead));
    EXPECT_TRUE(holds(way.source, 0, pattern(round + 10, kBytes)));

    way.target.set_word(kWord, 40);
    post(way.from, fetch_add(round, word, way.target.locator(kWord, 8), 2));
    EXPECT_TRUE(succeeded(take_one(*way.from.sends), round, CompletionKind::kFetchAdd));
    EXPECT_EQ(way.source.word(kWord), 40U);
    EXPECT_EQ(way.target.word(kWord), 42U);
  }
}

}  // namespace cariama::testing
