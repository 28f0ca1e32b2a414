# cariama_install_docs(): installs the guides and the examples. Call it after all layers of the package.
#
# In the guides of the source tree, links to headers lead to the folders of the layers. The installed
# guides link to the installed headers. Links to files that are not installed become plain text. Parts
# of README.md between "<!-- source tree" and "<!-- end of source tree -->", which contain no '<', are
# left out.
function(cariama_install_docs)
  get_property(layers GLOBAL PROPERTY CARIAMA_LAYERS)
  list(JOIN layers "|" layers)
  file(RELATIVE_PATH headers "${CMAKE_INSTALL_FULL_DOCDIR}/docs" "${CMAKE_INSTALL_FULL_INCLUDEDIR}/cariama")
  file(GLOB guides CONFIGURE_DEPENDS RELATIVE "${PROJECT_SOURCE_DIR}" "${PROJECT_SOURCE_DIR}/docs/*.md")
  foreach(guide IN LISTS guides ITEMS README.md)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/${guide}")
    file(READ "${PROJECT_SOURCE_DIR}/${guide}" text)
    string(REGEX REPLACE "<!-- source tree[^<]*<!-- end of source tree -->\n" "" text "${text}")
    string(REGEX REPLACE "\\]\\(\\.\\./((${layers})/[^)]*\\.h)\\)" "](INCLUDE:\\1)" text "${text}")
    string(REGEX REPLACE "\\[([^]\n]*)\\]\\((\\.\\./|CONTRIBUTING)[^)]*\\)" "\\1" text "${text}")
    string(REPLACE "](INCLUDE:" "](${headers}/" text "${text}")
    file(WRITE "${PROJECT_BINARY_DIR}/installed_docs/${guide}" "${text}")
  endforeach()
  install(DIRECTORY "${PROJECT_BINARY_DIR}/installed_docs/" DESTINATION "${CMAKE_INSTALL_DOCDIR}")
  file(GLOB figures CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/docs/*.svg"
    "${PROJECT_SOURCE_DIR}/docs/*.png")
  install(FILES ${figures} DESTINATION "${CMAKE_INSTALL_DOCDIR}/docs")
  install(DIRECTORY "${PROJECT_SOURCE_DIR}/docs/examples" DESTINATION "${CMAKE_INSTALL_DOCDIR}/docs")
  install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" "${PROJECT_SOURCE_DIR}/CHANGELOG.md"
                "${PROJECT_SOURCE_DIR}/CITATION.cff" "${PROJECT_SOURCE_DIR}/SECURITY.md"
          DESTINATION "${CMAKE_INSTALL_DOCDIR}")
endfunction()
