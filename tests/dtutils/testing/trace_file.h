// A file for a trace that a test records in its own process.
#ifndef CARIAMA_TESTS_DTUTILS_TESTING_TRACE_FILE_H_
#define CARIAMA_TESTS_DTUTILS_TESTING_TRACE_FILE_H_

#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "dtutils/trace.h"
#include "gtest/gtest.h"

namespace cariama::testing {

// Stops the trace, and removes the file, at the end of its scope.
class TraceFile {
 public:
  TraceFile() { close(mkstemp(path_.data())); }
  ~TraceFile() {
    EXPECT_TRUE(stop_trace().ok());
    unlink(path_.c_str());
  }
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }
  // Returns the lines of the file, of one event each, that contain the text.
  [[nodiscard]] std::vector<std::string> lines_with(const std::string& text) const {
    std::ifstream file(path_);
    std::vector<std::string> found;
    for (std::string line; std::getline(file, line);) {
      if (line.find(text) != line.npos) found.push_back(line);
    }
    return found;
  }

 private:
  std::string path_ = ::testing::TempDir() + "trace_file_XXXXXX";
};

}  // namespace cariama::testing

#endif  // CARIAMA_TESTS_DTUTILS_TESTING_TRACE_FILE_H_
