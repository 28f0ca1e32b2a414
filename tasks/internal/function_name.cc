#include "tasks/internal/function_name.h"

#include "absl/debugging/symbolize.h"
#include "absl/strings/str_format.h"

namespace cariama::tasks {

std::string function_at(uint64_t code) {
  char name[512];
  // A return address may lie behind a function that ends with a call.
  if (absl::Symbolize(reinterpret_cast<const void*>(code - 1), name, sizeof name)) return name;
  return absl::StrFormat("the function at %#x", code);
}

}  // namespace cariama::tasks
