#include "tasks/internal/identity.h"

#include <link.h>
#include <sys/auxv.h>

#include <cstdio>
#include <cstring>
#include <typeinfo>

#include "dtutils/internal/build_id.h"
#include "tasks/context.h"

#if defined(__aarch64__)
extern "C" uintptr_t __stack_chk_guard;
#endif

namespace cariama::tasks {
namespace {

// FNV-1a hashes of the objects that were loaded at program start. Plug-ins that are loaded later
// may differ between workers; frames that migrate do not contain pointers into them.
struct Digests {
  uint64_t libraries = 0xcbf29ce484222325;  // file names and load addresses
  uint64_t builds = 0xcbf29ce484222325;     // build ids, of the program too
};

void add(uint64_t& hash, uint8_t byte) { hash = (hash ^ byte) * 0x100000001b3; }

// Adds one loaded object. Skips the kernel's vDSO: frames of tasks do not contain pointers into it.
int add_object(dl_phdr_info* info, size_t, void* data) {
  auto& digests = *static_cast<Digests*>(data);
  const char* const slash = std::strrchr(info->dlpi_name, '/');
  const bool program = info->dlpi_name[0] == '\0';
  if (slash == nullptr && !program) return 0;
  for (const uint8_t byte : internal::build_id_of(*info).value_or(internal::BuildId{})) {
    add(digests.builds, byte);
  }
  if (program) return 0;
  for (const char* at = slash; *at != '\0'; ++at) {
    add(digests.libraries, static_cast<uint8_t>(*at));
  }
  for (uint64_t place = info->dlpi_addr; place != 0; place >>= 8) {
    add(digests.libraries, static_cast<uint8_t>(place & 0xff));
  }
  return 0;
}

const Digests kObjectsAtStart = [] {
  Digests digests;
  dl_iterate_phdr(add_object, &digests);
  return digests;
}();

// True if the context switch switches the canary, so that processes may have different canaries.
#if defined(__x86_64__)
constexpr bool kCanaryIsSwitched = true;
#else
constexpr bool kCanaryIsSwitched = false;
#endif

#if defined(__aarch64__)
// Returns a digest of addresses that are signed with the two keys of this process with which
// compilers sign return addresses. A signature has as few as 7 bits, hence several addresses. The
// instructions change nothing on processors without pointer authentication.
uint64_t digest_of_keys() {
  uint64_t digest = 0xcbf29ce484222325;
  for (uint64_t context = 0; context < 16; ++context) {
    uint64_t a = 0;
    uint64_t b = 0;
    asm("mov x16, %2\n\t"
        "mov x17, xzr\n\t"
        "hint #8\n\t"  // pacia1716: signs x17 with key A and the context x16
        "mov %0, x17\n\t"
        "mov x17, xzr\n\t"
        "hint #10\n\t"  // pacib1716: with key B
        "mov %1, x17"
        : "=&r"(a), "=&r"(b)
        : "r"(context)
        : "x16", "x17");
    for (uint64_t word : {a, b}) {
      for (; word != 0; word >>= 8) add(digest, static_cast<uint8_t>(word & 0xff));
      add(digest, 0);
    }
  }
  return digest;
}
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
  identity.keys = digest_of_keys();
  asm("mrs %0, tpidr_el0" : "=r"(identity.thread));
#endif
  identity.libraries = kObjectsAtStart.libraries;
  identity.builds = kObjectsAtStart.builds;
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
      // The first row: other rows often differ as well, but their remedy does not help.
      {mine.builds, theirs.builds, "the build id of the program or of a shared library",
       "start the same build of the program, with the same build of each library, in every process",
       true},
      {mine.program, theirs.program, "the address of the program", fork},
      {mine.code, theirs.code, "the address of the task library", fork},
      {mine.c_library, theirs.c_library, "the address of the C library", fork},
      {mine.cpp_runtime, theirs.cpp_runtime, "the address of the C++ runtime", fork},
      {mine.libraries, theirs.libraries, "the address or the number of shared libraries", fork,
       true},
      {kCanaryIsSwitched ? 0 : mine.canary, kCanaryIsSwitched ? 0 : theirs.canary,
       "the canary of the stack protector", fork, true},
      {mine.keys, theirs.keys, "the keys of pointer authentication",
       "fork all workers from one process", true},
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
