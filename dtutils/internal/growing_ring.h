// A FIFO queue whose memory follows its high-water mark; it allocates nothing before the first use.
// (An empty std::deque takes 600 bytes, which is too much for 10^5 queue pairs.)
#ifndef CARIAMA_DTUTILS_INTERNAL_GROWING_RING_H_
#define CARIAMA_DTUTILS_INTERNAL_GROWING_RING_H_

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace cariama::internal {

template <typename T>
class GrowingRing {
 public:
  [[nodiscard]] bool empty() const { return size_ == 0; }
  [[nodiscard]] size_t size() const { return size_; }

  // Returns the i-th element from the front. Requires: i < size().
  [[nodiscard]] T& operator[](size_t i) { return slots_[(head_ + i) & (slots_.size() - 1)]; }
  [[nodiscard]] const T& operator[](size_t i) const {
    return slots_[(head_ + i) & (slots_.size() - 1)];
  }
  [[nodiscard]] T& front() { return (*this)[0]; }

  T& push_back(T value) {
    if (size_ == slots_.size()) grow();
    T& slot = (*this)[size_++];
    slot = std::move(value);
    return slot;
  }

  T pop_front() {
    T value = std::exchange(slots_[head_], T{});
    head_ = (head_ + 1) & (slots_.size() - 1);
    --size_;
    return value;
  }

  // Removes the elements for which `is_unwanted` returns true. It is called once for each element,
  // from the front to the back. The others keep their order.
  template <typename Predicate>
  void erase_if(Predicate&& is_unwanted) {
    size_t kept = 0;
    for (size_t i = 0; i < size_; ++i) {
      if (is_unwanted(std::as_const((*this)[i]))) continue;
      if (kept != i) (*this)[kept] = std::move((*this)[i]);
      ++kept;
    }
    for (size_t i = kept; i < size_; ++i) (*this)[i] = T{};
    size_ = kept;
  }

 private:
  void grow() {
    std::vector<T> larger(std::max<size_t>(4, 2 * slots_.size()));  // a power of two
    for (size_t i = 0; i < size_; ++i) larger[i] = std::move((*this)[i]);
    slots_ = std::move(larger);
    head_ = 0;
  }

  std::vector<T> slots_;
  size_t head_ = 0;
  size_t size_ = 0;
};

}  // namespace cariama::internal

#endif  // CARIAMA_DTUTILS_INTERNAL_GROWING_RING_H_
