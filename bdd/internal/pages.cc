#include "bdd/internal/pages.h"

#include <sys/mman.h>

#include <new>

namespace cariama::bdd::internal {

void* map_pages(size_t bytes) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  ::madvise(memory, bytes, MADV_HUGEPAGE);  // a hint: without huge pages the table is slower only
  return memory;
}

void unmap_pages(void* memory, size_t bytes) {
  if (memory != nullptr) ::munmap(memory, bytes);
}

}  // namespace cariama::bdd::internal
