# Checks of the project as a whole, beside the tests of its code.

# Every header compiles by itself, and twice in one file.
file(GLOB_RECURSE headers CONFIGURE_DEPENDS RELATIVE "${PROJECT_SOURCE_DIR}"
  "${PROJECT_SOURCE_DIR}/dtutils/*.h" "${PROJECT_SOURCE_DIR}/tests/*.h" "${PROJECT_SOURCE_DIR}/bench/*.h"
  "${PROJECT_SOURCE_DIR}/cariama.h")
set(sources "")
foreach(header IN LISTS headers)
  set(source "${CMAKE_CURRENT_BINARY_DIR}/headers/${header}.cc")
  file(CONFIGURE OUTPUT "${source}" CONTENT "#include \"@header@\"\n#include \"@header@\"\n" @ONLY)
  list(APPEND sources "${source}")
endforeach()
add_library(cariama_headers OBJECT EXCLUDE_FROM_ALL ${sources})
target_link_libraries(cariama_headers PRIVATE cariama_test_support)
target_compile_options(cariama_headers PRIVATE -O0 -g0)
