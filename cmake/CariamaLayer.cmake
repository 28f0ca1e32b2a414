# cariama_add_layer(NAME
#   [LAYERS lower...]            layers it stands on
#   [PACKAGES package...]        find_package() names of what its public headers need
#   [PRIVATE_PACKAGES package...]  ... and of what only its implementation needs
#   [PUBLIC target...]           targets of PACKAGES to link
#   [PRIVATE target...]          targets of PRIVATE_PACKAGES to link
#   [PC_REQUIRES module...]      pkg-config names of PUBLIC
#   [PC_PRIVATE flag...]         what a static link needs besides, as pkg-config Libs.private
#   [PC_REQUIRES_PRIVATE module...]  ... and as pkg-config modules
#   [PUBLIC_HEADERS path...])    headers to install that are not directly in the layer's folder
#
# Makes from every NAME/**/*.cc:
#   cariama::NAME           the library, installed, component NAME of find_package(Cariama) and
#                           cariama-NAME.pc. Its public headers are NAME/*.h and PUBLIC_HEADERS.
#   cariama::NAME_internal  the same objects as an archive: for tests, which may use what the
#                           library does not export. Not installed.
include(CMakePackageConfigHelpers)

function(cariama_add_layer name)
  cmake_parse_arguments(arg "" "" "LAYERS;PACKAGES;PRIVATE_PACKAGES;PUBLIC;PRIVATE;PC_REQUIRES;PC_PRIVATE;PC_REQUIRES_PRIVATE;PUBLIC_HEADERS" ${ARGN})
  set(target cariama_${name})

  foreach(package IN LISTS arg_PACKAGES arg_PRIVATE_PACKAGES)
    find_package(${package} REQUIRED)
  endforeach()

  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/*.cc")
  file(GLOB headers CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/*.h")
  foreach(header IN LISTS arg_PUBLIC_HEADERS)
    if(IS_ABSOLUTE "${header}")
      list(APPEND headers "${header}")
    else()
      list(APPEND headers "${CMAKE_CURRENT_SOURCE_DIR}/${header}")
    endif()
  endforeach()

  add_library(${target}_objects OBJECT ${sources})
  cariama_fuzzed(${target}_objects)
  cariama_unity_layer(${target}_objects)
  add_library(${target} $<TARGET_OBJECTS:${target}_objects>)
  add_library(${target}_internal STATIC EXCLUDE_FROM_ALL $<TARGET_OBJECTS:${target}_objects>)
  add_library(cariama::${name} ALIAS ${target})
  add_library(cariama::${name}_internal ALIAS ${target}_internal)

  # Debian's Abseil headers are not clean under -Wextra: as an imported target they are system headers.
  foreach(part IN ITEMS "${target}_objects" "${target}" "${target}_internal")
    target_compile_features(${part} PUBLIC cxx_std_20)
    target_include_directories(${part} PUBLIC
      "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>"
      "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/cariama>")
    target_link_libraries(${part} PUBLIC ${arg_PUBLIC} PRIVATE ${arg_PRIVATE})
  endforeach()
  foreach(lower IN LISTS arg_LAYERS)
    target_link_libraries(${target}_objects PUBLIC cariama::${lower})
    target_link_libraries(${target} PUBLIC cariama::${lower})
    target_link_libraries(${target}_internal PUBLIC cariama::${lower}_internal)
  endforeach()

  # While the major version is 0, every minor version may break the ABI.
  set_target_properties(${target} PROPERTIES
    EXPORT_NAME ${name}
    VERSION ${PROJECT_VERSION}
    SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})

  target_sources(${target} PUBLIC FILE_SET HEADERS BASE_DIRS "${PROJECT_SOURCE_DIR}" FILES ${headers})
  install(TARGETS ${target} EXPORT cariama-${name}
    LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}"
    ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}"
    FILE_SET HEADERS DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/cariama")
  install(EXPORT cariama-${name} NAMESPACE cariama:: FILE cariama-${name}.cmake
    DESTINATION "${CMAKE_INSTALL_LIBDIR}/cmake/Cariama")

  # pkg-config
  list(TRANSFORM arg_LAYERS PREPEND cariama- OUTPUT_VARIABLE pc_layers)
  list(JOIN arg_PC_PRIVATE " " pc_libs_private)
  list(JOIN arg_PC_REQUIRES_PRIVATE " " pc_requires_private)
  set(pc_requires ${pc_layers} ${arg_PC_REQUIRES})
  list(JOIN pc_requires " " pc_requires)
  set(pc_libs "")
  if(NOT BUILD_SHARED_LIBS)  # an archive names no libraries: each program links those that it needs
    string(APPEND pc_requires " ${pc_requires_private}")
    set(pc_libs " ${pc_libs_private}")
    set(pc_requires_private "")
    set(pc_libs_private "")
  endif()
  set(pc_name cariama-${name})
  # Relative to the .pc file, so that an installed tree may be moved.
  file(RELATIVE_PATH pc_to_prefix "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
  # Programs find the libraries at run time by themselves in the folders that ld.so searches. For other
  # folders the flags contain the run path, as those of Debian's PMIx do, which is in a folder of its own.
  # The prefix is known when the package is installed, so both variants are prepared.
  set(pc_run_path "")
  configure_file("${PROJECT_SOURCE_DIR}/cmake/cariama-layer.pc.in"
                 "${PROJECT_BINARY_DIR}/pkgconfig/standard/${pc_name}.pc" @ONLY)
  if(BUILD_SHARED_LIBS)
    set(pc_run_path " -Wl,-rpath,\${libdir} -Wl,--enable-new-dtags")
  endif()
  configure_file("${PROJECT_SOURCE_DIR}/cmake/cariama-layer.pc.in"
                 "${PROJECT_BINARY_DIR}/pkgconfig/other/${pc_name}.pc" @ONLY)
  install(CODE "
    cmake_path(ABSOLUTE_PATH CMAKE_INSTALL_PREFIX NORMALIZE OUTPUT_VARIABLE prefix)
    cmake_path(APPEND prefix \"${CMAKE_INSTALL_LIBDIR}\" OUTPUT_VARIABLE libdir)
    set(variant other)
    if(libdir MATCHES \"^(/usr|/usr/local)?/lib(32|64)?(/[^/]+-linux-[^/]+)?/*\$\")
      set(variant standard)
    endif()
    file(INSTALL \"${PROJECT_BINARY_DIR}/pkgconfig/\${variant}/${pc_name}.pc\"
         DESTINATION \"\${libdir}/pkgconfig\")")

  # The properties of the component that CariamaConfig.cmake needs.
  set(packages ${arg_PACKAGES})
  if(NOT BUILD_SHARED_LIBS)
    list(APPEND packages ${arg_PRIVATE_PACKAGES})
  endif()
  list(REMOVE_DUPLICATES packages)
  set_property(GLOBAL APPEND PROPERTY CARIAMA_LAYERS ${name})
  set_property(GLOBAL APPEND_STRING PROPERTY CARIAMA_COMPONENTS
    "set(_cariama_${name}_layers \"${arg_LAYERS}\")\nset(_cariama_${name}_packages \"${packages}\")\n")
endfunction()

# Installs the files that belong to no single layer. Call it once, after all layers.
function(cariama_install_package)
  get_property(layers GLOBAL PROPERTY CARIAMA_LAYERS)
  get_property(components GLOBAL PROPERTY CARIAMA_COMPONENTS)
  set(where "${CMAKE_INSTALL_LIBDIR}/cmake/Cariama")
  configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/CariamaConfig.cmake.in"
    "${PROJECT_BINARY_DIR}/CariamaConfig.cmake" INSTALL_DESTINATION "${where}"
    NO_SET_AND_CHECK_MACRO)
  # Compatible within a minor version while the major version is 0, as the SOVERSION says.
  write_basic_package_version_file("${PROJECT_BINARY_DIR}/CariamaConfigVersion.cmake"
    COMPATIBILITY SameMinorVersion)
  install(FILES "${PROJECT_BINARY_DIR}/CariamaConfig.cmake"
                "${PROJECT_BINARY_DIR}/CariamaConfigVersion.cmake"
                "${PROJECT_SOURCE_DIR}/cmake/FindIBVerbs.cmake"
                "${PROJECT_SOURCE_DIR}/cmake/FindNUMA.cmake"
                "${PROJECT_SOURCE_DIR}/cmake/FindLibURing.cmake"
                "${PROJECT_SOURCE_DIR}/cmake/FindHWLOC.cmake"
                "${PROJECT_SOURCE_DIR}/cmake/FindPMIx.cmake" DESTINATION "${where}")
  install(FILES "${PROJECT_SOURCE_DIR}/cariama.h"
          DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/cariama")
endfunction()

# cariama_leave_out_dependents(LIST layers...): adds to LIST, layers to leave out, those of `layers` (lowest
# first) that stand on them, as the line LAYERS of their CMakeLists.txt says.
function(cariama_leave_out_dependents list)
  set(left_out ${${list}})
  foreach(layer IN LISTS ARGN)
    file(STRINGS "${PROJECT_SOURCE_DIR}/${layer}/CMakeLists.txt" lower REGEX "^ +LAYERS ")
    string(REGEX MATCHALL "[a-z]+" lower "${lower}")
    foreach(one IN LISTS lower)
      if(one IN_LIST left_out)
        list(APPEND left_out ${layer})
        break()
      endif()
    endforeach()
  endforeach()
  list(REMOVE_DUPLICATES left_out)
  set(${list} "${left_out}" PARENT_SCOPE)
endfunction()

# cariama_leave_out(SOURCES): takes out of the list SOURCES what needs a layer of CARIAMA_WITHOUT: what
# includes its headers, and its tests.
function(cariama_leave_out list)
  set(kept "")
  foreach(source IN LISTS ${list})
    set(wanted TRUE)
    foreach(layer IN LISTS CARIAMA_WITHOUT)
      file(STRINGS "${source}" found REGEX "#include \"(tests/)?${layer}/" LIMIT_COUNT 1)
      if(found OR source MATCHES "^${PROJECT_SOURCE_DIR}/(tests/)?${layer}/")
        set(wanted FALSE)
      endif()
    endforeach()
    if(wanted)
      list(APPEND kept "${source}")
    endif()
  endforeach()
  set(${list} "${kept}" PARENT_SCOPE)
endfunction()
