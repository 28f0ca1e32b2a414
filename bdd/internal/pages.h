// Anonymous memory for tables that are accessed at random.
#ifndef CARIAMA_BDD_INTERNAL_PAGES_H_
#define CARIAMA_BDD_INTERNAL_PAGES_H_

#include <cstddef>

namespace cariama::bdd::internal {

// Maps zeroed private memory, with transparent huge pages where the kernel has them: a random
// access into 4 KiB pages would miss the TLB as well as the cache. Throws std::bad_alloc.
[[nodiscard]] void* map_pages(size_t bytes);
void unmap_pages(void* memory, size_t bytes);

}  // namespace cariama::bdd::internal

#endif  // CARIAMA_BDD_INTERNAL_PAGES_H_
