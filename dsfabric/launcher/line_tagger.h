// Prefixes each line of a stream that arrives in pieces with a tag.
#ifndef CARIAMA_DSFABRIC_LAUNCHER_LINE_TAGGER_H_
#define CARIAMA_DSFABRIC_LAUNCHER_LINE_TAGGER_H_

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

namespace cariama::internal {

class LineTagger {
 public:
  // Longer lines are split, so that the buffered part of a line stays bounded.
  static constexpr size_t kLongestLine = size_t{64} << 10;

  explicit LineTagger(std::string tag) : tag_(std::move(tag)) {}

  // Takes the next bytes, and appends the lines that are now complete, with tags, to `out`.
  void append(std::string_view bytes, std::string& out) {
    while (!bytes.empty()) {
      const size_t end = bytes.find('\n');
      const size_t length =
          std::min(end == std::string_view::npos ? bytes.size() : end, kLongestLine - line_.size());
      line_.append(bytes.substr(0, length));
      bytes.remove_prefix(length);
      if (!bytes.empty() && bytes.front() == '\n') {
        bytes.remove_prefix(1);
        emit(out);
      } else if (line_.size() == kLongestLine) {
        emit(out);
      }
    }
  }
  // Appends the incomplete last line, if any, as a line.
  void finish(std::string& out) {
    if (!line_.empty()) emit(out);
  }

 private:
  void emit(std::string& out) {
    out += tag_;
    out += line_;
    out += '\n';
    line_.clear();
  }

  std::string tag_;
  std::string line_;
};

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_LAUNCHER_LINE_TAGGER_H_
