// Edge and Node: how a diagram is stored. Not for users: they have Bdd (bdd.h).
//
// A node has a variable and two edges. An edge is the index of a node and a complement mark; a
// marked edge stands for the negation of the function of its node. The low edge of a node is never
// marked, so that every function has exactly one representation: two functions are equal if and
// only if their edges are equal. Index 0 is the constant: unmarked it is false, marked it is true.
#ifndef CARIAMA_BDD_EDGE_H_
#define CARIAMA_BDD_EDGE_H_

#include <cstdint>

namespace cariama::bdd {

// Bits 39..0: index of the node. Bit 63: complement mark. All other bits are 0. These are the bits
// of a root in a model file (model_file.h).
using Edge = uint64_t;

inline constexpr Edge kMark = Edge{1} << 63;
inline constexpr Edge kIndexMask = (Edge{1} << 40) - 1;
inline constexpr Edge kFalse = 0;
inline constexpr Edge kTrue = kMark;

// Variables are 0 .. kMaxVariable; the order of variables is the order of the numbers. A node has
// room for 23 bits of a variable. The constant has the variable kNoVariable, which is below all
// others.
inline constexpr uint32_t kNoVariable = (uint32_t{1} << 23) - 1;
inline constexpr uint32_t kMaxVariable = kNoVariable - 1;

[[nodiscard]] constexpr bool is_constant(Edge edge) { return (edge & kIndexMask) == 0; }
[[nodiscard]] constexpr Edge negate(Edge edge) { return edge ^ kMark; }
// Negates `edge` if `by` is marked.
[[nodiscard]] constexpr Edge negate_if(Edge edge, Edge by) { return edge ^ (by & kMark); }

// A node in two words of 63 bits, as it is a key of the node table:
//   first   bits 39..0 index of the low edge, bits 62..40 variable
//   second  bits 39..0 index of the high edge, bit 40 mark of the high edge
struct Node {
  uint64_t first;
  uint64_t second;

  [[nodiscard]] static constexpr Node of(uint32_t variable, Edge low, Edge high) {
    return {low | uint64_t{variable} << 40, (high & kIndexMask) | high >> 63 << 40};
  }
  [[nodiscard]] constexpr uint32_t variable() const { return static_cast<uint32_t>(first >> 40); }
  [[nodiscard]] constexpr Edge low() const { return first & kIndexMask; }
  [[nodiscard]] constexpr Edge high() const {
    return (second & kIndexMask) | (second << 23 & kMark);
  }
  friend constexpr bool operator==(const Node&, const Node&) = default;
};

// Node of an edge, with the mark of the edge applied to both sons.
struct Sons {
  uint32_t variable;
  Edge low;
  Edge high;
};

}  // namespace cariama::bdd

#endif  // CARIAMA_BDD_EDGE_H_
