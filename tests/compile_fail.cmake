# What must not compile: each FOLDER/compile_fail/NAME.cc is compiled with CARIAMA_MUST_NOT_COMPILE defined,
# and the compiler must give one error, the one that the comment at its top names. Without the definition
# it must give none, so that nothing else is wrong with the file. Both times, all files are compiled as one:
# most of their time is that of the headers. If the errors are not as often the expected ones as there are
# files, the files in question are compiled by themselves, and decide. Not with sanitizers: the preset clang compiles
# them with clang++.
file(GLOB_RECURSE must_not_compile CONFIGURE_DEPENDS "*.cc")
list(FILTER must_not_compile INCLUDE REGEX "/compile_fail/[^/]*$")
cariama_leave_out(must_not_compile)
if(must_not_compile AND NOT CARIAMA_SANITIZE)
  set(test "${CARIAMA_TEST_PREFIX}compile_fail")
  add_test(NAME "${test}" COMMAND "${CMAKE_CURRENT_SOURCE_DIR}/checks/compile_fail"
    "${flags}" "${CMAKE_CXX_COMPILER}" ${must_not_compile})
  math(EXPR most "5 * ${watchdog}")  # if all files have to be compiled by themselves
  set_tests_properties("${test}" PROPERTIES TIMEOUT ${most})
endif()
