#include "dtutils/allocators/superpages.h"

#include <linux/memfd.h>
#include <linux/mman.h>
#include <numaif.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <climits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtutils/diagnostics.h"
#include "dtutils/error.h"
#include "dtutils/internal/byte_size.h"
#include "dtutils/internal/huge_pages.h"
#include "dtutils/internal/page_query.h"
#include "dtutils/internal/shared_file.h"
#include "dtutils/internal/sysfs.h"
#include "dtutils/system_info.h"

namespace cariama {
namespace {

using internal::base_page;
using internal::kGiB;
using internal::kHugePage;
using internal::round_up;

size_t page_bytes(PageKind kind) {
  switch (kind) {
    case PageKind::k1GiB:
      return kGiB;
    case PageKind::k2MiB:
    case PageKind::kTransparent:
      return kHugePage;
    case PageKind::kBase:
      break;
  }
  return base_page();
}

bool is_hugetlb(PageKind kind) { return kind == PageKind::k1GiB || kind == PageKind::k2MiB; }

// Returns true if this kind of page can serve the length. If it cannot, skipping the kind is no
// degradation.
bool fits(PageKind kind, size_t length) {
  return kind == PageKind::kTransparent ? length >= kHugePage : length % page_bytes(kind) == 0;
}

void unmap(uintptr_t begin, uintptr_t end) {
  if (begin != end) munmap(reinterpret_cast<void*>(begin), end - begin);
}

// Maps `length` bytes at a multiple of `alignment`, between two inaccessible guard pages. Returns
// nullptr on failure and sets errno.
//
// The kernel aligns only hugetlb mappings, so this function first reserves a larger range to find
// an aligned place, and unmaps that place before it maps the memory there. It does not use
// MAP_FIXED over the reservation: if that mapping fails, as it does without free huge pages, it
// leaves a hole where another thread may map memory before the reservation is unmapped. Another
// thread may also take the place between unmapping and mapping; then MAP_FIXED_NOREPLACE fails and
// the loop tries again.
std::byte* map_guarded(size_t length, size_t alignment, int flags, int descriptor) {
  constexpr int kAttempts = 100;
  const size_t guard = base_page();
  const size_t reserved = length + alignment + 2 * guard;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    void* const range =
        mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == MAP_FAILED) return nullptr;
    const auto begin = reinterpret_cast<uintptr_t>(range);
    const uintptr_t start = round_up(begin + guard, alignment);
    const uintptr_t end = start + length;
    unmap(begin, start - guard);
    unmap(start, end);
    unmap(end + guard, begin + reserved);
    void* const mapped = mmap(reinterpret_cast<void*>(start), length, PROT_READ | PROT_WRITE,
                              flags | MAP_FIXED_NOREPLACE, descriptor, 0);
    if (reinterpret_cast<uintptr_t>(mapped) == start) return static_cast<std::byte*>(mapped);
    const int error = mapped == MAP_FAILED ? errno : EEXIST;
    // Before Linux 4.17 the kernel treats the address as a hint.
    if (mapped != MAP_FAILED) munmap(mapped, length);
    unmap(start - guard, start);
    unmap(end, end + guard);
    errno = error;
    if (error != EEXIST) return nullptr;
  }
  return nullptr;
}

// Sets the NUMA policy for pages that are not present yet. Strict for hugetlb: a missing page is
// then an error of the populating call. Base pages only prefer the node: with a strict policy the
// kernel could kill processes when the node is full.
bool place(std::byte* address, size_t length, int node, bool strict) {
  constexpr size_t kBits = sizeof(unsigned long) * CHAR_BIT;
  std::vector<unsigned long> mask(static_cast<size_t>(node) / kBits + 1, 0);
  mask[static_cast<size_t>(node) / kBits] |= 1UL << (static_cast<size_t>(node) % kBits);
  // The kernel uses one bit less than the given number, so pass one more.
  return mbind(address, length, strict ? MPOL_BIND : MPOL_PREFERRED, mask.data(),
               mask.size() * kBits + 1, 0) == 0;
}

// Makes every page present. Returns false and sets errno if the kernel has no page: an exhausted
// hugetlb pool is detected here, instead of by a SIGBUS on first touch.
bool populate(std::byte* address, size_t length, bool hugetlb) {
  int result;
  do {
    result = madvise(address, length, MADV_POPULATE_WRITE);
  } while (result != 0 && (errno == EINTR || errno == EAGAIN));
  if (result == 0) return true;
  // Before Linux 5.14 only an access populates a page, and an access is safe on base pages only.
  if (errno != EINVAL || hugetlb) return false;
  for (size_t offset = 0; offset < length; offset += base_page()) {
    *reinterpret_cast<volatile std::byte*>(address + offset) = std::byte{0};
  }
  return true;
}

