#include "bdd/diagrams.h"

#include <algorithm>

#include "bdd/edge.h"
#include "bdd/internal/byte_reader.h"

namespace cariama::bdd {

absl::StatusOr<StoredDiagrams> parse_diagrams(std::string_view bytes, size_t& offset) {
  using internal::ByteReader;
  ByteReader in(bytes, offset);
  constexpr uint64_t kLeaf = uint64_t{1} << 62;
  constexpr uint64_t kKnown = kMark | kLeaf | kIndexMask;
  uint64_t count = 0;
  const size_t count_at = in.offset();
  if (!in.read(count)) return in.ends("the number of nodes");
  // The size of the file bounds the memory that a wrong number can request.
  if (count > in.left() / sizeof(StoredNode)) {
    return ByteReader::error(count_at, absl::StrCat(count, " nodes do not fit into the file"));
  }
  StoredDiagrams result;
  result.nodes.reserve(count);
  std::vector<uint32_t> levels{0};  // below and including a node, by its number
  levels.reserve(count + 1);
  const auto variable_of = [&](uint64_t number) {
    return number == 0 ? uint64_t{kNoVariable} : result.nodes[number - 1].b >> 40;
  };
  for (uint64_t number = 1; number <= count; ++number) {
    const size_t at = in.offset();
    StoredNode node{};
    if (!in.read(node.a) || !in.read(node.b)) return in.ends("a node");
    const auto wrong = [&](const std::string& what) {
      return ByteReader::error(at, absl::StrCat("node ", number, " ", what));
    };
    if (node.a & kLeaf) return wrong("is a leaf of a multi-terminal diagram");
    if (node.a & ~kKnown) return wrong("has unknown bits");
    const uint64_t high = node.a & kIndexMask;
    const uint64_t low = node.b & kIndexMask;
    if (high >= number || low >= number) return wrong("comes before its son");
    const uint64_t variable = node.b >> 40;
    if (variable > kMaxVariable) {
      return wrong(absl::StrCat("has variable ", variable, "; the largest is ", kMaxVariable));
    }
    if (variable >= variable_of(high) || variable >= variable_of(low)) {
      return wrong("has a variable that is not smaller than those of its sons");
    }
    if (high == low && (node.a & kMark) == 0) return wrong("has two equal sons");
    levels.push_back(1 + std::max(levels[high], levels[low]));
    if (levels.back() > kMaxLevels) {
      return wrong(absl::StrCat("is on a path of more than ", kMaxLevels, " nodes"));
    }
    result.nodes.push_back(node);
  }
  int32_t roots = 0;
  const size_t roots_at = in.offset();
  if (!in.read(roots)) return in.ends("the number of roots");
  if (roots < 0 || static_cast<size_t>(roots) > in.left() / sizeof(uint64_t)) {
    return ByteReader::error(roots_at, absl::StrCat(roots, " roots do not fit into the file"));
  }
  for (int32_t i = 0; i < roots; ++i) {
    const size_t at = in.offset();
    uint64_t root = 0;
    if (!in.read(root)) return in.ends("a root");
    if ((root & ~(kMark | kIndexMask)) != 0 || (root & kIndexMask) > count) {
      return ByteReader::error(at, "a root is not a node of the file");
    }
    result.roots.push_back(root);
  }
  offset = in.offset();
  return result;
}

void append_diagrams(const StoredDiagrams& diagrams, std::string& bytes) {
  internal::append_integer(uint64_t{diagrams.nodes.size()}, bytes);
  for (const StoredNode& node : diagrams.nodes) {
    internal::append_integer(node.a, bytes);
    internal::append_integer(node.b, bytes);
  }
  internal::append_integer(static_cast<int32_t>(diagrams.roots.size()), bytes);
  for (const uint64_t root : diagrams.roots) internal::append_integer(root, bytes);
}

std::string to_dot(const StoredDiagrams& diagrams, std::span<const std::string> names) {
  std::string dot = "digraph bdd {\n  node [shape=circle];\n  n0 [shape=box, label=\"1\"];\n";
  const auto edge = [&](const std::string& from, uint64_t to, const char* style) {
    absl::StrAppend(&dot, "  ", from, " -> n", to & kIndexMask, " [style=", style,
                    (to & kMark) != 0 ? ", arrowhead=normaldot];\n" : "];\n");
  };
  // The constant node is drawn as 1, and stored as false: the marks of edges to it are inverted.
  const auto drawn = [](uint64_t to) { return (to & kIndexMask) == 0 ? to ^ kMark : to; };
  std::vector<std::pair<uint64_t, uint64_t>> by_variable;
  for (size_t i = 0; i < diagrams.nodes.size(); ++i) {
    const StoredNode& node = diagrams.nodes[i];
    const std::string name = absl::StrCat("n", i + 1);
    absl::StrAppend(&dot, "  ", name, " [label=\"", node.b >> 40, "\"];\n");
    edge(name, drawn(node.b & kIndexMask), "dashed");
    edge(name, drawn(node.a), "solid");
    by_variable.emplace_back(node.b >> 40, i + 1);
  }
  for (size_t i = 0; i < diagrams.roots.size(); ++i) {
    const std::string name = absl::StrCat("r", i);
    std::string label;
    for (const char c : i < names.size() ? names[i] : std::to_string(i)) {
      if (c == '"' || c == '\\') label.push_back('\\');
      label.push_back(c == '\n' ? ' ' : c);
    }
    absl::StrAppend(&dot, "  ", name, " [shape=plaintext, label=\"", label, "\"];\n");
    edge(name, drawn(diagrams.roots[i]), "solid");
  }
  std::sort(by_variable.begin(), by_variable.end());
  for (size_t i = 0; i < by_variable.size();) {
    const uint64_t variable = by_variable[i].first;
    dot += "  { rank=same;";
    for (; i < by_variable.size() && by_variable[i].first == variable; ++i) {
      absl::StrAppend(&dot, " n", by_variable[i].second, ";");
    }
    dot += " }\n";
  }
  return dot + "}\n";
}

}  // namespace cariama::bdd
