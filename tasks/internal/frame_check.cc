// TaskOptions::check_frames: looks for what cannot travel in frames that are about to be made
// public.
#include <cxxabi.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "tasks/internal/scheduler.h"

namespace cariama::tasks {
namespace {

// Where the C library's first heap lies. (What it maps apart, single blocks of 128 KiB and more, is
// not looked for.)
struct Heap {
  uint64_t begin = 0;
  uint64_t end = 0;
};
Heap find_heap() {
  // The sanitizers' allocators have places of their own.
#if defined(__SANITIZE_ADDRESS__) && defined(__x86_64__)
  return {0x600000000000, 0x640000000000};
#elif defined(__SANITIZE_THREAD__) && defined(__x86_64__)
  return {0x7b0000000000, 0x7c0000000000};
#endif
  Heap heap;
  std::ifstream maps("/proc/self/maps");
  std::string line;
  while (std::getline(maps, line)) {
    unsigned long long begin = 0;
    unsigned long long end = 0;
    if (line.find("[heap]") == std::string::npos ||
        sscanf(line.c_str(), "%llx-%llx", &begin, &end) != 2) {
      continue;
    }
    // What has grown since a fork is a line of its own.
    if (heap.end != begin) heap.begin = begin;
    heap.end = end;
  }
  return heap;
}

// Between locals, too, where AddressSanitizer lets nobody read.
#if defined(__SANITIZE_ADDRESS__)
__attribute__((no_sanitize_address, noinline))
#endif
uint64_t
word_at(uint64_t address) {
  return *reinterpret_cast<const volatile uint64_t*>(address);
}

std::string name_of(uint64_t code) {
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(code), &info) == 0 || info.dli_sname == nullptr) return "";
  int status = 0;
  char* const text = abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &status);
  std::string name = status == 0 ? text : info.dli_sname;
  std::free(text);
  return name;
}

}  // namespace

// Each function is reported once. A word may be a leftover of an earlier call: this is a hint for
// people, and ends nothing.
void Worker::check_frames(uint64_t begin, uint64_t end) {
  // The saved context's last word is where the task goes on.
  const uint64_t code = word_at(begin + kContextBytes - sizeof(uint64_t));
  if (reported_frames_.contains(code)) return;
  const Heap heap = find_heap();
  for (uint64_t at = begin; at + sizeof(uint64_t) <= end; at += sizeof(uint64_t)) {
    const uint64_t word = word_at(at);
    if (word < heap.begin || word >= heap.end) continue;
    reported_frames_.insert(code);
    const std::string name = name_of(code);
    std::fprintf(stderr,
                 "cariama tasks: rank %d: frames that may be stolen hold %#llx, in this process's "
                 "private heap, %llu bytes above the fork at %#llx%s%s: values and global pointers "
                 "travel, owners of memory do not\n",
                 rank(), static_cast<unsigned long long>(word),
                 static_cast<unsigned long long>(at - begin), static_cast<unsigned long long>(code),
                 name.empty() ? "" : " in ", name.c_str());
    return;
  }
}

}  // namespace cariama::tasks
