# cariama_add_program(NAME SOURCE...): a program that uses the project as its users do: through what
# the libraries export. Found in bin/ of the build folder.
find_package(absl REQUIRED)
find_package(Threads REQUIRED)

function(cariama_add_program name)
  get_property(layers GLOBAL PROPERTY CARIAMA_LAYERS)
  list(TRANSFORM layers PREPEND cariama:: OUTPUT_VARIABLE libraries)
  add_executable(${name} ${ARGN})
  target_link_libraries(${name} PRIVATE ${libraries} absl::flags absl::flags_parse absl::flags_usage
    absl::strings absl::str_format absl::synchronization absl::time Threads::Threads)
  # A flag's type is known by the address of a template's static member, which Abseil's shared library
  # has to see as its own: hidden, `--json` would be asked for a value.
  set_target_properties(${name} PROPERTIES CXX_VISIBILITY_PRESET default)
endfunction()
