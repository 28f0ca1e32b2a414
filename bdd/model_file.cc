#include "bdd/model_file.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "bdd/files.h"
#include "bdd/internal/byte_reader.h"

namespace cariama::bdd {
namespace {

using internal::append_integer;
using internal::ByteReader;

constexpr int32_t kMostIntegers = 1 << 16;
constexpr int32_t kMostBits = 64;  // of one integer
// Of a state: a relation has two variables for each bit, and labels; kMaxLevels bounds them
// together.
constexpr uint32_t kMostStateBits = 4096;

// Reads the parts of a model file in order. After the first error, `error_` contains it.
class ModelReader {
 public:
  explicit ModelReader(std::string_view bytes) : bytes_(bytes), in_(bytes, 0) {}

  absl::StatusOr<ModelFile> read() {
    ModelFile model;
    if (!read_header(model) || !read_set(model.initial) || !read_groups(model) ||
        !read_end(model)) {
      return error_;
    }
    return model;
  }

 private:
  bool fail(size_t offset, const std::string& what) {
    error_ = ByteReader::error(offset, what);
    return false;
  }
  bool ends(const std::string& what) {
    error_ = in_.ends(what);
    return false;
  }
  // Reads an integer in [least, most].
  bool number(const std::string& what, int32_t least, int32_t most, int32_t& value) {
    const size_t at = in_.offset();
    if (!in_.read(value)) return ends(what);
    if (value < least || value > most) {
      return fail(at, absl::StrCat(what, " is ", value, "; expected ", least, " to ", most));
    }
    return true;
  }

  bool read_header(ModelFile& model) {
    int32_t count = 0;
    if (!number("the number of integers", 1, kMostIntegers, count)) return false;
    for (int32_t i = 0; i < count; ++i) {
      int32_t bits = 0;
      const size_t at = in_.offset();
      if (!number(absl::StrCat("the number of bits of integer ", i), 1, kMostBits, bits)) {
        return false;
      }
      first_bit_.push_back(state_bits_);
      model.bits.push_back(static_cast<uint32_t>(bits));
      state_bits_ += static_cast<uint32_t>(bits);
      if (state_bits_ > kMostStateBits) return fail(at, "a state has more than 4096 bits");
    }
    integers_ = static_cast<uint32_t>(count);
    bits_ = model.bits;
    int32_t action_bits = 0;
    if (!number("the number of bits of the action label", 0, 1 << 20, action_bits)) return false;
    model.action_bits = static_cast<uint32_t>(action_bits);
    return true;
  }

  // Reads `count` integers in ascending order.
  bool read_projection(int32_t count, std::vector<uint32_t>& projection) {
    for (int32_t i = 0; i < count; ++i) {
      int32_t integer = 0;
      const int32_t least = projection.empty() ? 0 : static_cast<int32_t>(projection.back()) + 1;
      if (!number("an index of a projection", least, static_cast<int32_t>(integers_) - 1,
                  integer)) {
        return false;
      }
      projection.push_back(static_cast<uint32_t>(integer));
    }
    return true;
  }

  bool read_set(ModelFile::Set& set) {
    int32_t size = 0;
    if (!number("the size of a projection", -1, static_cast<int32_t>(integers_), size))
      return false;
    if (size >= 0 && !read_projection(size, set.projection.emplace())) return false;
    std::vector<bool> allowed(2 * state_bits_, false);
    for (uint32_t i = 0; i < integers_; ++i) {
      if (set.projection &&
          !std::binary_search(set.projection->begin(), set.projection->end(), i)) {
        continue;
      }
      for (uint32_t bit = 0; bit < bits_[i]; ++bit) allowed[2 * (first_bit_[i] + bit)] = true;
    }
    return read_diagram(set.states, allowed, false, "a set");
  }

