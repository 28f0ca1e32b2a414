# PMIx as pmix::pmix. Debian keeps it apart from where compilers look, so pkg-config is asked.
find_package(PkgConfig QUIET)
if(PkgConfig_FOUND)
  pkg_check_modules(PC_PMIX QUIET pmix)
endif()
find_path(PMIX_INCLUDE_DIR pmix.h HINTS ${PC_PMIX_INCLUDE_DIRS})
find_library(PMIX_LIBRARY pmix HINTS ${PC_PMIX_LIBRARY_DIRS})
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(PMIx REQUIRED_VARS PMIX_LIBRARY PMIX_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "Debian package: libpmix-dev (scripts/setup installs it)")
mark_as_advanced(PMIX_INCLUDE_DIR PMIX_LIBRARY)
if(PMIx_FOUND AND NOT TARGET pmix::pmix)
  add_library(pmix::pmix UNKNOWN IMPORTED)
  set_target_properties(pmix::pmix PROPERTIES IMPORTED_LOCATION "${PMIX_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${PMIX_INCLUDE_DIR}")
endif()
