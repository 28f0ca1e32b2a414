# libibverbs (rdma-core) as ibverbs::ibverbs.
find_path(IBVerbs_INCLUDE_DIR infiniband/verbs.h)
find_library(IBVerbs_LIBRARY ibverbs)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(IBVerbs REQUIRED_VARS IBVerbs_LIBRARY IBVerbs_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "Debian package: libibverbs-dev (scripts/setup installs it)")
mark_as_advanced(IBVerbs_INCLUDE_DIR IBVerbs_LIBRARY)
if(IBVerbs_FOUND AND NOT TARGET ibverbs::ibverbs)
  add_library(ibverbs::ibverbs UNKNOWN IMPORTED)
  set_target_properties(ibverbs::ibverbs PROPERTIES IMPORTED_LOCATION "${IBVerbs_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${IBVerbs_INCLUDE_DIR}")
endif()
