// A hostile device at the other end of a link. The input determines its welcome, its messages, with
// descriptors of memory that may or may not be mapped, and its key table.
//
// The device has no thread: it sends its messages before the link reads the first one. After every
// input, the link must know exactly the regions that follow from the messages. Each page of these
// regions must be accessible and that of the descriptor. A region that is not mapped must never be
// reported as directly writable.
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "dtutils/shm/link.h"
#include "tests/fuzz/fuzz_input.h"

namespace cariama::shm {
namespace {

constexpr uint32_t kPlaces = 4;           // entries of the key table that messages use
constexpr uint32_t kUnmappedPlace = 100;  // entry of the key table that the input fills
constexpr size_t kMaxMessages = 64;       // number of messages that fit into a socket

// A descriptor that a peer may send.
struct Descriptor {
  int value;
  uint64_t size;  // bytes that may be mapped
};

std::byte pattern(uint64_t offset) { return static_cast<std::byte>(offset % 251); }

Descriptor make_memory(uint64_t bytes, int seals) {
  const int memory = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  std::vector<std::byte> content(bytes);
  for (uint64_t i = 0; i < bytes; ++i) content[i] = pattern(i);
  require(memory >= 0 && write(memory, content.data(), bytes) == static_cast<ssize_t>(bytes));
  require(seals == 0 || fcntl(memory, F_ADD_SEALS, seals) == 0);
  constexpr int kNeeded = F_SEAL_SHRINK | F_SEAL_GROW;
  return {memory, (seals & kNeeded) == kNeeded ? bytes : 0};
}

struct Script {
  Message welcome;
  int welcome_descriptor = -1;
  struct Item {
    Message message;
    Descriptor descriptor{-1, 0};
  };
  std::vector<Item> items;
};

class HostileDevice {
 public:
  HostileDevice() {
    control_ = *ControlSegment::create(uuid_);
    descriptors_ = {{-1, 0},
                    make_memory(3 * 4096, F_SEAL_SHRINK | F_SEAL_GROW),
                    make_memory(5000, F_SEAL_SHRINK | F_SEAL_GROW),
                    make_memory(4096, 0),
                    make_memory(4096, F_SEAL_SHRINK),
                    make_memory(4096, F_SEAL_GROW),
                    {eventfd(0, EFD_CLOEXEC), 0}};
  }

  [[nodiscard]] const Uuid& uuid() const { return uuid_; }
  [[nodiscard]] std::byte* control() const { return control_->base(); }
  [[nodiscard]] int control_descriptor() const { return control_->descriptor(); }
  [[nodiscard]] const Descriptor& descriptor(size_t index) const {
    return descriptors_[index % descriptors_.size()];
  }

  struct Connection {
    FileDescriptor end;          // of the device
    std::shared_ptr<Link> link;  // null: the link refused the welcome
  };
  // Connects a link to the device, which has sent the messages of `script`.
  [[nodiscard]] Connection connect(const Script& script) const {
    std::array<int, 2> ends{};
    require(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) == 0);
    FileDescriptor here(ends[0]);
    FileDescriptor there(ends[1]);
    require(send_message(there.get(), script.welcome, script.welcome_descriptor, false) == 0);
    for (const Script::Item& item : script.items) {
      require(send_message(there.get(), item.message, item.descriptor.value, false) == 0);
    }
    auto link = Link::greet(std::move(here), uuid_, getpid(), "hostile");
    Message hello;
    FileDescriptor none;
    // A link that refuses the welcome closes a socket with messages: the hello may be lost then.
    require(!link.ok() ||
            (receive_message(there.get(), &hello, &none, false) == 0 && hello.uuid == uuid_));
    return {std::move(there), link.ok() ? *std::move(link) : nullptr};
  }

