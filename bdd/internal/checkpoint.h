// The checkpoint of a search: a file with the states that are reached after a level.
//
// write_file() (files.h) replaces the file, so if the process is killed, the previous checkpoint
// remains. Format, little endian: 8 bytes "CARIBDD2", u64 fingerprint of the model, u32 length and
// text of the strategy, u64 level, diagrams with the two roots reached and frontier, u64 checksum
// of all bytes before.
#ifndef CARIAMA_BDD_INTERNAL_CHECKPOINT_H_
#define CARIAMA_BDD_INTERNAL_CHECKPOINT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bdd/bdd.h"
#include "bdd/diagrams.h"
#include "bdd/model_file.h"
#include "dtutils/internal/file_descriptor.h"

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
  // `most_level`: the largest level that a search of the model has.
  CheckpointFile(const std::string& folder, Manager& manager, uint64_t fingerprint,
                 std::string_view strategy, uint64_t most_level);

  // Locks the folder until this object is destroyed, and creates the folder if it does not exist.
  // Without the lock, two searches would replace each other's checkpoints. Call lock() first.
  // Collective: rank 0 locks a file reach.lock, and all processes get its error. Errors: those of
  // lock_file().
  [[nodiscard]] absl::Status lock();
  // Returns nullopt if the folder has no checkpoint. Collective: each process of a job reads the
  // file, and gets an error if one does. Errors: INVALID_ARGUMENT (another model or strategy, a
  // damaged file), FAILED_PRECONDITION (the processes see different files), those of read_file().
  [[nodiscard]] absl::StatusOr<std::optional<Checkpoint>> read() const;
  // Replaces the checkpoint. Collective: rank 0 writes, and all processes get its error. Errors:
  // those of write_file().
  [[nodiscard]] absl::Status write(const Checkpoint& checkpoint) const;

 private:
  // Reads the file in this process. `diagrams` stays empty if there is no file.
  [[nodiscard]] absl::Status parse(uint64_t& level, std::optional<StoredDiagrams>& diagrams,
                                   uint64_t& seen) const;

  std::string folder_;
  std::string path_;
  Manager& manager_;
  uint64_t fingerprint_;
  std::string strategy_;
  uint64_t most_level_;
  FileDescriptor lock_;  // in rank 0
};

}  // namespace cariama::bdd::internal

#endif  // CARIAMA_BDD_INTERNAL_CHECKPOINT_H_
