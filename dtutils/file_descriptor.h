// Owns a file descriptor, or none.
//
//   FileDescriptor socket(::socket(...));
//   if (!socket.valid()) return make_errno_error(errno, ...);
//   poll_it(socket.get());   // closed when `socket` ends
#ifndef CARIAMA_DTUTILS_FILE_DESCRIPTOR_H_
#define CARIAMA_DTUTILS_FILE_DESCRIPTOR_H_

#include <unistd.h>

#include <utility>

namespace cariama {

// Thread-compatible. Movable: what it was moved from owns none.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  // Takes `number` over; a negative one is none.
  explicit FileDescriptor(int number) : number_(number) {}
  FileDescriptor(FileDescriptor&& other) noexcept : number_(other.release()) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    const int number = other.release();
    reset();
    number_ = number;
    return *this;
  }
  ~FileDescriptor() { reset(); }

  [[nodiscard]] int get() const { return number_; }  // negative: none
  [[nodiscard]] bool valid() const { return number_ >= 0; }
  // Closes it now. Nothing could be done about an error of close(2).
  void reset() {
    if (number_ >= 0) close(std::exchange(number_, -1));
  }
  // Gives it up without closing it.
  [[nodiscard]] int release() { return std::exchange(number_, -1); }

 private:
  int number_ = -1;
};

}  // namespace cariama

#endif  // CARIAMA_DTUTILS_FILE_DESCRIPTOR_H_
