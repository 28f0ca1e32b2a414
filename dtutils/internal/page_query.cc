#include "dtutils/internal/page_query.h"

#include <numaif.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <string>
#include <string_view>

namespace cariama::internal {

std::optional<MappingPages> find_mapping(std::istream& smaps, uintptr_t address) {
  std::optional<MappingPages> found;
  std::string line;
  while (std::getline(smaps, line)) {
    unsigned long start = 0;
    unsigned long end = 0;
    char permissions[5];
    // "7f690ac00000-7f690b000000 rw-s ..." starts an entry; its fields have the form "Name:   123
    // kB".
    if (std::sscanf(line.c_str(), "%lx-%lx %4s", &start, &end, permissions) == 3) {
      if (found) return found;
      if (start <= address && address < end) {
        found.emplace();
        found->start = start;
        found->end = end;
      }
      continue;
    }
    if (!found) continue;
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    unsigned long long kilobytes = 0;
    if (std::sscanf(line.c_str() + colon + 1, "%llu kB", &kilobytes) != 1) continue;
    const std::string_view name = std::string_view(line).substr(0, colon);
    if (name == "KernelPageSize") found->kernel_page = kilobytes * 1024;
    if (name == "AnonHugePages") found->anonymous_huge = kilobytes * 1024;
    if (name == "ShmemPmdMapped") found->shared_huge_mapped = kilobytes * 1024;
  }
  return found;
}

std::optional<MappingPages> query_mapping(const void* address) {
  std::ifstream smaps("/proc/self/smaps");
  return find_mapping(smaps, reinterpret_cast<uintptr_t>(address));
}

bool all_pages_on_node(const std::byte* address, size_t length, size_t page_bytes, int node) {
  static constexpr size_t kBatch = 512;
  std::array<void*, kBatch> pages;
  std::array<int, kBatch> status;
  for (size_t offset = 0; offset < length;) {
    size_t count = 0;
    for (; count < kBatch && offset < length; ++count, offset += page_bytes) {
      pages[count] = const_cast<std::byte*>(address) + offset;
    }
    if (move_pages(0, count, pages.data(), nullptr, status.data(), 0) != 0) return false;
    if (!std::all_of(status.begin(), status.begin() + static_cast<std::ptrdiff_t>(count),
                     [node](int where) { return where == node; })) {
      return false;
    }
  }
  return true;
}

}  // namespace cariama::internal
