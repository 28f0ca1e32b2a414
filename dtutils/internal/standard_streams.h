// The standard streams of a process that was started without some of them.
#ifndef CARIAMA_DTUTILS_INTERNAL_STANDARD_STREAMS_H_
#define CARIAMA_DTUTILS_INTERNAL_STANDARD_STREAMS_H_

#include <fcntl.h>
#include <unistd.h>

#include <initializer_list>

namespace cariama::internal {

// Opens /dev/null for each standard stream that is closed. Otherwise the next descriptor that this
// process or a process of its job opens gets the number of a stream, and diagnostics go to a socket
// or to shared memory. Requires: no other thread opens or closes descriptors.
//
// A closed stdin becomes an empty input. All three are opened for reading, so that a write to a
// closed stdout or stderr fails (EBADF) as it does without this function.
inline void open_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(stream, F_GETFD) >= 0) continue;
    // open() returns the lowest free number, which is that of the stream.
    if (open("/dev/null", O_RDONLY) != stream) return;
  }
}

}  // namespace cariama::internal

#endif  // CARIAMA_DTUTILS_INTERNAL_STANDARD_STREAMS_H_
