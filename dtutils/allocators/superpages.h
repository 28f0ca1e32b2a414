// Memory on superpages, placed on a NUMA node, that peers of the host can map.
//
//   auto memory = Superpage::obtain({.bytes = size_t{1} << 30, .numa_node = 0});
//   domain->register_memory(memory->source(), Access::kAll);
//   page_kind_name(memory->page_kind());  // what the kernel really gave
//
// A request is met as well as the machine can: 1 GiB pages → 2 MiB → transparent → base pages, on
// the node → anywhere. Locality goes first: a smaller page on the right node is preferred to a
// larger one elsewhere. Each step down is taken automatically and reported once per process with
// its remedy (diagnostics.h). A step counts only if the kernel shows it: the kind of page is read
// from /proc/self/smaps, the node from move_pages(2), because return codes do not tell (madvise(2)
// accepts MADV_HUGEPAGE on a memfd and does nothing unless shmem_enabled allows it).
//
// All pages are populated at once: a registration with a card pins them anyway, what the kernel
// gave is visible only then, and a huge page that is missing is an error code here, a SIGBUS later.
#ifndef CARIAMA_DTUTILS_ALLOCATORS_SUPERPAGES_H_
#define CARIAMA_DTUTILS_ALLOCATORS_SUPERPAGES_H_

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "dtutils/export.h"
#include "dtutils/memory.h"

namespace cariama {

// In the order of preference.
enum class PageKind : uint8_t {
  k1GiB,         // hugetlb
  k2MiB,         // hugetlb
  kTransparent,  // base pages that the kernel joined to huge ones, all of them
  kBase,         // 4 KiB on most machines
};
inline constexpr size_t kPageKinds = 4;

// "1 GiB", "2 MiB", "transparent", "base".
[[nodiscard]] CARIAMA_DTUTILS_EXPORT std::string_view page_kind_name(PageKind kind);

inline constexpr int kAnyNode = -1;

struct SuperpageRequest {
  // Rounded up to base pages. A kind of page is tried only if its size divides this (transparent:
  // if it is 2 MiB at least), so round up where waste does not matter.
  size_t bytes = 0;
  int numa_node = kAnyNode;
  // Backed by a memfd that is sealed against shrinking and growing, so that peers of the host can
  // map it and cannot take it away. Otherwise anonymous, which gets transparent huge pages more
  // often.
  bool shareable = true;
  // The largest kind to try; nothing is reported about larger ones.
  PageKind largest_page = PageKind::k1GiB;
};

// Owns the memory and its descriptor. Movable. Immutable otherwise, so thread-safe.
class CARIAMA_DTUTILS_EXPORT Superpage {
 public:
  // Maps and populates. Blocks while the kernel clears the pages (about 0.1 s per GiB with huge
  // pages, more with small ones). Base pages surround the memory that fault when touched. Errors:
  // INVALID_ARGUMENT (no bytes, no such node), RESOURCE_EXHAUSTED (not even base pages).
  [[nodiscard]] static absl::StatusOr<Superpage> obtain(const SuperpageRequest& request);

  Superpage(Superpage&& other) noexcept { swap(other); }
  Superpage& operator=(Superpage&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Superpage();

  [[nodiscard]] std::byte* address() const { return address_; }
  [[nodiscard]] size_t length() const { return length_; }       // bytes
  [[nodiscard]] int descriptor() const { return descriptor_; }  // -1 if not shareable
  [[nodiscard]] PageKind page_kind() const { return page_kind_; }
  // The node on which every page was seen, if one was requested and met; else kAnyNode.
  [[nodiscard]] int numa_node() const { return numa_node_; }

  // What ProtectionDomain::register_memory takes.
  [[nodiscard]] MemorySource source() const { return {address_, length_, descriptor_, 0}; }

 private:
  Superpage() = default;
  void swap(Superpage& other) {
    std::swap(address_, other.address_);
    std::swap(length_, other.length_);
    std::swap(descriptor_, other.descriptor_);
    std::swap(page_kind_, other.page_kind_);
    std::swap(numa_node_, other.numa_node_);
  }
  // One attempt with one kind of page. False with errno.
  bool map(const SuperpageRequest& request, PageKind kind, int numa_node);

  std::byte* address_ = nullptr;  // a guard page is in front of it, and one behind
  size_t length_ = 0;
  int descriptor_ = -1;
  PageKind page_kind_ = PageKind::kBase;
  int numa_node_ = kAnyNode;
};

}  // namespace cariama

#endif  // CARIAMA_DTUTILS_ALLOCATORS_SUPERPAGES_H_
