#include "dtutils/shm/wire.h"

#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <span>

namespace cariama::shm {

socklen_t socket_address(const Uuid& uuid, sockaddr_un* address) {
  static constexpr char kPrefix[] = "cariama-";
  static constexpr char kDigits[] = "0123456789abcdef";
  std::memset(address, 0, sizeof *address);
  address->sun_family = AF_UNIX;
  char* out = address->sun_path + 1;  // a leading 0 selects the abstract name space
  std::memcpy(out, kPrefix, sizeof kPrefix - 1);
  out += sizeof kPrefix - 1;
  for (const uint8_t byte : std::span(uuid).first<kPublicUuidBytes>()) {
    *out++ = kDigits[byte >> 4];
    *out++ = kDigits[byte & 15];
  }
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + (out - address->sun_path));
}

int send_message(int socket, const Message& message, int descriptor, bool wait) {
  iovec piece{const_cast<Message*>(&message), sizeof message};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header{};
  header.msg_iov = &piece;
  header.msg_iovlen = 1;
  if (descriptor >= 0) {
    header.msg_control = control;
    header.msg_controllen = sizeof control;
    cmsghdr* entry = CMSG_FIRSTHDR(&header);
    entry->cmsg_level = SOL_SOCKET;
    entry->cmsg_type = SCM_RIGHTS;
    entry->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(entry), &descriptor, sizeof(int));
  }
  const int flags = MSG_NOSIGNAL | (wait ? 0 : MSG_DONTWAIT);
  ssize_t sent;
  do sent = sendmsg(socket, &header, flags);
  while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(sizeof message) ? 0 : errno;
}

int receive_message(int socket, Message* message, FileDescriptor* descriptor, bool wait) {
  iovec piece{message, sizeof *message};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 4)];
  msghdr header{};
  header.msg_iov = &piece;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof control;
  const int flags = MSG_CMSG_CLOEXEC | (wait ? 0 : MSG_DONTWAIT);
  ssize_t received;
  do received = recvmsg(socket, &header, flags);
  while (received < 0 && errno == EINTR);
  if (received < 0) return errno;
  descriptor->reset();
  for (cmsghdr* entry = CMSG_FIRSTHDR(&header); entry != nullptr;
       entry = CMSG_NXTHDR(&header, entry)) {
    if (entry->cmsg_level != SOL_SOCKET || entry->cmsg_type != SCM_RIGHTS) continue;
    // Every received descriptor is owned by this process and closed if unused, so that a peer
    // cannot cause a leak of descriptors.
    for (size_t at = CMSG_LEN(0); at + sizeof(int) <= entry->cmsg_len; at += sizeof(int)) {
      int value;
      std::memcpy(&value, reinterpret_cast<char*>(entry) + at, sizeof value);
      *descriptor = FileDescriptor(value);
    }
  }
  if (received == 0) return EPIPE;
  if (received != static_cast<ssize_t>(sizeof *message) || (header.msg_flags & MSG_TRUNC) != 0 ||
      message->magic != kMagic || message->version != kVersion) {
    return EPROTO;
  }
  // The kernel drops a descriptor for which this process has no number left.
  if (!descriptor->valid() && (header.msg_flags & MSG_CTRUNC) != 0) return EMFILE;
  return 0;
}

}  // namespace cariama::shm
