// Text for signal handlers: builds a message in a buffer on the stack, without allocation, and
// writes it to stderr. All functions are async-signal-safe.
//
//   SignalSafeText text;
//   text.add("signal ").add_decimal(11).add(" at ").add_address(address).add("\n").print();
#ifndef CARIAMA_DTUTILS_INTERNAL_SIGNAL_SAFE_TEXT_H_
#define CARIAMA_DTUTILS_INTERNAL_SIGNAL_SAFE_TEXT_H_

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace cariama {

// Cuts the text to kBytes.
class SignalSafeText {
 public:
  static constexpr size_t kBytes = 4096;
  SignalSafeText& add(const char* text) { return add(text, std::strlen(text)); }
  SignalSafeText& add(const char* text, size_t length) {
    length = std::min(length, sizeof bytes_ - used_);
    std::memcpy(bytes_ + used_, text, length);
    used_ += length;
    return *this;
  }
  SignalSafeText& add_decimal(uint64_t number) { return add_number(number, 10); }
  // Adds "0x" and the hexadecimal digits.
  SignalSafeText& add_address(uintptr_t address) { return add("0x").add_number(address, 16); }
  // Blocks at most kReaderPatienceMs while the reader of stderr does not read, then drops the rest:
  // a crashed process must die, because its peers wait until it does.
  void print() const {
    size_t printed = 0;
    while (printed < used_) {
      // A pipe that polls as writable takes PIPE_BUF bytes in one write. The text is not longer.
      pollfd room{STDERR_FILENO, POLLOUT, 0};
      if (poll(&room, 1, kReaderPatienceMs) <= 0) return;
      const ssize_t count = write(STDERR_FILENO, bytes_ + printed, used_ - printed);
      if (count <= 0) return;
      printed += static_cast<size_t>(count);
    }
  }

 private:
  SignalSafeText& add_number(uint64_t number, uint64_t base) {
    char digits[20];
    char* at = digits + sizeof digits;
    do {
      *--at = "0123456789abcdef"[number % base];
      number /= base;
    } while (number != 0);
    return add(at, static_cast<size_t>(digits + sizeof digits - at));
  }

  static constexpr int kReaderPatienceMs = 1000;
  static_assert(kBytes <= PIPE_BUF);
  char bytes_[kBytes];
  size_t used_ = 0;
};

}  // namespace cariama

#endif  // CARIAMA_DTUTILS_INTERNAL_SIGNAL_SAFE_TEXT_H_
