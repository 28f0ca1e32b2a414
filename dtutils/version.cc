#include "dtutils/version.h"

namespace cariama {

// CARIAMA_VERSION is PROJECT_VERSION of the top CMakeLists.txt.
std::string_view version() { return CARIAMA_VERSION; }

}  // namespace cariama
