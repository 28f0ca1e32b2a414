// Memory files that processes share.
#ifndef CARIAMA_DTUTILS_INTERNAL_SHARED_FILE_H_
#define CARIAMA_DTUTILS_INTERNAL_SHARED_FILE_H_

#include <cstddef>
#include <string_view>

#include "dtutils/export.h"

namespace cariama::internal {

// Creates a memory file of `bytes` bytes that cannot shrink, grow, or take further seals.
// `flags`: MFD_HUGETLB and its sizes, or 0. Returns the descriptor, which exec closes, or -1, with
// the error in errno. A file beyond ulimit -f is EFBIG, not a SIGXFSZ that ends the process.
// Thread-safe.
[[nodiscard]] CARIAMA_DTUTILS_EXPORT int create_shared_file(const char* name, size_t bytes,
                                                            unsigned flags = 0);

// Returns the remedy after create_shared_file() failed with `error`: the limit to raise, or
// `otherwise` if the error has another cause.
[[nodiscard]] CARIAMA_DTUTILS_EXPORT std::string_view shared_file_remedy(
    int error, std::string_view otherwise);

}  // namespace cariama::internal

#endif  // CARIAMA_DTUTILS_INTERNAL_SHARED_FILE_H_
