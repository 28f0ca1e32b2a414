// Feeds the reader of an engine's answers (GTP) with arbitrary output, in pieces.
//
// The answers must not depend on the pieces, and have no blanks at their ends.
//
// Longest input: 256 bytes.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "hex/gtp_text.h"
#include "tests/fuzz/fuzz_input.h"

namespace {

using Answers = std::vector<absl::StatusOr<std::string>>;

void take(cariama::hex::GtpAnswers& reader, Answers& answers) {
  while (auto answer = reader.next()) answers.push_back(*std::move(answer));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const size_t piece = data[0] + size_t{1};
  const std::string_view output(reinterpret_cast<const char*>(data) + 1, size - 1);

  cariama::hex::GtpAnswers whole;
  whole.append(output);
  Answers at_once;
  take(whole, at_once);

  cariama::hex::GtpAnswers reader;
  Answers in_pieces;
  for (size_t at = 0; at < output.size(); at += piece) {
    reader.append(output.substr(at, piece));
    take(reader, in_pieces);
  }

  cariama::require(at_once.size() == in_pieces.size());
  cariama::require(at_once.size() <=
                   static_cast<size_t>(std::count(output.begin(), output.end(), '\n')));
  for (size_t i = 0; i < at_once.size(); ++i) {
    cariama::require(at_once[i].status() == in_pieces[i].status());
    if (!at_once[i].ok()) continue;
    cariama::require(*at_once[i] == *in_pieces[i]);
    constexpr std::string_view kBlanks = " \t\r\n";
    cariama::require(at_once[i]->empty() ||
                     (kBlanks.find(at_once[i]->front()) == std::string_view::npos &&
                      kBlanks.find(at_once[i]->back()) == std::string_view::npos));
  }
  return 0;
}
