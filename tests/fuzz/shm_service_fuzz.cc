// A hostile peer at the socket of a device's service. It sends messages in any order, of any
// content and size, with and without descriptors. The service has no thread here: it handles each
// message before the peer looks for the answer.
//
// The service must answer each message as the protocol says, or close the connection. It must
// accept the next peer.
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <set>
#include <string_view>
#include <vector>

#include "dtutils/shm/service.h"
#include "tests/fuzz/fuzz_input.h"

namespace cariama::shm {
namespace {

constexpr size_t kMaxMessages = 32;
constexpr size_t kMaxDescriptors = 6;

class Idle : public Service::Client {
 public:
  bool progress() override { return false; }
  void process_ended(const std::shared_ptr<Link>&) override {}
  void connection_ended(const std::shared_ptr<Link>&) override {}
};

class Device {
 public:
  Device() {
    const auto pid = static_cast<uint32_t>(getpid());
    for (size_t i = 0; i < sizeof pid; ++i) uuid_[i] = static_cast<uint8_t>(pid >> (8 * i));
    control_ = *ControlSegment::create(uuid_);
    regions_ = *RegionTable::create(control_);
    for (int i = 0; i < 2; ++i) {
      const int memory = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
      require(ftruncate(memory, 4096) == 0 &&
              fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
      void* address = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
      const auto keys = regions_->add({address, 4096, memory, 0}, Access::kAll, 1);
      keys_.push_back(keys->remote.value);
      announced_.insert(keys->remote.value);
    }
    keys_.push_back(regions_->add({this, sizeof *this}, Access::kAll, 1)->remote.value);
    service_ = std::make_unique<Service>(control_, regions_.get(), &idle_);
    require(service_->listen().ok());
  }

  [[nodiscard]] const Uuid& uuid() const { return uuid_; }
  [[nodiscard]] uint64_t key(size_t index) const { return keys_[index % keys_.size()]; }
  [[nodiscard]] const std::set<uint64_t>& announced() const { return announced_; }
  // Makes the service handle all that its peers have done.
  void serve() const {
    constexpr int kMostRounds = 1000;
    for (int round = 0; service_->handle_ready() != 0; ++round) require(round < kMostRounds);
  }

 private:
  Uuid uuid_{};
  std::shared_ptr<ControlSegment> control_;
  std::unique_ptr<RegionTable> regions_;
  std::vector<uint64_t> keys_;
  std::set<uint64_t> announced_;  // keys of the regions with a descriptor
  Idle idle_;
  std::unique_ptr<Service> service_;
};

class Peer {
 public:
  explicit Peer(const Device& device)
      : device_(device), socket_(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)) {
    sockaddr_un address;
    const socklen_t length = socket_address(device.uuid(), &address);
    require(connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), length) == 0);
  }

  // Sends the bytes as one message, with descriptors, and checks the answer. Returns false if the
  // service has closed the connection.
  bool send(std::string_view bytes, size_t descriptors) {
    static const int event = eventfd(0, EFD_CLOEXEC);
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxDescriptors)] = {};
    iovec piece{const_cast<char*>(bytes.data()), bytes.size()};
    msghdr header{};
    header.msg_iov = &piece;
    header.msg_iovlen = 1;
    if (descriptors != 0) {
      header.msg_control = control;
      header.msg_controllen = CMSG_SPACE(sizeof(int) * descriptors);
      cmsghdr* entry = CMSG_FIRSTHDR(&header);
      entry->cmsg_level = SOL_SOCKET;
      entry->cmsg_type = SCM_RIGHTS;
      entry->cmsg_len = CMSG_LEN(sizeof(int) * descriptors);
      const std::vector<int> values(descriptors, event);
      std::memcpy(CMSG_DATA(entry), values.data(), sizeof(int) * descriptors);
    }
    require(sendmsg(socket_.get(), &header, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size()));
    device_.serve();

    Message message;
    if (bytes.size() != sizeof message) return refused();
    std::memcpy(&message, bytes.data(), sizeof message);
    if (message.magic != kMagic || message.version != kVersion) return refused();
    if (message.type == MessageType::kHello && !greeted_ && message.uuid == device_.uuid()) {
      greeted_ = true;
      const Answer welcome = receive();
      require(welcome.message.type == MessageType::kWelcome && welcome.has_descriptor &&
              welcome.message.uuid == device_.uuid());
      std::set<uint64_t> keys;
      for (size_t i = 0; i < device_.announced().size(); ++i) {
        const Answer region = receive();
        require(region.message.type == MessageType::kRegion && region.has_descriptor);
        keys.insert(region.message.key);
      }
      require(keys == device_.announced());
      return true;
    }
    if (message.type == MessageType::kAskRegion && greeted_) {
      const Answer answer = receive();
      const bool known = device_.announced().contains(message.key);
      require(answer.message.key == message.key && answer.has_descriptor == known &&
              answer.message.type == (known ? MessageType::kRegion : MessageType::kUnknown));
      return true;
    }
    return refused();
  }

 private:
  struct Answer {
    Message message;
    bool has_descriptor;
  };
  Answer receive() {
    Answer answer{};
    FileDescriptor descriptor;
    require(receive_message(socket_.get(), &answer.message, &descriptor, false) == 0);
    answer.has_descriptor = descriptor.valid();
    return answer;
  }
  bool refused() {
    char byte;
    const ssize_t received = recv(socket_.get(), &byte, 1, MSG_DONTWAIT);
    require(received == 0 || (received < 0 && errno == ECONNRESET));
    return false;
  }

  const Device& device_;
  FileDescriptor socket_;
  bool greeted_ = false;
};

}  // namespace
}  // namespace cariama::shm

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cariama::shm;  // NOLINT(google-build-using-namespace)
  static auto* const device = new Device;
  cariama::FuzzInput input(data, size);
  {
    Peer peer(*device);
    for (size_t i = 0; i < kMaxMessages && !input.empty(); ++i) {
      const auto near = input.take<uint8_t>();
      const size_t descriptors = input.take<uint8_t>() % (kMaxDescriptors + 1);
      auto message = input.take<Message>();
      if ((near & 1) == 0) {
        message.magic = kMagic;
        message.version = kVersion;
      }
      if ((near & 2) == 0) {
        message.type = i == 0 ? MessageType::kHello : MessageType::kAskRegion;
      }
      if ((near & 4) == 0) message.uuid = device->uuid();
      if ((near & 8) == 0) message.key = device->key(message.key % 8);
      std::string bytes(reinterpret_cast<const char*>(&message), sizeof message);
      if ((near & 0xf0) == 0xf0) bytes.resize(input.take<uint8_t>());  // the size may be 0
      if (!peer.send(bytes, descriptors)) break;
    }
  }
  {
    Peer next(*device);
    Message hello;
    hello.uuid = device->uuid();
    const std::string bytes(reinterpret_cast<const char*>(&hello), sizeof hello);
    cariama::require(next.send(bytes, 0));
  }
  device->serve();  // the ends of both peers: the next input begins without connections
  return 0;
}
