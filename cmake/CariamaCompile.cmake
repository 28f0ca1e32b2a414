# Compiler and linker settings of every target of the project. They are directory-wide and not part of the
# installed package, which sets only C++20 and the include folder.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Release, RelWithDebInfo or Debug" FORCE)
endif()

add_compile_options(-Wall -Wextra)
# At -O3 g++ 12 sees overlapping copies in "text" + std::string, where there are none (GCC bug 105651).
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  add_compile_options(-Wno-restrict)
endif()
if(CARIAMA_WERROR)
  add_compile_options(-Werror)
endif()

# Makes a shared library as fast as a static one: calls within the library are direct (hidden
# visibility, no interposition), calls into others go through one GOT load instead of a PLT stub.
# The per-message paths are inline in headers or virtual, so neither goes through the dynamic linker.
add_compile_options(-fno-semantic-interposition -fno-plt)

# The build-id is part of the identity of an invocable function, so it is not left to the
# distribution's compiler to emit one.
add_link_options(-Wl,--build-id -Wl,--as-needed)

# Use lld if it is installed: it links the several hundred test programs in a third of the time.
if(CARIAMA_TESTS)
  find_program(CARIAMA_LLD NAMES ld.lld)
  mark_as_advanced(CARIAMA_LLD)
  if(CARIAMA_LLD)
    add_link_options(-fuse-ld=lld)
  endif()
endif()

# Hardening as Debian's dpkg-buildflags sets it, and branch protection; bench/CMakeLists.txt takes the
# compiler's flags back for the benchmarks.
# - On x86-64 frames of tasks carry the canary of the job, which the context switch sets together with
#   the stack (tasks/context.h), so the stack protector works in frames that migrate.
# - Only `branch`: a shadow stack records the return addresses of one process, and the context switch
#   resumes frames that were pushed in another. `full`, the default of some compilers, would mark the
#   libraries as ready for shadow stacks.
include(CheckCXXCompilerFlag)
set(CMAKE_REQUIRED_FLAGS -Werror)
foreach(flag IN ITEMS -fstack-protector-strong -fstack-clash-protection -fcf-protection=branch)
  string(MAKE_C_IDENTIFIER "CARIAMA_HAS${flag}" has_flag)
  check_cxx_compiler_flag(${flag} ${has_flag})
  if(${has_flag})
    list(APPEND CARIAMA_HARDENING ${flag})
  endif()
endforeach()
unset(CMAKE_REQUIRED_FLAGS)
add_link_options(-Wl,-z,relro -Wl,-z,now)
# The checks of _FORTIFY_SOURCE need optimisation, and hide calls from the sanitizers. A level that
# the user sets stays.
string(TOUPPER "CMAKE_CXX_FLAGS_${CMAKE_BUILD_TYPE}" flags_of_type)
set(flags "${CMAKE_CXX_FLAGS} ${${flags_of_type}}")
if(NOT CARIAMA_SANITIZE AND flags MATCHES "-O[123sz]" AND NOT flags MATCHES "_FORTIFY_SOURCE")
  list(APPEND CARIAMA_HARDENING -D_FORTIFY_SOURCE=2)
endif()
# Off by default: the checks would be in each message and spawn (docs/design-decisions.md, "Assertions of
# the standard library").
if(CARIAMA_GLIBCXX_ASSERTIONS)
  list(APPEND CARIAMA_HARDENING -D_GLIBCXX_ASSERTIONS)
endif()
add_compile_options(${CARIAMA_HARDENING})

if(CARIAMA_SANITIZE)
  # Frames and line numbers in reports; the first report ends the program, so that a test fails.
  add_compile_options(-fsanitize=${CARIAMA_SANITIZE} -fno-sanitize-recover=all
                      -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${CARIAMA_SANITIZE})
  if(CARIAMA_SANITIZE STREQUAL "address,undefined")
    # AddressSanitizer reports accesses outside of objects too, and this check took a seventh of the
    # time of a compilation.
    add_compile_options(-fno-sanitize=object-size)
  endif()
  # g++ tells programs which sanitizer they run under by a macro; clang 14 does not.
  if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    string(TOUPPER "${CARIAMA_SANITIZE}" names)
    string(REPLACE "," ";" names "${names}")
    list(TRANSFORM names REPLACE "(.+)" "__SANITIZE_\\1__=1")
    add_compile_definitions(${names})
  endif()
else()
  add_link_options(-Wl,--no-undefined)
endif()

# Kernels that randomise more than 28 bits of an address put memory where clang 14's ThreadSanitizer
# expects none, and it refuses to start. Its programs run without randomisation there.
if(CARIAMA_SANITIZE STREQUAL "thread" AND EXISTS /proc/sys/vm/mmap_rnd_bits)
  file(READ /proc/sys/vm/mmap_rnd_bits random_bits)
  if(random_bits GREATER 28)
    set(CMAKE_CROSSCOMPILING_EMULATOR setarch -R)
  endif()
endif()

if(CARIAMA_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "CARIAMA_FUZZ needs libFuzzer: configure with CMAKE_CXX_COMPILER=clang++")
  endif()
endif()

# cariama_fuzzed(TARGET): lets fuzzers see where they come in its code. For the libraries and the fuzzers;
# tests have no use for it, and would take a tenth more time to compile.
function(cariama_fuzzed target)
  if(CARIAMA_FUZZ)
    target_compile_options(${target} PRIVATE -fsanitize=fuzzer-no-link)
  endif()
endfunction()

# Sources of a target that are compiled as one (CMAKE_UNITY_BUILD, on in most presets): headers are most of
# what a file's compilation costs, and are parsed once for all of them. So names in anonymous namespaces
# are unique within a layer and within a folder of tests. The check `includes` shows that each source of a
# layer includes what it uses.
set(CMAKE_UNITY_BUILD_BATCH_SIZE 24)
if(CMAKE_UNITY_BUILD AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # g++ collects garbage from a heap of 128 MiB on. A unit needs a few times as much: to let its heap grow
  # saves a tenth of the processor time.
  add_compile_options("SHELL:--param ggc-min-heapsize=1000000")
endif()

# cariama_unity_layer(TARGET): sets the limits of g++ for a target that has sources of a layer.
function(cariama_unity_layer target)
  if(CMAKE_UNITY_BUILD AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND NOT target MATCHES "hex")
    # g++ lets inlining enlarge a large compilation unit by 40 % at most. The sources of a layer together
    # are large, and functions that each of them inlines by itself would be called: a post of 8 bytes
    # over shm lost 8 % by that. (hex keeps the limit: without it, its largest unit takes a fifth longer
    # to compile.)
    target_compile_options(${target} PRIVATE "SHELL:--param large-unit-insns=1000000")
  endif()
endfunction()
if(CMAKE_UNITY_BUILD AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # The warning's condition, "not in the main file", is true of all files of a unity build.
  add_compile_options(-Wno-subobject-linkage)
endif()
