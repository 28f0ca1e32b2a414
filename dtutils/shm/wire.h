// The messages between a device and the service thread of a peer device, over a SOCK_SEQPACKET
// socket with an abstract name (so no file remains in a file system). User data never takes this
// path.
#ifndef CARIAMA_DTUTILS_SHM_WIRE_H_
#define CARIAMA_DTUTILS_SHM_WIRE_H_

#include <sys/socket.h>
#include <sys/un.h>

#include <cstddef>
#include <cstdint>

#include "dtutils/internal/file_descriptor.h"
#include "dtutils/shm/layout.h"

namespace cariama::shm {

enum class MessageType : uint32_t {
  kHello = 1,  // client → server
  kWelcome,    // server → client, with the descriptor of the control segment
  kRegion,     // server → client, with the descriptor of the region
  kRevoked,    // server → client
  kAskRegion,  // client → server
  kUnknown,    // server → client: kAskRegion named a key that is not registered
  kRefused,    // server → client: the server lacks what `key` names, EMFILE or ENOMEM
};

struct Message {
  uint32_t magic = kMagic;
  uint32_t version = kVersion;
  MessageType type = MessageType::kHello;
  uint32_t reserved = 0;
  Uuid uuid{};          // kHello: the requested device; kWelcome: the answering one
  uint64_t key = 0;     // kRegion, kRevoked, kAskRegion, kUnknown
  uint64_t base = 0;    // kRegion: in the owner's addresses
  uint64_t length = 0;  // kRegion: bytes
  uint64_t offset = 0;  // kRegion: within the descriptor
  uint32_t access = 0;  // kRegion
  uint32_t domain = 0;  // kRegion
};

// The first bytes of a device's uuid are the name of its socket, which all processes of the host
// can list. The others are a secret: a process learns them by QueuePair::address() only, and the
// service answers a kHello only if it contains all of them.
inline constexpr size_t kPublicUuidBytes = 8;

// Computes the name on which the service thread of device `uuid` listens. Returns the length.
socklen_t socket_address(const Uuid& uuid, sockaddr_un* address);

// Sends one message, with `descriptor` if it is not negative. Returns 0 or errno (EAGAIN: the
// socket is full). Never raises SIGPIPE.
[[nodiscard]] int send_message(int socket, const Message& message, int descriptor, bool wait);

// Receives one message. Returns 0 or errno (EAGAIN: no message available; EPIPE: the other side has
// closed; EPROTO: not a valid message of this version; EMFILE: the message is received, but its
// descriptor is lost, since this process has no number left for it).
[[nodiscard]] int receive_message(int socket, Message* message, FileDescriptor* descriptor,
                                  bool wait);

}  // namespace cariama::shm

#endif  // CARIAMA_DTUTILS_SHM_WIRE_H_
