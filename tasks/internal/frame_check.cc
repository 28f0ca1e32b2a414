// TaskOptions::check_frames: searches frames that are about to be made public for pointers into the
// private heap of this process.
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>

#include "tasks/internal/function_name.h"
#include "tasks/internal/worker.h"

namespace cariama::tasks {
namespace {

// The address range of the C library's main heap. Blocks of 128 KiB and more, which the C library
// maps separately, are not included.
struct Heap {
  uint64_t begin = 0;
  uint64_t end = 0;
};
// Returns 0 if the process has none.
[[maybe_unused]] uint64_t begin_of_heap() {
  std::ifstream maps("/proc/self/maps");
  std::string line;
  while (std::getline(maps, line)) {
    unsigned long long begin = 0;
    if (line.find("[heap]") != std::string::npos && sscanf(line.c_str(), "%llx-", &begin) == 1) {
      return begin;  // the first line: a part that has grown since a fork has a line of its own
    }
  }
  return 0;
}
Heap find_heap() {
  // The sanitizers' allocators use fixed address ranges.
#if defined(__SANITIZE_ADDRESS__) && defined(__x86_64__)
  return {0x600000000000, 0x640000000000};
#elif defined(__SANITIZE_THREAD__) && defined(__x86_64__)
  return {0x7b0000000000, 0x7c0000000000};
#endif
  // Only the end of the heap changes.
  static uint64_t begin = 0;
  if (begin == 0) begin = begin_of_heap();
  if (begin == 0) return {};  // nothing has been allocated
  return {begin, reinterpret_cast<uint64_t>(sbrk(0))};
}

// Returns the word at `address`. Not instrumented: it also reads the red zones that
// AddressSanitizer puts between locals.
#if defined(__SANITIZE_ADDRESS__)
__attribute__((no_sanitize_address, noinline))
#endif
uint64_t
word_at(uint64_t address) {
  return *reinterpret_cast<const volatile uint64_t*>(address);
}

}  // namespace

// Reports the first pointer into the heap in the frames [begin, end), once for each function. The
// word can be a remnant of an earlier call, so this is only a hint and does not end the program.
void Worker::check_frames(uint64_t begin, uint64_t end) {
  const uint64_t code = word_at(begin + kReturnAddressOffset);
  if (reported_frames_.contains(code)) return;
  const Heap heap = find_heap();
  for (uint64_t at = begin; at + sizeof(uint64_t) <= end; at += sizeof(uint64_t)) {
    const uint64_t word = word_at(at);
    if (word < heap.begin || word >= heap.end) continue;
    reported_frames_.insert(code);
    std::fprintf(stderr,
                 "cariama tasks: rank %d: frames that can be stolen contain the pointer %#llx, in "
                 "this process's private heap, %llu bytes above the fork in %s: a local must not "
                 "own memory across a spawn or join; use values or global pointers\n",
                 rank(), static_cast<unsigned long long>(word),
                 static_cast<unsigned long long>(at - begin), function_at(code).c_str());
    return;
  }
}

}  // namespace cariama::tasks