  // Reads diagrams with one root, over the variables that are `allowed`, and labels if `labels`.
  bool read_diagram(StoredDiagrams& diagrams, const std::vector<bool>& allowed, bool labels,
                    const std::string& of) {
    size_t offset = in_.offset();
    const size_t first_node = offset + sizeof(uint64_t);
    absl::StatusOr<StoredDiagrams> read = parse_diagrams(bytes_, offset);
    if (!read.ok()) {
      error_ = read.status();
      return false;
    }
    if (read->roots.size() != 1) {
      return fail(in_.offset(),
                  absl::StrCat(of, " has ", read->roots.size(), " roots; expected 1"));
    }
    for (size_t i = 0; i < read->nodes.size(); ++i) {
      const uint64_t variable = read->nodes[i].b >> 40;
      if (variable < allowed.size() && allowed[variable]) continue;
      if (labels && variable >= kFirstLabelVariable) continue;
      return fail(first_node + i * sizeof(StoredNode),
                  absl::StrCat("node ", i + 1, " of ", of, " has variable ", variable,
                               ", which is not in the projection"));
    }
    in_ = ByteReader(bytes_, offset);
    diagrams = *std::move(read);
    return true;
  }

  bool read_groups(ModelFile& model) {
    int32_t count = 0;
    if (!number("the number of groups", 0, kMostIntegers, count)) return false;
    for (int32_t i = 0; i < count; ++i) {
      ModelFile::Group& group = model.groups.emplace_back();
      int32_t read = 0;
      int32_t written = 0;
      const auto most = static_cast<int32_t>(integers_);
      if (!number("the number of integers read", 0, most, read) ||
          !number("the number of integers written", 0, most, written) ||
          !read_projection(read, group.read) || !read_projection(written, group.written)) {
        return false;
      }
    }
    for (ModelFile::Group& group : model.groups) {
      std::vector<bool> allowed(2 * state_bits_, false);
      for (const std::vector<uint32_t>* list : {&group.read, &group.written}) {
        for (const uint32_t i : *list) {
          std::fill_n(allowed.begin() + 2 * first_bit_[i], 2 * bits_[i], true);
        }
      }
      if (!read_diagram(group.relation, allowed, true, "a relation")) return false;
    }
    return true;
  }

  bool read_end(ModelFile& model) {
    int32_t has_reachable = 0;
    if (!number("the mark of reachable states", 0, 1, has_reachable)) return false;
    if (has_reachable == 1 && !read_set(model.reachable.emplace())) return false;
    int32_t count = 0;
    if (!number("the number of labels", 0, 1 << 20, count)) return false;
    for (int32_t i = 0; i < count; ++i) {
      uint32_t length = 0;
      const size_t at = in_.offset();
      if (!in_.read(length)) return ends("the length of a label");
      if (length > in_.left()) {
        return fail(at, absl::StrCat("a label of ", length, " bytes does not fit into the file"));
      }
      model.labels.emplace_back(in_.take(length));
    }
    if (in_.left() != 0) return fail(in_.offset(), "the file continues behind the model");
    return true;
  }