 private:
  const Uuid uuid_{1};
  std::shared_ptr<ControlSegment> control_;
  std::vector<Descriptor> descriptors_;
};

// Takes a message from the input. The bits of its first byte choose which fields are made valid.
Message take_message(FuzzInput& input) {
  const auto near = input.take<uint8_t>();
  auto message = input.take<Message>();
  if ((near & 1) == 0) {
    message.magic = kMagic;
    message.version = kVersion;
  }
  if ((near & 2) == 0) {
    message.type = (near & 4) == 0 ? MessageType::kRegion : MessageType::kRevoked;
  }
  if ((near & 8) == 0) message.key &= 0x30000 | (kPlaces - 1);
  if ((near & 16) == 0) {
    message.offset %= 4 * 4096;
    message.length %= 4 * 4096;
  }
  if ((near & 32) == 0) message.base = (message.base & ~uint64_t{4095}) | (message.offset & 4095);
  return message;
}

bool well_formed(const Message& message) {
  return message.magic == kMagic && message.version == kVersion;
}

// A simple model of the regions that a link knows after messages.
class Model {
 public:
  void take(const Script::Item& item) {
    const Message& message = item.message;
    const auto it = known_.find(key_index(message.key));
    const bool same = it != known_.end() && it->second.key == message.key;
    if (message.type == MessageType::kRevoked && same) known_.erase(it);
    if (message.type != MessageType::kRegion || same) return;
    const uint64_t size = item.descriptor.size;
    if (message.key != 0 && message.length != 0 && message.offset <= size &&
        message.length <= size - message.offset && message.base % 4096 == message.offset % 4096 &&
        message.base <= std::numeric_limits<uint64_t>::max() - message.length) {
      known_[key_index(message.key)] = message;
    }
  }

  void check(const Link& link) const {
    for (uint32_t place = 0; place < kPlaces; ++place) {
      require((link.regions()[place].key() != 0) == known_.contains(place));
    }
    for (const auto& [place, message] : known_) {
      const std::optional<RemoteRegion> region = link.regions()[place].read(message.key);
      require(region.has_value() && region->mapped && region->key == message.key &&
              region->base == message.base && region->length == message.length &&
              region->access == static_cast<Access>(message.access) &&
              region->domain == message.domain);
      // Bytes of each page, and the last one.
      constexpr uint64_t kStep = 509;
      for (uint64_t at = 0; at < region->length + kStep; at += kStep) {
        const uint64_t offset = std::min(at, region->length - 1);
        auto* byte = reinterpret_cast<volatile std::byte*>(region->local(region->base + offset));
        const std::byte value = *byte;
        require(value == pattern(message.offset + offset));
        if (region->receivable()) *byte = value;
      }
    }
  }

 private:
  std::map<uint32_t, Message> known_;  // key: key_index of the region's key
};

}  // namespace
}  // namespace cariama::shm

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cariama::shm;  // NOLINT(google-build-using-namespace)
  using cariama::require;
  static auto* const device = new HostileDevice;
  cariama::FuzzInput input(data, size);

  Script script;
  const bool honest_welcome = input.take<uint8_t>() % 8 != 7;
  if (honest_welcome) {
    script.welcome.type = MessageType::kWelcome;
    script.welcome.uuid = device->uuid();
    script.welcome_descriptor = device->control_descriptor();
  } else {
    script.welcome = take_message(input);
    const auto choice = input.take<uint8_t>();
    script.welcome_descriptor =
        choice % 2 == 0 ? device->control_descriptor() : device->descriptor(choice / 2).value;
  }
  // A region without a descriptor, which the link looks up in the key table.
  KeyEntry& entry = key_table(device->control())[kUnmappedPlace];
  const uint64_t unmapped_key = uint64_t{1} << 20 | kUnmappedPlace;
  entry.base = input.take<uint64_t>();
  entry.length = input.take<uint64_t>();
  entry.access = input.take<uint32_t>();
  entry.domain = input.take<uint32_t>();
  entry.key = unmapped_key;
  while (!input.empty() && script.items.size() < kMaxMessages) {
    const Message message = take_message(input);
    const Descriptor& descriptor = device->descriptor(input.take<uint8_t>());
    if (key_index(message.key) == kUnmappedPlace) continue;
    script.items.push_back({message, descriptor});
  }

  const HostileDevice::Connection connection = device->connect(script);
  if (Link* const link = connection.link.get()) {
    bool open = true;
    Model model;
    for (const Script::Item& item : script.items) {
      open = well_formed(item.message);
      if (!open) break;
      model.take(item);
    }
    require(link->drain() == open);
    model.check(*link);
    require(!link->find(0).has_value());
    require(!link->find(unmapped_key + kMaxRegions).has_value());
    const std::optional<RemoteRegion> unmapped = link->find(unmapped_key);
    require(unmapped.has_value() && !unmapped->mapped &&
            unmapped->write_domain() == RemoteRegion::kNoDomain);
  } else {
    require(!honest_welcome);
  }
  return 0;
}
