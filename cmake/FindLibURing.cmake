# liburing as uring::uring.
find_path(URING_INCLUDE_DIR liburing.h)
find_library(URING_LIBRARY uring)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibURing REQUIRED_VARS URING_LIBRARY URING_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "Debian package: liburing-dev (scripts/setup installs it)")
mark_as_advanced(URING_INCLUDE_DIR URING_LIBRARY)
if(LibURing_FOUND AND NOT TARGET uring::uring)
  add_library(uring::uring UNKNOWN IMPORTED)
  set_target_properties(uring::uring PROPERTIES IMPORTED_LOCATION "${URING_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${URING_INCLUDE_DIR}")
endif()
