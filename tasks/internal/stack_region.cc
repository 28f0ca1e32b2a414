#include "tasks/internal/stack_region.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <vector>

#include "absl/strings/str_format.h"
#include "dtutils/error.h"
#include "dtutils/internal/shared_file.h"

namespace cariama::tasks {
namespace {

// Returns the line of /proc/self/maps for a mapping that overlaps the range, or "something".
std::string occupant(uintptr_t address, size_t bytes) {
  std::ifstream maps("/proc/self/maps");
  std::string line;
  while (std::getline(maps, line)) {
    unsigned long long begin = 0;
    unsigned long long end = 0;
    if (sscanf(line.c_str(), "%llx-%llx", &begin, &end) != 2) continue;
    if (begin < address + bytes && end > address) return line;
  }
  return "something";
}

absl::Status map_error(int error, uintptr_t address, size_t bytes, const char* what) {
  const std::string range = absl::StrFormat("%s (%d bytes at %#x)", what, bytes, address);
  if (error == EEXIST) {
    return make_error(absl::StatusCode::kAlreadyExists, ErrorScope::kProcess,
                      range + " is taken by: " + occupant(address, bytes),
                      "end the other user of it, or start the program again");
  }
  return make_errno_error(error, ErrorScope::kProcess, "cannot map " + range,
                          "look at ulimit -v and at the memory limit of the control group");
}

}  // namespace

absl::StatusOr<int> map_shared_at(uintptr_t address, size_t bytes, const char* what) {
  const int descriptor = internal::create_shared_file("cariama-tasks", bytes);
  if (descriptor < 0) {
    const int error = errno;
    return make_errno_error(
        error, ErrorScope::kProcess,
        absl::StrFormat("creating %d bytes of shared memory for %s", bytes, what),
        internal::shared_file_remedy(error, "free memory"));
  }
  void* const wanted = reinterpret_cast<void*>(address);
  void* const found = mmap(wanted, bytes, PROT_READ | PROT_WRITE,
                           MAP_SHARED | MAP_NORESERVE | MAP_FIXED_NOREPLACE, descriptor, 0);
  if (found == wanted) return descriptor;
  int error = errno;
  if (found != MAP_FAILED) {  // kernels before 4.17 treat the address as a hint
    munmap(found, bytes);
    error = EEXIST;
  }
  close(descriptor);
  return map_error(error, address, bytes, what);
}

absl::StatusOr<std::unique_ptr<StackRegion>> StackRegion::create(size_t stack_bytes,
                                                                 size_t tail_bytes) {
  if (stack_bytes == 0 || stack_bytes > kMostStackBytes ||
      tail_bytes > kMostStackBytes - stack_bytes) {
    return make_error(
        absl::StatusCode::kInvalidArgument, ErrorScope::kProcess,
        absl::StrFormat("a uni-address region of %d + %d bytes", stack_bytes, tail_bytes),
        absl::StrFormat("give it from 1 byte to %d GiB", kMostStackBytes >> 30));
  }
  std::unique_ptr<StackRegion> region(new StackRegion);
  const size_t stack = whole_pages(stack_bytes);
  const size_t tail = whole_pages(tail_bytes);
  void* const guard = reinterpret_cast<void*>(kRegionAddress);
  void* const found =
      mmap(guard, kStackGuardBytes, PROT_NONE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
  if (found != guard) {
    const int error = found == MAP_FAILED ? errno : EEXIST;
    if (found != MAP_FAILED) munmap(found, kStackGuardBytes);
    return map_error(error, kRegionAddress, kStackGuardBytes, "the guard of the uni-address stack");
  }
  absl::StatusOr<int> descriptor =
      map_shared_at(kRegionAddress + kStackGuardBytes, stack + tail, "the uni-address region");
  if (!descriptor.ok()) {
    munmap(guard, kStackGuardBytes);
    return descriptor.status();
  }
  region->descriptor_ = *descriptor;
  region->bottom_ = reinterpret_cast<std::byte*>(kRegionAddress + kStackGuardBytes);
  region->stack_bytes_ = stack;
  region->tail_bytes_ = tail;
  return region;
}

StackRegion::~StackRegion() {
  munmap(reinterpret_cast<void*>(kRegionAddress), kStackGuardBytes + stack_bytes_ + tail_bytes_);
  close(descriptor_);
}

MemorySource StackRegion::source() const {
  return {bottom_, stack_bytes_ + tail_bytes_, descriptor_, 0};
}

size_t StackRegion::high_water() const {
  constexpr size_t kPiece = size_t{16} << 20;
  std::vector<unsigned char> pages(std::min(kPiece, stack_bytes_) / kStackPage);
  for (size_t offset = 0; offset < stack_bytes_; offset += kPiece) {
    const size_t bytes = std::min(kPiece, stack_bytes_ - offset);
    if (mincore(bottom_ + offset, bytes, pages.data()) != 0) return 0;
    const auto end = pages.begin() + static_cast<std::ptrdiff_t>(bytes / kStackPage);
    const auto lowest = std::find_if(pages.begin(), end, [](auto page) { return page & 1; });
    if (lowest == end) continue;
    // Pages are initially zero: search the lowest resident page for a word that is not 0.
    const std::byte* page =
        bottom_ + offset + static_cast<size_t>(lowest - pages.begin()) * kStackPage;
    const auto* const words = reinterpret_cast<const uint64_t*>(page);
    const auto* const used = std::find_if(words, words + kStackPage / sizeof(uint64_t),
                                          [](uint64_t word) { return word != 0; });
    return static_cast<size_t>(top() - reinterpret_cast<const std::byte*>(used));
  }
  return 0;
}

}  // namespace cariama::tasks
