# What must not compile: each FOLDER/compile_fail/NAME.cc is compiled with CARIAMA_MUST_NOT_COMPILE defined,
# and the compiler must give one error, the one that the comment at its top names. Without the definition
# it must give none, so that nothing else is wrong with the file: the test compile_fail:correct compiles
# all files of this kind together, each in a namespace of its own. Files of mcts declare names in the
# project's namespace, and are compiled twice instead.
file(GLOB_RECURSE must_not_compile CONFIGURE_DEPENDS "*.cc")
list(FILTER must_not_compile INCLUDE REGEX "/compile_fail/[^/]*$")
cariama_leave_out(must_not_compile)
set(includes "$<TARGET_PROPERTY:cariama_test_support,INCLUDE_DIRECTORIES>")
file(GENERATE OUTPUT "${CMAKE_CURRENT_BINARY_DIR}/compile_fail.flags"
  CONTENT "-std=c++20 -fsyntax-only -I$<JOIN:$<REMOVE_DUPLICATES:${includes}>, -I>\n"
  TARGET cariama_test_support)
# With precompiled headers each test takes a quarter of the time. A file that includes only a header
# of mcts does not use them, because such a header includes little.
set(check "${CMAKE_CURRENT_SOURCE_DIR}/checks/compile_fail")
set(arguments "${CMAKE_CURRENT_BINARY_DIR}/compile_fail.flags" "${CMAKE_CXX_COMPILER}")
set(headers "${CMAKE_CURRENT_BINARY_DIR}/compile_fail/headers.h")
add_test(NAME "${CARIAMA_TEST_PREFIX}compile_fail:headers" COMMAND "${check}" --headers ${arguments} "${headers}")
set_tests_properties("${CARIAMA_TEST_PREFIX}compile_fail:headers" PROPERTIES TIMEOUT ${watchdog}
  FIXTURES_SETUP "${CARIAMA_TEST_PREFIX}compile_fail_headers")
set(together "${must_not_compile}")
list(FILTER together EXCLUDE REGEX "/mcts/")
if(together)
  add_test(NAME "${CARIAMA_TEST_PREFIX}compile_fail:correct"
    COMMAND "${check}" --correct ${arguments} ${together})
  set_tests_properties("${CARIAMA_TEST_PREFIX}compile_fail:correct" PROPERTIES TIMEOUT ${watchdog})
endif()
foreach(source IN LISTS must_not_compile)
  cmake_path(GET source STEM name)
  set(test "${CARIAMA_TEST_PREFIX}compile_fail:${name}")
  if(source MATCHES "/mcts/")
    add_test(NAME "${test}" COMMAND "${check}" "${source}" ${arguments})
  else()
    add_test(NAME "${test}" COMMAND "${check}" "${source}" ${arguments} "${headers}")
    set_tests_properties("${test}" PROPERTIES FIXTURES_REQUIRED "${CARIAMA_TEST_PREFIX}compile_fail_headers")
  endif()
  set_tests_properties("${test}" PROPERTIES TIMEOUT ${watchdog})
endforeach()
