// Model: a transition system in a .bdd model file, the format of LTSmin and Sylvan.
//
//   absl::StatusOr<ModelFile> file = read_model_file("anderson.4.bdd");
//   Model model = load_model(manager, *file);
//
// A state is a vector of integers, each of some bits. State bit b of the vector is the variable 2b,
// its value after a transition the variable 2b+1. The most significant bit of an integer has the
// smallest variable. The file, in little-endian integers without padding:
//
//   i32 k; i32 bits[k]; i32 bits of the action label
//   SET initial states
//   i32 number of groups; for each: i32 r, i32 w, i32 read[r], i32 written[w]
//   for each group: diagrams with one root, the relation
//   i32 1 if SET reachable states follow, else 0
//   i32 number of labels; for each: u32 length, text
//
// SET is i32 -1, or i32 p and i32 proj[p] (the integers that the set is over); then diagrams with
// one root. Diagrams: diagrams.h. Lists of integers are in ascending order.
//
// The relation of a group is over the variables of the integers that it reads or writes. An integer
// that is written but not read constrains its primed bits only. Labels are variables from 1000000
// on. Limits: 64 bits in an integer, 4,096 bits in a state, kMaxLevels nodes on a path of a diagram
// (diagrams.h).
#ifndef CARIAMA_BDD_MODEL_FILE_H_
#define CARIAMA_BDD_MODEL_FILE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bdd/bdd.h"
#include "bdd/diagrams.h"
#include "bdd/export.h"

namespace cariama::bdd {

// Variables of action labels begin here.
inline constexpr uint32_t kFirstLabelVariable = 1'000'000;

struct ModelFile {
  struct Set {
    std::optional<std::vector<uint32_t>> projection;  // nullopt: all integers
    StoredDiagrams states;                            // one root
  };
  struct Group {
    std::vector<uint32_t> read;
    std::vector<uint32_t> written;
    StoredDiagrams relation;  // one root
  };

  std::vector<uint32_t> bits;  // of each integer of a state
  uint32_t action_bits = 0;
  Set initial;
  std::vector<Group> groups;
  std::optional<Set> reachable;
  std::vector<std::string> labels;
};

// Parses the bytes of a model file. Accepts complete and consistent files only. Error:
// INVALID_ARGUMENT; the message names the offset of the invalid byte. Thread-safe.
[[nodiscard]] CARIAMA_BDD_EXPORT absl::StatusOr<ModelFile> parse_model(std::string_view bytes);

// Reads a file. Errors: those of read_file() (files.h), and those of parse_model() with the name of
// the file.
[[nodiscard]] CARIAMA_BDD_EXPORT absl::StatusOr<ModelFile> read_model_file(const std::string& path);

// Returns the bytes of a model file. parse_model() returns an equal model.
[[nodiscard]] CARIAMA_BDD_EXPORT std::string format_model(const ModelFile& model);

// A model in a manager. The relation of a transition depends on the variables 2b and 2b + 1 for
// each variable 2b of its Transition::variables, and on labels (kFirstLabelVariable and above),
// which are quantified. Transition::variables are some of `variables`.
struct Model {
  std::vector<uint32_t> bits;       // of each integer of a state
  std::vector<uint32_t> first_bit;  // number of the first state bit of each integer
  uint32_t state_bits = 0;          // of the whole state
  Bdd variables;                    // cube of all unprimed variables
  Bdd initial;
  std::vector<Transition> transitions;  // one for each group

  // Returns INVALID_ARGUMENT unless `bits` and `first_bit` have the same size, all bits are below
  // `state_bits`, and no integer has more than 64 bits.
  [[nodiscard]] CARIAMA_BDD_EXPORT absl::Status check_bits() const;
  // Returns the integers of a state, which is a conjunction as Bdd::pick(variables) returns it.
  // Throws std::invalid_argument with the error of check_bits().
  [[nodiscard]] CARIAMA_BDD_EXPORT std::vector<uint64_t> values(const Bdd& state) const;
  // Returns the states in which the integers have the values in `text`: "3=1,7=0" for the integers
  // 3 and 7, counted from 0. Error: INVALID_ARGUMENT.
  [[nodiscard]] CARIAMA_BDD_EXPORT absl::StatusOr<Bdd> states_of(const std::string& text) const;
};

// Creates the diagrams of a file. Throws as the operations of `manager`.
[[nodiscard]] CARIAMA_BDD_EXPORT Model load_model(Manager& manager, const ModelFile& file);

}  // namespace cariama::bdd

#endif  // CARIAMA_BDD_MODEL_FILE_H_