  const std::string_view bytes_;
  ByteReader in_;
  absl::Status error_;
  uint32_t integers_ = 0;
  uint32_t state_bits_ = 0;
  std::vector<uint32_t> bits_;
  std::vector<uint32_t> first_bit_;
};

void append_list(const std::vector<uint32_t>& list, std::string& bytes) {
  for (const uint32_t one : list) append_integer(static_cast<int32_t>(one), bytes);
}

void append_set(const ModelFile::Set& set, std::string& bytes) {
  append_integer(set.projection ? static_cast<int32_t>(set.projection->size()) : -1, bytes);
  if (set.projection) append_list(*set.projection, bytes);
  append_diagrams(set.states, bytes);
}

}  // namespace

absl::StatusOr<ModelFile> parse_model(std::string_view bytes) { return ModelReader(bytes).read(); }

absl::StatusOr<ModelFile> read_model_file(const std::string& path) {
  const absl::StatusOr<std::string> bytes = read_file(path);
  if (!bytes.ok()) return bytes.status();
  absl::StatusOr<ModelFile> model = parse_model(*bytes);
  if (model.ok()) return model;
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", model.status().message()));
}

std::string format_model(const ModelFile& model) {
  std::string bytes;
  append_integer(static_cast<int32_t>(model.bits.size()), bytes);
  append_list(model.bits, bytes);
  append_integer(static_cast<int32_t>(model.action_bits), bytes);
  append_set(model.initial, bytes);
  append_integer(static_cast<int32_t>(model.groups.size()), bytes);
  for (const ModelFile::Group& group : model.groups) {
    append_integer(static_cast<int32_t>(group.read.size()), bytes);
    append_integer(static_cast<int32_t>(group.written.size()), bytes);
    append_list(group.read, bytes);
    append_list(group.written, bytes);
  }
  for (const ModelFile::Group& group : model.groups) append_diagrams(group.relation, bytes);
  append_integer(static_cast<int32_t>(model.reachable.has_value()), bytes);
  if (model.reachable) append_set(*model.reachable, bytes);
  append_integer(static_cast<int32_t>(model.labels.size()), bytes);
  for (const std::string& label : model.labels) {
    append_integer(static_cast<uint32_t>(label.size()), bytes);
    bytes += label;
  }
  return bytes;
}

Model load_model(Manager& manager, const ModelFile& file) {
  Model model;
  model.bits = file.bits;
  for (const uint32_t bits : file.bits) {
    model.first_bit.push_back(model.state_bits);
    model.state_bits += bits;
  }
  const auto cube_of = [&](const std::set<uint32_t>& integers) {
    std::vector<uint32_t> variables;
    for (const uint32_t i : integers) {
      for (uint32_t bit = 0; bit < model.bits[i]; ++bit) {
        variables.push_back(2 * (model.first_bit[i] + bit));
      }
    }
    return manager.cube(variables);
  };
  std::set<uint32_t> all;
  for (uint32_t i = 0; i < model.bits.size(); ++i) all.insert(i);
  model.variables = cube_of(all);
  model.initial = manager.load(file.initial.states)[0];
  for (const ModelFile::Group& group : file.groups) {
    std::set<uint32_t> integers(group.read.begin(), group.read.end());
    integers.insert(group.written.begin(), group.written.end());
    model.transitions.push_back({manager.load(group.relation)[0], cube_of(integers)});
  }
  return model;
}

absl::Status Model::check_bits() const {
  bool fits = bits.size() == first_bit.size();
  for (size_t i = 0; fits && i < bits.size(); ++i) {
    fits = bits[i] <= 64 && uint64_t{first_bit[i]} + bits[i] <= state_bits;
  }
  if (fits) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "Model::bits and first_bit differ in size, name a bit that is not below state_bits, or give "
      "an integer more than 64 bits");
}

std::vector<uint64_t> Model::values(const Bdd& state) const {
  if (const absl::Status fits = check_bits(); !fits.ok()) {
    throw std::invalid_argument(std::string(fits.message()));
  }
  std::vector<bool> set(state_bits, false);
  for (Bdd at = state; at.variable() != kNoVariable;) {
    const bool value = at.low().is_false();
    if (value && at.variable() / 2 < state_bits) set[at.variable() / 2] = true;
    at = value ? at.high() : at.low();
  }
  std::vector<uint64_t> result;
  for (size_t i = 0; i < bits.size(); ++i) {
    uint64_t value = 0;
    for (uint32_t bit = 0; bit < bits[i]; ++bit) {
      value = value << 1 | (set[first_bit[i] + bit] ? 1 : 0);
    }
    result.push_back(value);
  }
  return result;
}

absl::StatusOr<Bdd> Model::states_of(const std::string& text) const {
  if (variables.manager() == nullptr) {
    return absl::InvalidArgumentError("the model has no variables: set Model::variables");
  }
  if (absl::Status fits = check_bits(); !fits.ok()) return fits;
  Manager& manager = *variables.manager();
  Bdd states = manager.constant(true);
  const std::vector<std::string> parts = absl::StrSplit(text, ',');
  for (const std::string& part : parts) {
    const std::vector<std::string> sides = absl::StrSplit(part, '=');
    uint64_t integer = 0;
    uint64_t value = 0;
    if (sides.size() != 2 || !absl::SimpleAtoi(sides[0], &integer) ||
        !absl::SimpleAtoi(sides[1], &value)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "'", part,
          "' is not INTEGER=VALUE with numbers below 2^64; an assignment is like 3=1,7=0, integers "
          "from 0"));
    }
    if (integer >= bits.size()) {
      return absl::InvalidArgumentError(absl::StrCat("the model has no integer ", integer,
                                                     "; its integers are 0 to ", bits.size() - 1));
    }
    const uint32_t width = bits[integer];
    if (width < 64 && value >> width != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("integer ", integer, " has ", width, " bits, too few for ", value));
    }
    for (uint32_t bit = 0; bit < width; ++bit) {
      const Bdd variable = manager.variable(2 * (first_bit[integer] + bit));
      states = states & ((value >> (width - 1 - bit) & 1) != 0 ? variable : ~variable);
    }
  }
  return states;
}

}  // namespace cariama::bdd
