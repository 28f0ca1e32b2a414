# Writes a manual page from what a program prints for --help, so that the two never differ:
#   cmake -DPROGRAM=path [-DEMULATOR=command] -DVERSION=version -DOUTPUT=file -P man_page.cmake
# The help begins with "NAME: what the program does", until the first empty line.
cmake_path(GET PROGRAM FILENAME name)
execute_process(COMMAND ${EMULATOR} "${PROGRAM}" --help OUTPUT_VARIABLE help RESULT_VARIABLE code)
if(NOT code EQUAL 0 OR NOT help MATCHES "^${name}: ([^\n]+(\n[^\n]+)*)\n\n(.*)$")
  message(FATAL_ERROR "${name} --help ended with ${code}, or does not begin with '${name}: '")
endif()
string(REPLACE "\n" " " summary "${CMAKE_MATCH_1}")
set(text "${CMAKE_MATCH_3}")
string(REGEX REPLACE "\\.$" "" summary "${summary}")
# The characters that roff interprets.
foreach(part IN ITEMS summary text)
  string(REPLACE "\\" "\\e" ${part} "${${part}}")
  string(REPLACE "-" "\\-" ${part} "${${part}}")
  string(REGEX REPLACE "(^|\n)([.'])" "\\1\\\\&\\2" ${part} "${${part}}")
endforeach()
set(others cariama-bdd cariama-hex cariama-info cariama-run cariama-top)
list(REMOVE_ITEM others "${name}")
list(TRANSFORM others REPLACE "-" "\\\\-")
list(TRANSFORM others REPLACE "(.+)" ".BR \\1 (1)")
list(JOIN others ",\n" others)
string(TOUPPER "${name}" title)
file(WRITE "${OUTPUT}" ".TH ${title} 1 \"\" \"Cariama ${VERSION}\" \"Cariama\"
.SH NAME
${name} \\- ${summary}
.SH DESCRIPTION
.nf
${text}.fi
.SH SEE ALSO
${others}
")
