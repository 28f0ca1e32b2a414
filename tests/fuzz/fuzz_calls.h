// Shared by the fuzzers that run calls.
#ifndef CARIAMA_TESTS_FUZZ_FUZZ_CALLS_H_
#define CARIAMA_TESTS_FUZZ_FUZZ_CALLS_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "dsfabric/function_table.h"

namespace cariama {

// Makes every word of `message` that could be the header of a call to a function of this program
// name one of `functions` instead. The table also holds the functions of all layers that are
// linked. These read pointers from their closures, and no process of a job forges closures, so
// random ones are only for functions without pointers. Ids that name no function stay. Requires:
// the table is built.
inline void call_only(std::span<const FunctionId> functions, std::span<std::byte> message) {
  const uint32_t known = FunctionTable::fingerprint().functions;
  for (size_t at = 0; at + 8 <= message.size(); at += 8) {
    uint32_t id;
    std::memcpy(&id, message.data() + at, sizeof id);
    if (id == 0 || id > known) continue;
    id = functions[(id - 1) % functions.size()].value;
    std::memcpy(message.data() + at, &id, sizeof id);
  }
}

}  // namespace cariama

#endif  // CARIAMA_TESTS_FUZZ_FUZZ_CALLS_H_
