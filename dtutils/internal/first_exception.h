// Steps that all have to run, although one of them may throw.
#ifndef CARIAMA_DTUTILS_INTERNAL_FIRST_EXCEPTION_H_
#define CARIAMA_DTUTILS_INTERNAL_FIRST_EXCEPTION_H_

#include <exception>

namespace cariama::internal {

// Keeps the first exception of several steps. Thread-compatible.
class FirstException {
 public:
  // Returns false if the step has thrown.
  template <typename Step>
  bool run(const Step& step) {
    try {
      step();
      return true;
    } catch (...) {
      if (first_ == nullptr) first_ = std::current_exception();
      return false;
    }
  }
  // Throws the first exception, if a step has thrown.
  void rethrow() const {
    if (first_ != nullptr) [[unlikely]]
      std::rethrow_exception(first_);
  }

 private:
  std::exception_ptr first_;
};

}  // namespace cariama::internal

#endif  // CARIAMA_DTUTILS_INTERNAL_FIRST_EXCEPTION_H_
