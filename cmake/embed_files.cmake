# Writes files as a C++ source: cmake -DOUTPUT=FILE "-DFILES=A;B" -P embed_files.cmake. Each file becomes
# a std::string_view in cariama::hex::internal: page.html becomes kPageHtml.
set(text "#include <string_view>\n\nnamespace cariama::hex::internal {\n")
foreach(file IN LISTS FILES)
  cmake_path(GET file FILENAME name)
  string(REGEX MATCHALL "[A-Za-z0-9]+" words "${name}")
  set(name k)
  foreach(word IN LISTS words)
    string(SUBSTRING "${word}" 0 1 first)
    string(SUBSTRING "${word}" 1 -1 rest)
    string(TOUPPER "${first}" first)
    string(APPEND name "${first}${rest}")
  endforeach()
  file(READ "${file}" bytes HEX)
  string(REGEX REPLACE "(..)" "'\\\\x\\1'," bytes "${bytes}")
  string(APPEND text "namespace {\nconstexpr char ${name}Bytes[] = {${bytes}};\n}  // namespace\n"
    "extern const std::string_view ${name};\n"
    "const std::string_view ${name}(${name}Bytes, sizeof ${name}Bytes);\n")
endforeach()
file(WRITE "${OUTPUT}" "${text}}  // namespace cariama::hex::internal\n")
