#include "dtutils/allocators/memory_budget.h"

#include <cstdlib>
#include <optional>

#include "absl/strings/str_cat.h"
#include "dtutils/diagnostics.h"
#include "dtutils/error.h"
#include "dtutils/internal/byte_size.h"
#include "dtutils/system_info.h"

namespace cariama {
namespace {

constexpr const char* kVariable = "CARIAMA_MEMORY_BUDGET";

uint64_t default_limit() {
  if (const char* text = std::getenv(kVariable)) {
    if (const std::optional<uint64_t> bytes = internal::parse_bytes(text)) return *bytes;
    report_once("budget.variable", absl::StrCat(kVariable, "=", text, " is not a size, ignored"),
                "write it like 4GiB, 512M or unlimited");
  }
  return usable_memory() / 2;
}

}  // namespace

MemoryBudget::MemoryBudget(uint64_t limit_bytes, std::string_view name, std::string_view remedy)
    : name_(name), remedy_(remedy), limit_(limit_bytes) {}

MemoryBudget& MemoryBudget::process() {
  // Never destroyed: allocators with static storage release bytes while the program ends.
  static auto* const instance = new MemoryBudget(
      default_limit(), "memory budget of this process",
      absl::StrCat("raise ", kVariable, " or call MemoryBudget::process().set_limit()"));
  return *instance;
}

absl::Status MemoryBudget::reserve(uint64_t bytes, uint64_t spare) {
  uint64_t used = used_.load(std::memory_order_relaxed);
  do {
    const uint64_t limit = this->limit();
    if (used > limit || bytes > limit - used || spare > limit - used - bytes) {
      return make_error(absl::StatusCode::kResourceExhausted, ErrorScope::kProcess,
                        absl::StrCat("the ", name_, " is ", internal::format_bytes(limit), ", ",
                                     internal::format_bytes(used), " are in use, ",
                                     internal::format_bytes(bytes), " more are needed",
                                     spare == 0 ? ""
                                                : absl::StrCat(", ", internal::format_bytes(spare),
                                                               " are kept free")),
                        remedy_);
    }
  } while (!used_.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));

  uint64_t peak = high_water_.load(std::memory_order_relaxed);
  while (peak < used + bytes &&
         !high_water_.compare_exchange_weak(peak, used + bytes, std::memory_order_relaxed)) {
  }
  return absl::OkStatus();
}

void MemoryBudget::release(uint64_t bytes) { used_.fetch_sub(bytes, std::memory_order_relaxed); }

}  // namespace cariama