// Requests huge pages for shared memory of which no page is present yet. In contrast to
// MADV_HUGEPAGE, MADV_COLLAPSE does not depend on shmem_enabled, whose default is "never". It fails
// for a range without any page, and fills the rest of a range that has one: so it takes less time
// than populating small pages and collapsing them. Stops at the first failure, which is immediate
// before Linux 6.1; populate() makes the remaining pages present.
void collapse(std::byte* address, size_t length) {
  const size_t whole = length / kHugePage * kHugePage;
  // A few large calls: each begins with work on all CPUs.
  constexpr size_t kPart = 64 * kHugePage;
  for (size_t start = 0; start < whole; start += kPart) {
    const size_t bytes = std::min(kPart, whole - start);
    for (size_t offset = 0; offset < bytes; offset += kHugePage) {
      if (!populate(address + start + offset, base_page(), /*hugetlb=*/false)) return;
    }
    // EAGAIN: a page was locked or isolated at the moment.
    int attempts = 3;
    while (madvise(address + start, bytes, MADV_COLLAPSE) != 0) {
      if ((errno != EAGAIN && errno != EINTR) || --attempts == 0) return;
    }
  }
}

PageKind observed_kind(const std::byte* address, size_t length) {
  const std::optional<internal::MappingPages> mapping = internal::query_mapping(address);
  if (!mapping) return PageKind::kBase;
  if (mapping->kernel_page == kGiB) return PageKind::k1GiB;
  if (mapping->kernel_page == kHugePage) return PageKind::k2MiB;
  // The counters cover only this mapping: guard pages keep the kernel from merging it with a
  // neighbour.
  const size_t whole = length / kHugePage * kHugePage;
  const uint64_t huge = std::max(mapping->anonymous_huge, mapping->shared_huge_mapped);
  return whole > 0 && huge >= whole ? PageKind::kTransparent : PageKind::kBase;
}

// Returns the folder of the pool of huge pages of one size, of a node or of the machine.
std::string pool_folder(int node, size_t bytes) {
  const std::string pool = absl::StrCat("hugepages/hugepages-", bytes / 1024, "kB/");
  return node == kAnyNode ? absl::StrCat("/sys/kernel/mm/", pool)
                          : absl::StrCat("/sys/devices/system/node/node", node, "/", pool);
}

// Returns the remedy that makes `length` more bytes free in the pool, counting the pages in use. A
// program maps memory more than once, so the remedy is a pool with 1 GiB free at least.
std::string raise_pool(int node, PageKind kind, size_t length) {
  const size_t bytes = page_bytes(kind);
  const std::string folder = pool_folder(node, bytes);
  const uint64_t total = internal::read_number(folder + "nr_hugepages").value_or(0);
  const uint64_t free = internal::read_number(folder + "free_hugepages").value_or(0);
  const uint64_t in_use = total - std::min(total, free);
  return absl::StrCat("as root: echo ", in_use + std::max(length, kGiB) / bytes, " > ", folder,
                      "nr_hugepages");
}

// Reports that the memory of `request` has pages of kind `used`, because pages of the kinds
// `missing` were not available. Reports one diagnostic for all kinds, because one remedy is
// sufficient.
void report_smaller_pages(const SuperpageRequest& request, size_t length,
                          const std::vector<PageKind>& missing, PageKind used) {
  const auto lacks = [&missing](PageKind kind) {
    return std::find(missing.begin(), missing.end(), kind) != missing.end();
  };
  const std::string memory = absl::StrCat(
      request.shareable ? "shared" : "private", " memory",
      request.numa_node == kAnyNode ? "" : absl::StrCat(" on NUMA node ", request.numa_node));
  std::string what = absl::StrCat("the kernel gives no transparent huge pages to ", memory);
  std::vector<std::string> remedies;
  if (lacks(PageKind::k1GiB) || lacks(PageKind::k2MiB)) {
    what =
        absl::StrCat("too few free ",
                     absl::StrCat(lacks(PageKind::k1GiB) ? "1 GiB" : "",
                                  lacks(PageKind::k1GiB) && lacks(PageKind::k2MiB) ? " and " : "",
                                  lacks(PageKind::k2MiB) ? "2 MiB" : ""),
                     " pages for ", internal::format_bytes(length), " of ", memory);
    const PageKind pool = lacks(PageKind::k2MiB) ? PageKind::k2MiB : PageKind::k1GiB;
    remedies.push_back(raise_pool(request.numa_node, pool, length));
    if (pool == PageKind::k1GiB) remedies.emplace_back("boot with hugepagesz=1G hugepages=N");
  }
  if (lacks(PageKind::kTransparent)) {
    const std::string file = absl::StrCat("/sys/kernel/mm/transparent_hugepage/",
                                          request.shareable ? "shmem_enabled" : "enabled");
    const std::string chosen = internal::chosen_word(internal::read_text(file).value_or(""));
    if (chosen == "never" || chosen == "deny") {
      remedies.push_back(absl::StrCat(remedies.empty() ? "as root: " : "", "echo ",
                                      request.shareable ? "advise" : "madvise", " > ", file));
    } else if (remedies.empty()) {  // memory is fragmented
      remedies.push_back(raise_pool(request.numa_node, PageKind::k2MiB, length));
    }
  }
  report_once(absl::StrCat("pages.", std::string(page_kind_name(used))),
              absl::StrCat(what, ", using ",
                           used == PageKind::kTransparent ? "transparent huge"
                           : used == PageKind::k2MiB      ? "2 MiB"
                                                          : internal::format_bytes(base_page()),
                           " pages"),
              absl::StrJoin(remedies, ", or "));
}

}  // namespace

