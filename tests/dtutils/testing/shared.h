// Memory that the processes of a test share.
#ifndef CARIAMA_TESTS_DTUTILS_TESTING_SHARED_H_
#define CARIAMA_TESTS_DTUTILS_TESTING_SHARED_H_

#include <sys/mman.h>

#include <cstdlib>
#include <new>

namespace cariama::testing {

// An object at the same address in all processes. Construct it before the fork.
template <typename T>
class Shared {
 public:
  Shared() {
    void* memory =
        mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) std::abort();
    value_ = new (memory) T{};
  }
  ~Shared() { munmap(value_, sizeof(T)); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;

  T* get() const { return value_; }
  T* operator->() const { return value_; }
  T& operator*() const { return *value_; }

 private:
  T* value_;
};

}  // namespace cariama::testing

#endif  // CARIAMA_TESTS_DTUTILS_TESTING_SHARED_H_
