// The version of the library.
//
//   std::printf("built with Cariama %s\n", std::string(cariama::version()).c_str());
#ifndef CARIAMA_DTUTILS_VERSION_H_
#define CARIAMA_DTUTILS_VERSION_H_

#include <string_view>

#include "dtutils/export.h"

namespace cariama {

// Returns the version of the library that the process uses, for example "0.1.0". The programs of
// the project print it for --version. Thread-safe.
[[nodiscard]] CARIAMA_DTUTILS_EXPORT std::string_view version();

}  // namespace cariama

#endif  // CARIAMA_DTUTILS_VERSION_H_
