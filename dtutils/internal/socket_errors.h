// Errors of non-blocking sockets after which the operation is tried again.
#ifndef CARIAMA_DTUTILS_INTERNAL_SOCKET_ERRORS_H_
#define CARIAMA_DTUTILS_INTERNAL_SOCKET_ERRORS_H_

#include <cerrno>

namespace cariama::internal {

// Returns true if a send or receive on a socket has moved no byte, and is to be tried again when
// poll() reports the socket as ready: the socket is full or empty, or the kernel has no memory for
// the operation at the moment.
[[nodiscard]] inline bool is_temporary(int error) {
  return error == EAGAIN || error == EWOULDBLOCK || error == ENOBUFS || error == ENOMEM;
}

}  // namespace cariama::internal

#endif  // CARIAMA_DTUTILS_INTERNAL_SOCKET_ERRORS_H_
