// The messages between a device and the service thread of a peer device, over a SOCK_SEQPACKET
// socket with an abstract name (so nothing is left in any file system). Data never goes this way.
#ifndef CARIAMA_DTUTILS_SHM_WIRE_H_
#define CARIAMA_DTUTILS_SHM_WIRE_H_

#include <sys/socket.h>
#include <sys/un.h>

#include <cstdint>

#include "dtutils/file_descriptor.h"
#include "dtutils/shm/layout.h"

namespace cariama::shm {

enum class MessageType : uint32_t {
  kHello = 1,  // client → server
  kWelcome,    // server → client, with the descriptor of the control segment
  kRegion,     // server → client, with the descriptor of the region
  kRevoked,    // server → client
  kAskRegion,  // client → server
  kUnknown,    // server → client: kAskRegion named a key that is not registered
};

struct Message {
  uint32_t magic = kMagic;
  uint32_t version = kVersion;
  MessageType type = MessageType::kHello;
  uint32_t reserved = 0;
  Uuid uuid{};          // kHello: the device that is wanted; kWelcome: the one that answers
  uint64_t key = 0;     // kRegion, kRevoked, kAskRegion, kUnknown
  uint64_t base = 0;    // kRegion: as the owner sees it
  uint64_t length = 0;  // kRegion: bytes
  uint64_t offset = 0;  // kRegion: within the descriptor
  uint32_t access = 0;  // kRegion
  uint32_t domain = 0;  // kRegion
};

// The name that the service thread of device `uuid` listens on. Returns the length.
socklen_t socket_address(const Uuid& uuid, sockaddr_un* address);

// Sends one message, with `descriptor` if it is not negative. 0, or errno (EAGAIN: the socket is
// full). Never raises SIGPIPE.
[[nodiscard]] int send_message(int socket, const Message& message, int descriptor, bool wait);

// Receives one message. 0; or errno (EAGAIN: nothing there; EPIPE: the other side is gone; EPROTO:
// not one of ours).
[[nodiscard]] int receive_message(int socket, Message* message, FileDescriptor* descriptor,
                                  bool wait);

}  // namespace cariama::shm

#endif  // CARIAMA_DTUTILS_SHM_WIRE_H_
