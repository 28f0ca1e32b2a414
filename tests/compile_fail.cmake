# What must not compile: each FOLDER/compile_fail/NAME.cc is compiled twice. With
# CARIAMA_MUST_NOT_COMPILE defined, the compiler must give one error, the one that the comment at its top
# names; without it, none, so that nothing else is wrong with the file.
file(GLOB_RECURSE must_not_compile CONFIGURE_DEPENDS "*.cc")
list(FILTER must_not_compile INCLUDE REGEX "/compile_fail/[^/]*$")
cariama_leave_out(must_not_compile)
set(includes "$<TARGET_PROPERTY:cariama_test_support,INCLUDE_DIRECTORIES>")
file(GENERATE OUTPUT "${CMAKE_CURRENT_BINARY_DIR}/compile_fail.flags"
  CONTENT "-std=c++20 -fsyntax-only -I$<JOIN:$<REMOVE_DUPLICATES:${includes}>, -I>\n"
  TARGET cariama_test_support)
foreach(source IN LISTS must_not_compile)
  cmake_path(GET source STEM name)
  add_test(NAME "${CARIAMA_TEST_PREFIX}compile_fail:${name}"
    COMMAND "${CMAKE_CURRENT_SOURCE_DIR}/checks/compile_fail" "${source}"
            "${CMAKE_CURRENT_BINARY_DIR}/compile_fail.flags" "${CMAKE_CXX_COMPILER}")
  set_tests_properties("${CARIAMA_TEST_PREFIX}compile_fail:${name}" PROPERTIES TIMEOUT ${watchdog})
endforeach()
