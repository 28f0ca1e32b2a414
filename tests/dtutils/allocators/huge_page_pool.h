// Raises a pool of huge pages for the duration of a test, and restores its size afterwards.
#ifndef CARIAMA_TESTS_DTUTILS_ALLOCATORS_HUGE_PAGE_POOL_H_
#define CARIAMA_TESTS_DTUTILS_ALLOCATORS_HUGE_PAGE_POOL_H_

#include <cstdint>
#include <fstream>
#include <string>

namespace cariama::testing {

class HugePagePool {
 public:
  // Raises the pool of pages of `page_bytes` until at least `pages` of them are free. ready()
  // returns true if the kernel provided them.
  HugePagePool(uint64_t page_bytes, uint64_t pages)
      : folder_("/sys/kernel/mm/hugepages/hugepages-" + std::to_string(page_bytes / 1024) + "kB/"),
        before_(read("nr_hugepages")) {
    const uint64_t in_use = before_ - read("free_hugepages");
    if (read("free_hugepages") < pages) {
      changed_ = write(in_use + pages);
    }
    if (read("free_hugepages") < pages) {
      why_ = changed_ ? "the kernel finds no contiguous memory for huge pages"
                      : "the pool of huge pages can be raised by root only";
    }
  }
  ~HugePagePool() {
    if (changed_) write(before_);
  }
  HugePagePool(const HugePagePool&) = delete;
  HugePagePool& operator=(const HugePagePool&) = delete;

  [[nodiscard]] bool ready() const { return why_.empty(); }
  [[nodiscard]] const std::string& why() const { return why_; }
  [[nodiscard]] uint64_t free() const { return read("free_hugepages"); }

 private:
  uint64_t read(const char* name) const {
    uint64_t value = 0;
    std::ifstream(folder_ + name) >> value;
    return value;
  }
  bool write(uint64_t pages) const {
    std::ofstream file(folder_ + "nr_hugepages");
    file << pages << std::flush;
    return file.good();
  }

  const std::string folder_;
  const uint64_t before_;
  bool changed_ = false;
  std::string why_;
};

}  // namespace cariama::testing

#endif  // CARIAMA_TESTS_DTUTILS_ALLOCATORS_HUGE_PAGE_POOL_H_
