// The trees of the Unbalanced Tree Search benchmark (Olivier et al., LCPC'06), with the SHA-1
// generator. They are identical to the trees of the original program, so that counts can be
// compared.
#ifndef CARIAMA_BENCH_SUPPORT_UTS_TREE_H_
#define CARIAMA_BENCH_SUPPORT_UTS_TREE_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>

namespace cariama::bench {

// Options named after the letters of the original's command line.
struct UtsOptions {
  int t = 1;               // type: 0 binomial, 1 geometric, 2 hybrid
  int a = 0;               // shape of a geometric tree: 0 linear, 1 exponential, 2 cyclic, 3 fixed
  double b = 4.0;          // children of the root, or their expected number
  int d = 6;               // depth parameter of geometric trees
  double q = 15.0 / 64.0;  // binomial: probability of having children
  int m = 4;               // binomial: number of children
  int r = 0;               // seed
  double f = 0.5;          // hybrid: fraction of d at which the type changes
};

struct UtsCount {
  uint64_t nodes = 0;
  uint64_t max_depth = 0;
  uint64_t leaves = 0;

  void add(const UtsCount& other) {
    nodes += other.nodes;
    leaves += other.leaves;
    if (other.max_depth > max_depth) max_depth = other.max_depth;
  }
  friend bool operator==(const UtsCount&, const UtsCount&) = default;
};

struct UtsNode {
  std::array<uint8_t, 20> state;
  int depth;
};

[[nodiscard]] UtsNode uts_root(const UtsOptions& options);
[[nodiscard]] UtsNode uts_child(const UtsNode& parent, int index);
[[nodiscard]] int uts_children(const UtsOptions& options, const UtsNode& node);

// A tree of the original's collection, and its known counts.
struct UtsKnown {
  UtsOptions options;
  UtsCount count;
};
[[nodiscard]] std::optional<UtsKnown> uts_named(const std::string& name);

// Counts the subtree of `node` by recursion without tasks.
[[nodiscard]] UtsCount uts_sequential(const UtsOptions& options, const UtsNode& node);

}  // namespace cariama::bench

#endif  // CARIAMA_BENCH_SUPPORT_UTS_TREE_H_
