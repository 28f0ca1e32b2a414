// StoredDiagrams: diagrams outside of a node table, as they are in files. The nodes are those of
// the model format (model_file.h). Manager::save_file() writes them, and a collection stores the
// live nodes in this form.
#ifndef CARIAMA_BDD_DIAGRAMS_H_
#define CARIAMA_BDD_DIAGRAMS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "bdd/export.h"

namespace cariama::bdd {

// Maximum number of nodes on a path from a root to the constant in a file. Operations recurse once
// for each variable of their operands, so this bounds the stack that they need (bdd.h).
inline constexpr uint32_t kMaxLevels = 9216;

// 16 bytes in a file, little endian. Node i of a file (i = 1 .. n) is nodes[i - 1].
//   a  bit 63: mark of the high edge. Bits 39..0: number of the high son; 0 is the
//     constant false.
//   b  bits 63..40: variable. Bits 39..0: number of the low son.
// Numbers of sons are smaller than the node's own number.
struct StoredNode {
  uint64_t a;
  uint64_t b;
};
struct StoredDiagrams {
  std::vector<StoredNode> nodes;
  std::vector<uint64_t> roots;  // bit 63: mark; bits 39..0: number of a node
};

// Reads the bytes of diagrams (u64 number of nodes, nodes, i32 number of roots, u64 roots) from
// `bytes`, beginning at `offset`, and sets `offset` to the end of what it has read. Accepts only
// ordered diagrams without a node with two equal sons or a marked low edge, with at most kMaxLevels
// levels. Two nodes may have equal contents; in a manager they become one. Error:
// INVALID_ARGUMENT; the message names the offset of the first invalid byte. Thread-safe.
[[nodiscard]] CARIAMA_BDD_EXPORT absl::StatusOr<StoredDiagrams> parse_diagrams(
    std::string_view bytes, size_t& offset);

// Appends the bytes of the diagrams, in the form that parse_diagrams() reads, to `bytes`.
// Thread-safe.
CARIAMA_BDD_EXPORT void append_diagrams(const StoredDiagrams& diagrams, std::string& bytes);

// Returns the diagrams in the language of Graphviz: a dashed arrow for low, a solid arrow for high,
// a dot at the head of a marked edge. `names`: the label of each root; may be shorter than roots.
// Thread-safe.
[[nodiscard]] CARIAMA_BDD_EXPORT std::string to_dot(const StoredDiagrams& diagrams,
                                                    std::span<const std::string> names = {});

}  // namespace cariama::bdd

#endif  // CARIAMA_BDD_DIAGRAMS_H_
