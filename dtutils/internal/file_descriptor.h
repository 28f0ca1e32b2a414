// Owns a file descriptor, or none.
//
//   FileDescriptor socket(::socket(...));
//   if (!socket.valid()) return make_errno_error(errno, ...);
//   poll_it(socket.get());   // closed when `socket` ends
#ifndef CARIAMA_DTUTILS_INTERNAL_FILE_DESCRIPTOR_H_
#define CARIAMA_DTUTILS_INTERNAL_FILE_DESCRIPTOR_H_

#include <unistd.h>

#include <utility>

namespace cariama {

// Thread-compatible. Movable: a moved-from object owns no descriptor.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  // Takes ownership of `number`; a negative number means no descriptor.
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
  // Closes the descriptor now. Ignores an error of close(2): no caller could handle it.
  void reset() {
    if (number_ >= 0) close(std::exchange(number_, -1));
  }
  // Returns the descriptor and gives up its ownership without closing it.
  [[nodiscard]] int release() { return std::exchange(number_, -1); }

 private:
  int number_ = -1;
};

}  // namespace cariama

#endif  // CARIAMA_DTUTILS_INTERNAL_FILE_DESCRIPTOR_H_
