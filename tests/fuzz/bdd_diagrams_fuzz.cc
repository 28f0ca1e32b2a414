// Feeds the reader of stored diagrams with arbitrary bytes. It reads the files that a manager saves
// and the checkpoints of searches.
//
// Diagrams that it accepts are the same after they were written and read again, and each son of
// a node comes before it.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "bdd/diagrams.h"
#include "tests/fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cariama;
  using namespace cariama::bdd;
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const size_t begin = data[0] % 16;  // a file has a header before the diagrams
  if (begin > bytes.size()) return 0;
  size_t offset = begin;
  const absl::StatusOr<StoredDiagrams> diagrams = parse_diagrams(bytes, offset);
  require(offset >= begin && offset <= bytes.size());
  if (!diagrams.ok()) {
    require(absl::IsInvalidArgument(diagrams.status()) && !diagrams.status().message().empty());
    return 0;
  }
  std::string again;
  append_diagrams(*diagrams, again);
  require(again == bytes.substr(begin, offset - begin));
  constexpr uint64_t kNumber = (uint64_t{1} << 40) - 1;
  const size_t nodes = diagrams->nodes.size();
  for (size_t i = 0; i < nodes; ++i) {
    const StoredNode& node = diagrams->nodes[i];
    require((node.a & kNumber) <= i && (node.b & kNumber) <= i);
  }
  for (const uint64_t root : diagrams->roots) require((root & kNumber) <= nodes);
  require(!to_dot(*diagrams).empty());
  return 0;
}
