// Memory on superpages, placed on a NUMA node, that peers of the host can map.
//
//   auto memory = Superpage::obtain({.bytes = size_t{1} << 30, .numa_node = 0});
//   domain->register_memory(memory->source(), Access::kAll);
//   page_kind_name(memory->page_kind());  // the kind of page that the kernel provided
//
// A request is met as well as the machine permits: 1 GiB pages → 2 MiB → transparent → base pages,
// and on the requested node → anywhere. Locality has priority: a smaller page on the right node is
// preferred to a larger one elsewhere. Each step down is taken automatically and reported once per
// process with its remedy (diagnostics.h). A step counts only if the kernel confirms it: the kind
// of page is read from /proc/self/smaps, the node from move_pages(2), because return codes are not
// reliable (madvise(2) accepts MADV_HUGEPAGE on a memfd and does nothing unless shmem_enabled
// allows it).
//
// All pages are populated when they are mapped. There are three reasons: a registration with a card
// pins them anyway, the kind of page is visible only after population, and a missing huge page is
// an error code here but would be a SIGBUS later.
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

// Kinds of pages in the order of preference.
enum class PageKind : uint8_t {
  k1GiB,         // hugetlb
  k2MiB,         // hugetlb
  kTransparent,  // base pages, all of which the kernel joined to huge ones
  kBase,         // 4 KiB on most machines
};
inline constexpr size_t kPageKinds = 4;

// "1 GiB", "2 MiB", "transparent", "base".
[[nodiscard]] CARIAMA_DTUTILS_EXPORT std::string_view page_kind_name(PageKind kind);

inline constexpr int kAnyNode = -1;

struct SuperpageRequest {
  // Rounded up to base pages. A kind of page is tried only if its size divides this number
  // (transparent: only if the number is at least 2 MiB), so round up where waste does not matter.
  size_t bytes = 0;
  int numa_node = kAnyNode;
  // true: backed by a memfd that is sealed against shrinking and growing, so that peers of the host
  // can map it and cannot truncate it. false: anonymous memory, which gets transparent huge pages
  // more often.
  bool shareable = true;
  // The largest kind of page to try; larger kinds produce no diagnostic.
  PageKind largest_page = PageKind::k1GiB;
};

// Owns the memory and its descriptor. Movable. Otherwise immutable, so thread-safe.
class CARIAMA_DTUTILS_EXPORT Superpage {
 public:
  // Maps and populates the memory. Blocks while the kernel clears the pages (about 0.1 s per GiB
  // with huge pages, more with small ones). There is an inaccessible guard page in front of the
  // memory and one behind it; an access to them raises SIGSEGV. Errors: INVALID_ARGUMENT (no bytes,
  // no such node), RESOURCE_EXHAUSTED (not even base pages).
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
  // Returns the node on which every page was found, if a node was requested and met; else kAnyNode.
  [[nodiscard]] int numa_node() const { return numa_node_; }

  // Returns the argument for ProtectionDomain::register_memory.
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
  // Tries to map with one kind of page. Returns false on failure and sets errno.
  bool map(const SuperpageRequest& request, PageKind kind, int numa_node);

  std::byte* address_ = nullptr;  // a guard page is in front of it, and one behind
  size_t length_ = 0;
  int descriptor_ = -1;
  PageKind page_kind_ = PageKind::kBase;
  int numa_node_ = kAnyNode;
};

}  // namespace cariama

#endif  // CARIAMA_DTUTILS_ALLOCATORS_SUPERPAGES_H_
