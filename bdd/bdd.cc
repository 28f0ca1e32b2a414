#include "bdd/bdd.h"

#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>

#include "bdd/internal/engine.h"
#include "bdd/internal/index_map.h"
#include "bdd/internal/request.h"

namespace cariama::bdd {

using internal::Action;

Bdd::Bdd(const Bdd& other) : roots_(other.roots_), place_(other.place_) {
  if (roots_ == nullptr) return;
  ++roots_->objects;
  ++roots_->all[place_].references;
}

Bdd::~Bdd() {
  if (roots_ != nullptr) release();
}

void Bdd::release() {
  internal::Roots::Root& root = roots_->all[place_];
  if (--root.references == 0) {
    root.edge = kFalse;
    root.even = true;
    roots_->free.push_back(place_);
  }
  if (--roots_->objects == 0 && roots_->manager == nullptr) delete roots_;
}

Manager& Bdd::owner() const {
  if (Manager* const owner = manager(); owner != nullptr) return *owner;
  throw std::invalid_argument(
      roots_ == nullptr ? "bdd: an operand is a Bdd without a value: assign a function to it first"
                        : "bdd: the manager of an operand has been destroyed: use its functions "
                          "before the manager, or Job::end(), ends");
}

Edge Bdd::edge() const {
  (void)owner();
  return roots_->all[place_].edge;
}

Bdd Bdd::operator~() const { return owner().hold(negate(edge()), owner().is_even(place_)); }

Bdd operator&(const Bdd& a, const Bdd& b) {
  return a.owner().execute({.action = Action::kAnd, .a = {a.place_}, .b = {a.owner().place_of(b)}});
}

Bdd operator|(const Bdd& a, const Bdd& b) {
  return a.owner().execute({.action = Action::kAnd,
                            .a = {a.place_, kMark},
                            .b = {a.owner().place_of(b), kMark},
                            .result_mark = kMark});
}

Bdd operator^(const Bdd& a, const Bdd& b) {
  return a.owner().execute({.action = Action::kXor, .a = {a.place_}, .b = {a.owner().place_of(b)}});
}

Bdd Bdd::minus(const Bdd& other) const {
  return owner().execute(
      {.action = Action::kAnd, .a = {place_}, .b = {owner().place_of(other), kMark}});
}

Bdd Bdd::ite(const Bdd& a, const Bdd& b) const {
  return owner().execute({.action = Action::kIte,
                          .a = {place_},
                          .b = {owner().place_of(a)},
                          .c = {owner().place_of(b)}});
}

Bdd Bdd::exists(const Bdd& cube) const {
  return owner().execute(
      {.action = Action::kExists, .a = {place_}, .c = {owner().place_of_cube(cube)}});
}

Bdd Bdd::and_exists(const Bdd& other, const Bdd& cube) const {
  return owner().execute({.action = Action::kAndExists,
                          .a = {place_},
                          .b = {owner().place_of(other)},
                          .c = {owner().place_of_cube(cube)}});
}

Bdd Bdd::compose(uint32_t variable, const Bdd& by) const {
  if (variable > kMaxVariable) throw std::out_of_range("bdd: the variable is too large");
  return owner().execute({.action = Action::kCompose,
                          .a = {place_},
                          .b = {owner().place_of(by)},
                          .variable = variable});
}

Bdd Bdd::relnext(const Bdd& relation, const Bdd& variables) const {
  owner().require_even(*this, "the states");
  owner().require_even(variables, "the variables");
  return owner().execute({.action = Action::kNext,
                          .a = {place_},
                          .b = {owner().place_of(relation)},
                          .c = {owner().place_of_cube(variables)}});
}

Bdd Bdd::relprev(const Bdd& relation, const Bdd& variables) const {
  owner().require_even(*this, "the states");
  owner().require_even(variables, "the variables");
  return owner().execute({.action = Action::kPrevious,
                          .a = {place_},
                          .b = {owner().place_of(relation)},
                          .c = {owner().place_of_cube(variables)}});
}

uint32_t Bdd::variable() const { return owner().engine().variable(edge()); }
Bdd Bdd::low() const {
  return owner().hold(owner().engine().sons(edge()).low, owner().is_even(place_));
}
Bdd Bdd::high() const {
  return owner().hold(owner().engine().sons(edge()).high, owner().is_even(place_));
}

uint64_t Bdd::nodes() const { return owner().nodes({this, 1}); }

bool Bdd::is_cube() const { return owner().is_cube(*this); }

Bdd Bdd::support() const {
  std::set<uint32_t> variables;
  for (const StoredNode& node : owner().store({this, 1}).nodes) {
    variables.insert(static_cast<uint32_t>(node.b >> 40));
  }
  return owner().cube(std::vector<uint32_t>(variables.begin(), variables.end()));
}

bool Bdd::evaluate(const std::vector<bool>& assignment) const {
  Edge at = edge();
  while (!is_constant(at)) {
    const Sons sons = owner().engine().sons(at);
    const bool value = sons.variable < assignment.size() && assignment[sons.variable];
    at = value ? sons.high : sons.low;
  }
  return at == kTrue;
}

Bdd Bdd::pick(const Bdd& cube) const {
  (void)owner().place_of_cube(cube);
  if (is_false()) return *this;
  const auto outside = [] {
    return std::invalid_argument("bdd: pick() of a function of a variable outside of the cube");
  };
  std::vector<std::pair<uint32_t, bool>> values;
  Edge at = edge();
  for (Edge rest = cube.edge(); !is_constant(rest);) {
    const Sons next = owner().engine().sons(rest);
    const Sons sons = owner().engine().sons(at);
    bool value = false;
    if (sons.variable < next.variable) throw outside();
    if (sons.variable == next.variable) {
      value = sons.low == kFalse;
      at = value ? sons.high : sons.low;
    }
    values.emplace_back(next.variable, value);
    rest = next.high;
  }
  if (!is_constant(at)) throw outside();
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
  return owner().load(chain)[0];
}

ExactCount Bdd::count(const Bdd& cube) const {
  (void)owner().place_of_cube(cube);
  // The variables of the cube are numbered from the root; `levels[v]` is the number of v.
  std::map<uint32_t, uint32_t> levels;
  for (Edge rest = cube.edge(); !is_constant(rest);) {
    const Sons next = owner().engine().sons(rest);
    levels.emplace(next.variable, static_cast<uint32_t>(levels.size()));
    rest = next.high;
  }
  const auto all = static_cast<uint32_t>(levels.size());
  const StoredDiagrams diagram = owner().store({this, 1});
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
