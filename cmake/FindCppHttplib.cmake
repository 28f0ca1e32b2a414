# cpp-httplib as httplib::httplib. Its headers need the macros with which the library was compiled,
# which only its pkg-config file names.
find_package(PkgConfig REQUIRED)
pkg_check_modules(CPP_HTTPLIB QUIET IMPORTED_TARGET cpp-httplib)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(CppHttplib REQUIRED_VARS CPP_HTTPLIB_LINK_LIBRARIES
  VERSION_VAR CPP_HTTPLIB_VERSION
  REASON_FAILURE_MESSAGE "Debian package: libcpp-httplib-dev (scripts/setup installs it)")
if(CppHttplib_FOUND AND NOT TARGET httplib::httplib)
  add_library(httplib::httplib ALIAS PkgConfig::CPP_HTTPLIB)
endif()
