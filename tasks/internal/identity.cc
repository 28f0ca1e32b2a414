#include "tasks/internal/identity.h"

#include <link.h>
#include <sys/auxv.h>

#include <cstdio>
#include <cstring>
#include <typeinfo>

#include "tasks/context.h"

#if defined(__aarch64__)
extern "C" uintptr_t __stack_chk_guard;
#endif

namespace cariama::tasks {
namespace {

// Adds the file name and the load address of one loaded object to an FNV-1a hash. Skips objects
// without a file (the kernel's vDSO): frames of tasks do not contain pointers into it.
int add_library(dl_phdr_info* info, size_t, void* digest) {
  const char* const slash = std::strrchr(info->dlpi_name, '/');
  if (slash == nullptr) return 0;
  auto& hash = *static_cast<uint64_t*>(digest);
  const auto add = [&](uint64_t byte) { hash = (hash ^ byte) * 0x100000001b3; };
  for (const char* at = slash; *at != '\0'; ++at) add(static_cast<unsigned char>(*at));
  for (uint64_t place = info->dlpi_addr; place != 0; place >>= 8) add(place & 0xff);
  return 0;
}

// Digest of the libraries that were loaded at program start. Plug-ins that are loaded later may
// differ between workers; frames that migrate do not contain pointers into them.
const uint64_t kLibrariesAtStart = [] {
  uint64_t digest = 0xcbf29ce484222325;
  dl_iterate_phdr(add_library, &digest);
  return digest;
}();

// True if the context switch switches the canary, so that processes may have different canaries.
#if defined(__x86_64__)
constexpr bool kCanaryIsSwitched = true;
#else
constexpr bool kCanaryIsSwitched = false;
#endif

}  // namespace

Identity this_identity(const TaskOptions& options) {
  Identity identity;
  identity.code = reinterpret_cast<uint64_t>(&cariama_suspend);
  identity.program = getauxval(AT_ENTRY);
  identity.c_library = reinterpret_cast<uint64_t>(&std::fopen);
  std::memcpy(&identity.cpp_runtime, static_cast<const void*>(&typeid(int)),
              sizeof identity.cpp_runtime);  // its vtable
#if defined(__x86_64__)
  asm("movq %%fs:0x28, %0" : "=r"(identity.canary));
  asm("movq %%fs:0, %0" : "=r"(identity.thread));
#elif defined(__aarch64__)
  identity.canary = __stack_chk_guard;
  asm("mrs %0, tpidr_el0" : "=r"(identity.thread));
#endif
  identity.libraries = kLibrariesAtStart;
  identity.stack_bytes = options.stack_bytes;
  identity.scheme = options.scheme == StackScheme::kIso ? options.iso_stack_bytes
                                                        : static_cast<uint64_t>(options.scheme);
  identity.deque = static_cast<uint64_t>(options.deque);
  identity.atomics = static_cast<uint64_t>(options.atomics);
  return identity;
}

std::string difference(const Identity& mine, const Identity& theirs) {
  const char* fork =
      "begin main with start_workers() (tasks/start.h), or fork all workers from one process";
  const struct {
    uint64_t mine;
    uint64_t theirs;
    const char* what;
    const char* remedy;
    bool hidden = false;
  } rows[] = {
      {mine.program, theirs.program, "the address of the program", fork},
      {mine.code, theirs.code, "the address of the task library", fork},
      {mine.c_library, theirs.c_library, "the address of the C library", fork},
      {mine.cpp_runtime, theirs.cpp_runtime, "the address of the C++ runtime", fork},
      {mine.libraries, theirs.libraries, "the address or the number of shared libraries", fork,
       true},
      {kCanaryIsSwitched ? 0 : mine.canary, kCanaryIsSwitched ? 0 : theirs.canary,
       "the canary of the stack protector", fork, true},
      {mine.thread, theirs.thread, "the address of thread-local memory", fork},
      {mine.stack_bytes, theirs.stack_bytes, "TaskOptions::stack_bytes",
       "give every worker the same options"},
      {mine.scheme, theirs.scheme, "TaskOptions::scheme or iso_stack_bytes",
       "give every worker the same options"},
      {mine.deque, theirs.deque, "TaskOptions::deque", "give every worker the same options"},
      {mine.atomics, theirs.atomics, "TaskOptions::atomics", "give every worker the same options"},
  };
  for (const auto& row : rows) {
    if (row.mine == row.theirs) continue;
    char text[320];
    if (row.hidden) {  // the values are a secret or a digest: do not print them
      std::snprintf(text, sizeof text, "%s differs: %s", row.what, row.remedy);
    } else {
      std::snprintf(text, sizeof text, "%s differs (%#llx here, %#llx there): %s", row.what,
                    static_cast<unsigned long long>(row.mine),
                    static_cast<unsigned long long>(row.theirs), row.remedy);
    }
    return text;
  }
  return "";
}

}  // namespace cariama::tasks
