// The text of a file that a test reads as a whole.
#ifndef CARIAMA_TESTS_DTUTILS_TESTING_TEXT_OF_H_
#define CARIAMA_TESTS_DTUTILS_TESTING_TEXT_OF_H_

#include <fstream>
#include <sstream>
#include <string>

namespace cariama::testing {

// Returns the bytes of the file; "" if it cannot be read.
[[nodiscard]] inline std::string text_of(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

}  // namespace cariama::testing

#endif  // CARIAMA_TESTS_DTUTILS_TESTING_TEXT_OF_H_
