// JSON text for the output of programs (--json) and for files (statistics.h, trace.h).
#ifndef CARIAMA_DTUTILS_INTERNAL_JSON_H_
#define CARIAMA_DTUTILS_INTERNAL_JSON_H_

#include <string>
#include <string_view>

#include "dtutils/export.h"

namespace cariama {

// Returns `text` as a JSON string, with its quotes. The result is always valid: control characters
// are escaped, and bytes that are not UTF-8 (RFC 3629) become U+FFFD. Thread-safe.
[[nodiscard]] CARIAMA_DTUTILS_EXPORT std::string json_string(std::string_view text);

}  // namespace cariama

#endif  // CARIAMA_DTUTILS_INTERNAL_JSON_H_