std::string_view page_kind_name(PageKind kind) {
  switch (kind) {
    case PageKind::k1GiB:
      return "1 GiB";
    case PageKind::k2MiB:
      return "2 MiB";
    case PageKind::kTransparent:
      return "transparent";
    case PageKind::kBase:
      break;
  }
  return "base";
}

bool Superpage::map(const SuperpageRequest& request, PageKind kind, int numa_node) {
  *this = Superpage();
  length_ = round_up(request.bytes, base_page());
  int map_flags = 0;
  if (request.shareable) {
    unsigned flags = 0;
    if (is_hugetlb(kind)) {
      flags = MFD_HUGETLB | (kind == PageKind::k1GiB ? MFD_HUGE_1GB : MFD_HUGE_2MB);
    }
    descriptor_ = internal::create_shared_file("cariama", length_, flags);
    if (descriptor_ < 0) return false;
    map_flags = MAP_SHARED;
  } else {
    map_flags = MAP_PRIVATE | MAP_ANONYMOUS;
    if (is_hugetlb(kind)) {
      map_flags |= MAP_HUGETLB | (kind == PageKind::k1GiB ? static_cast<int>(MAP_HUGE_1GB)
                                                          : static_cast<int>(MAP_HUGE_2MB));
    }
  }

  const size_t alignment =
      kind == PageKind::k1GiB ? kGiB : std::bit_floor(std::min(length_, kHugePage));
  address_ = map_guarded(length_, alignment, map_flags, descriptor_);
  if (address_ == nullptr) return false;

  // The policy is set before the first touch, since hugetlb pages cannot be moved afterwards. If
  // the kernel refuses the policy (as with the seccomp filters of containers), pages are placed
  // anywhere, and all_pages_on_node() below detects it.
  const bool one_node = numa_nodes().size() <= 1;
  if (numa_node != kAnyNode && !one_node) {
    static_cast<void>(place(address_, length_, numa_node, is_hugetlb(kind)));
  }
  // The return code of madvise is not reliable; observed_kind() below reads smaps.
  if (kind == PageKind::kTransparent) {
    static_cast<void>(madvise(address_, length_, MADV_HUGEPAGE));
    if (request.shareable) collapse(address_, length_);
  }
  if (!populate(address_, length_, is_hugetlb(kind))) return false;

  page_kind_ = observed_kind(address_, length_);
  const size_t page = is_hugetlb(page_kind_) ? page_bytes(page_kind_) : base_page();
  if (numa_node != kAnyNode &&
      (one_node || internal::all_pages_on_node(address_, length_, page, numa_node))) {
    numa_node_ = numa_node;
  }
  return true;
}

absl::StatusOr<Superpage> Superpage::obtain(const SuperpageRequest& request) {
  if (request.bytes == 0 || request.bytes > SIZE_MAX / 4) {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                      absl::StrCat("cannot map ", request.bytes, " bytes"));
  }
  if (request.numa_node != kAnyNode && !numa_node_exists(request.numa_node)) {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                      absl::StrCat("there is no NUMA node ", request.numa_node),
                      absl::StrCat("this machine has ", numa_nodes_text()));
  }
  static constexpr std::array kKinds = {PageKind::k1GiB, PageKind::k2MiB, PageKind::kTransparent,
                                        PageKind::kBase};
  const size_t length = round_up(request.bytes, base_page());
  std::vector<PageKind> missing;
  for (const PageKind kind : kKinds) {
    if (kind < request.largest_page || !fits(kind, length)) continue;
    Superpage page;
    if (!page.map(request, kind, request.numa_node)) {
      const int error = errno;
      if (kind == PageKind::kBase) {
        return make_errno_error(
            error, ErrorScope::kProcess,
            absl::StrCat("cannot map ", internal::format_bytes(length)),
            internal::shared_file_remedy(
                error, "free memory, or raise the limits that cariama-info shows"));
      }
      missing.push_back(kind);
      continue;
    }
    if (page.page_kind_ > kind) missing.push_back(kind);
    if (!missing.empty()) report_smaller_pages(request, length, missing, page.page_kind_);
    if (page.numa_node_ != request.numa_node) {
      report_once(
          "numa",
          absl::StrCat("memory for NUMA node ", request.numa_node,
                       " could not be placed there, or the kernel does not report it, using any"),
          "free memory on the node; in a container allow mbind and move_pages "
          "(docker: --cap-add SYS_NICE)");
    }
    return page;
  }
  return make_error(absl::StatusCode::kInternal, ErrorScope::kProcess,
                    "base pages serve every length, yet none was tried");
}

Superpage::~Superpage() {
  if (address_ != nullptr) {
    const auto start = reinterpret_cast<uintptr_t>(address_);
    unmap(start - base_page(), start + length_ + base_page());
  }
  if (descriptor_ >= 0) close(descriptor_);
}

}  // namespace cariama
