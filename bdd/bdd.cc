#include "bdd/bdd.h"

#include <algorithm>
#include <map>
#include <set>

#include "bdd/internal/engine.h"
#include "bdd/internal/index_map.h"
#include "bdd/internal/request.h"

namespace cariama::bdd {

using internal::Action;

Bdd::Bdd(const Bdd& other) : manager_(other.manager_), place_(other.place_) {
  if (manager_ != nullptr) ++manager_->roots_[place_].references;
}

Bdd::~Bdd() {
  if (manager_ != nullptr) manager_->release(place_);
}

Edge Bdd::edge() const { return manager_->roots_[place_].edge; }

Bdd Bdd::operator~() const { return manager_->hold(negate(edge())); }

Bdd operator&(const Bdd& a, const Bdd& b) {
  return a.manager_->execute({.action = Action::kAnd, .a = {a.place_}, .b = {b.place_}});
}

Bdd operator|(const Bdd& a, const Bdd& b) {
  return a.manager_->execute({.action = Action::kAnd,
                              .a = {a.place_, kMark},
                              .b = {b.place_, kMark},
                              .result_mark = kMark});
}

Bdd operator^(const Bdd& a, const Bdd& b) {
  return a.manager_->execute({.action = Action::kXor, .a = {a.place_}, .b = {b.place_}});
}

Bdd Bdd::minus(const Bdd& other) const {
  return manager_->execute({.action = Action::kAnd, .a = {place_}, .b = {other.place_, kMark}});
}

Bdd Bdd::ite(const Bdd& a, const Bdd& b) const {
  return manager_->execute(
      {.action = Action::kIte, .a = {place_}, .b = {a.place_}, .c = {b.place_}});
}

Bdd Bdd::exists(const Bdd& cube) const {
  return manager_->execute({.action = Action::kExists, .a = {place_}, .c = {cube.place_}});
}

Bdd Bdd::and_exists(const Bdd& other, const Bdd& cube) const {
  return manager_->execute(
      {.action = Action::kAndExists, .a = {place_}, .b = {other.place_}, .c = {cube.place_}});
}

Bdd Bdd::compose(uint32_t variable, const Bdd& by) const {
  return manager_->execute(
      {.action = Action::kCompose, .a = {place_}, .b = {by.place_}, .variable = variable});
}

Bdd Bdd::relnext(const Bdd& relation, const Bdd& variables) const {
  return manager_->execute(
      {.action = Action::kNext, .a = {place_}, .b = {relation.place_}, .c = {variables.place_}});
}

Bdd Bdd::relprev(const Bdd& relation, const Bdd& variables) const {
  return manager_->execute({.action = Action::kPrevious,
                            .a = {place_},
                            .b = {relation.place_},
                            .c = {variables.place_}});
}

uint32_t Bdd::variable() const { return manager_->engine_->variable(edge()); }
Bdd Bdd::low() const { return manager_->hold(manager_->engine_->sons(edge()).low); }
Bdd Bdd::high() const { return manager_->hold(manager_->engine_->sons(edge()).high); }

uint64_t Bdd::nodes() const { return manager_->nodes({this, 1}); }

Bdd Bdd::support() const {
  std::set<uint32_t> variables;
  for (const StoredNode& node : manager_->store({this, 1}).nodes) {
    variables.insert(static_cast<uint32_t>(node.b >> 40));
  }
  return manager_->cube(std::vector<uint32_t>(variables.begin(), variables.end()));
}

bool Bdd::evaluate(const std::vector<bool>& assignment) const {
  Edge at = edge();
  while (!is_constant(at)) {
    const Sons sons = manager_->engine_->sons(at);
    const bool value = sons.variable < assignment.size() && assignment[sons.variable];
    at = value ? sons.high : sons.low;
  }
  return at == kTrue;
}

Bdd Bdd::pick(const Bdd& cube) const {
  if (is_false()) return *this;
  std::vector<std::pair<uint32_t, bool>> values;
  Edge at = edge();
  for (Edge rest = cube.edge(); !is_constant(rest);) {
    const Sons next = manager_->engine_->sons(rest);
    const Sons sons = manager_->engine_->sons(at);
    bool value = false;
    if (!is_constant(at) && sons.variable == next.variable) {
      value = sons.low == kFalse;
      at = value ? sons.high : sons.low;
    }
    values.emplace_back(next.variable, value);
    rest = next.high;
  }
  StoredDiagrams chain;
  uint64_t below = kTrue;
  for (size_t i = values.size(); i-- > 0;) {
    const auto [variable, value] = values[i];
    // A node for a negated variable is "if variable then false else below". Its low edge may not be
    // marked, so it is stored as a negation.
    const uint64_t mark = value ? 0 : below & kMark;
    chain.nodes.push_back(
        {value ? below : mark, uint64_t{variable} << 40 | (value ? 0 : below & kIndexMask)});
    below = chain.nodes.size() | mark;
  }
  chain.roots.push_back(below);
  return manager_->load(chain)[0];
}

ExactCount Bdd::count(const Bdd& cube) const {
  // The variables of the cube are numbered from the root; `levels[v]` is the number of v.
  std::map<uint32_t, uint32_t> levels;
  for (Edge rest = cube.edge(); !is_constant(rest);) {
    const Sons next = manager_->engine_->sons(rest);
    levels.emplace(next.variable, static_cast<uint32_t>(levels.size()));
    rest = next.high;
  }
  const auto all = static_cast<uint32_t>(levels.size());
  const StoredDiagrams diagram = manager_->store({this, 1});
  // The assignments of the variables from the node's own on that make a node's function, and its
  // negation, true.
  struct Counts {
    ExactCount of_function;
    ExactCount of_negation;
    uint32_t level;
  };
  std::vector<Counts> counts{{0, 1, all}};
  counts.reserve(diagram.nodes.size() + 1);
  const auto from = [&](uint64_t reference, uint32_t level, bool negated) {
    const Counts& counted = counts[reference & kIndexMask];
    const bool other = negated != ((reference & kMark) != 0);
    return (other ? counted.of_negation : counted.of_function) << (counted.level - level);
  };
  for (const StoredNode& node : diagram.nodes) {
    const auto found = levels.find(static_cast<uint32_t>(node.b >> 40));
    if (found == levels.end()) {
      throw std::invalid_argument("bdd: count() of a function of a variable outside of the cube");
    }
    const uint32_t below = found->second + 1;
    const uint64_t low = node.b & kIndexMask;
    counts.push_back({from(low, below, false) + from(node.a, below, false),
                      from(low, below, true) + from(node.a, below, true), found->second});
  }
  return from(diagram.roots[0], 0, false);
}

}  // namespace cariama::bdd
