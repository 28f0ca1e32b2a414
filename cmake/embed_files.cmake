# Writes files as a C++ source: cmake -DOUTPUT=FILE -DFILES=A;B -P embed_files.cmake. Each file
# becomes a `const std::string_view k_NAME` in cariama::hex::internal, with `_` for other characters.
set(text "#include <string_view>\n\nnamespace cariama::hex::internal {\n")
foreach(file IN LISTS FILES)
  cmake_path(GET file FILENAME name)
  string(MAKE_C_IDENTIFIER "${name}" name)
  file(READ "${file}" bytes HEX)
  string(REGEX REPLACE "(..)" "'\\\\x\\1'," bytes "${bytes}")
  string(APPEND text "namespace {\nconstexpr char k_${name}_bytes[] = {${bytes}};\n}  // namespace\n"
    "extern const std::string_view k_${name};\n"
    "const std::string_view k_${name}(k_${name}_bytes, sizeof k_${name}_bytes);\n")
endforeach()
file(WRITE "${OUTPUT}" "${text}}  // namespace cariama::hex::internal\n")
