# cariama_add_program(NAME SOURCE... [LAYERS layer...]): a program that uses the project as its users do:
# through what the libraries export. It links the layers, and is built after them; default: all layers.
# Found in bin/ of the build folder.
find_package(absl REQUIRED)
find_package(Threads REQUIRED)

function(cariama_add_program name)
  cmake_parse_arguments(arg "" "" "LAYERS" ${ARGN})
  if(NOT arg_LAYERS)
    get_property(arg_LAYERS GLOBAL PROPERTY CARIAMA_LAYERS)
  endif()
  list(TRANSFORM arg_LAYERS PREPEND cariama:: OUTPUT_VARIABLE libraries)
  add_executable(${name} ${arg_UNPARSED_ARGUMENTS})
  target_link_libraries(${name} PRIVATE ${libraries} absl::flags absl::flags_parse absl::flags_usage
    absl::strings absl::str_format absl::synchronization absl::time Threads::Threads)
  # A flag's type is known by the address of a template's static member, which Abseil's shared library
  # has to see as its own: hidden, `--json` would be asked for a value.
  set_target_properties(${name} PROPERTIES CXX_VISIBILITY_PRESET default)
endfunction()
