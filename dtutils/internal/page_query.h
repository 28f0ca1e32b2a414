// Properties of mapped memory as reported by the kernel, which may differ from those requested.
#ifndef CARIAMA_DTUTILS_INTERNAL_PAGE_QUERY_H_
#define CARIAMA_DTUTILS_INTERNAL_PAGE_QUERY_H_

#include <cstddef>
#include <cstdint>
#include <istream>
#include <optional>

namespace cariama::internal {

// One mapping's entry of /proc/PID/smaps. Sizes in bytes.
struct MappingPages {
  uintptr_t start = 0;
  uintptr_t end = 0;
  uint64_t kernel_page = 0;         // KernelPageSize: larger than a base page for hugetlb only
  uint64_t anonymous_huge = 0;      // AnonHugePages
  uint64_t shared_huge_mapped = 0;  // ShmemPmdMapped
};

// Returns the entry that contains `address`, from a text in the format of smaps; an empty optional
// if there is none.
[[nodiscard]] std::optional<MappingPages> find_mapping(std::istream& smaps, uintptr_t address);

// Returns the entry that contains `address`, from /proc/self/smaps. Costs a walk over all page
// tables of the process.
[[nodiscard]] std::optional<MappingPages> query_mapping(const void* address);

// Returns true if every page of the range is on `node`, according to move_pages(2). Returns false
// also if the kernel does not report the node. Requires: the pages are present. `page_bytes` is
// their size.
[[nodiscard]] bool all_pages_on_node(const std::byte* address, size_t length, size_t page_bytes,
                                     int node);

}  // namespace cariama::internal

#endif  // CARIAMA_DTUTILS_INTERNAL_PAGE_QUERY_H_
