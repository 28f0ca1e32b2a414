// A flag for OperationsBy (dht/table_options.h): auto, initiator or owner.
#ifndef CARIAMA_BENCH_SUPPORT_OPERATIONS_FLAG_H_
#define CARIAMA_BENCH_SUPPORT_OPERATIONS_FLAG_H_

#include <string>
#include <string_view>

#include "absl/flags/marshalling.h"
#include "absl/strings/string_view.h"
#include "dht/table_options.h"

namespace cariama {

// Found by Abseil through the namespace of the type.
inline bool AbslParseFlag(absl::string_view text, OperationsBy* by, std::string* error) {
  for (const OperationsBy one : kAllOperationsBy) {
    if (std::string_view(text.data(), text.size()) != operations_by_name(one)) continue;
    *by = one;
    return true;
  }
  *error = "choose auto, initiator or owner";
  return false;
}
inline std::string AbslUnparseFlag(OperationsBy by) { return std::string(operations_by_name(by)); }

}  // namespace cariama

#endif  // CARIAMA_BENCH_SUPPORT_OPERATIONS_FLAG_H_
