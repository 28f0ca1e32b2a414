// What the servers of local sockets share.
#ifndef CARIAMA_DTUTILS_INTERNAL_LOCAL_SOCKET_H_
#define CARIAMA_DTUTILS_INTERNAL_LOCAL_SOCKET_H_

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "dtutils/internal/file_descriptor.h"

namespace cariama::internal {

// Returns true if the process that connected this local socket belongs to the user of this process.
[[nodiscard]] inline bool is_of_own_user(int socket) {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) == 0 &&
         credentials.uid == geteuid();
}

// Returns a descriptor without a use. A server that has no free descriptor closes it, to accept a
// connection in its place. Returns an invalid one if no descriptor is free.
[[nodiscard]] inline FileDescriptor spare_descriptor() {
  return FileDescriptor(eventfd(0, EFD_CLOEXEC));
}

}  // namespace cariama::internal

#endif  // CARIAMA_DTUTILS_INTERNAL_LOCAL_SOCKET_H_
