// The checkpoint of a search: a file that holds what is reached after a level.
//
// The file is written under another name and then renamed, so that a process that is killed leaves
// the checkpoint before it. Format, little endian: 8 bytes "CARIBDD1", u64 fingerprint of the
// model, u32 length and text of the strategy, u64 level, diagrams with the two roots reached and
// frontier.
#ifndef CARIAMA_BDD_INTERNAL_CHECKPOINT_H_
#define CARIAMA_BDD_INTERNAL_CHECKPOINT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bdd/bdd.h"
#include "bdd/model_file.h"

namespace cariama::bdd::internal {

struct Checkpoint {
  uint64_t level = 0;
  Bdd reached;
  Bdd frontier;
};

// Returns a hash of the initial states and transitions of a model.
[[nodiscard]] uint64_t model_fingerprint(const Model& model);

class CheckpointFile {
 public:
  CheckpointFile(const std::string& folder, Manager& manager, uint64_t fingerprint,
                 std::string_view strategy);

  // Returns nullopt if the folder has no checkpoint. Errors: INVALID_ARGUMENT.
  [[nodiscard]] absl::StatusOr<std::optional<Checkpoint>> read() const;
  // Only rank 0 of a job writes. Errors: UNAVAILABLE.
  [[nodiscard]] absl::Status write(const Checkpoint& checkpoint) const;

 private:
  std::string folder_;
  std::string path_;
  Manager& manager_;
  uint64_t fingerprint_;
  std::string strategy_;
};

}  // namespace cariama::bdd::internal

#endif  // CARIAMA_BDD_INTERNAL_CHECKPOINT_H_
