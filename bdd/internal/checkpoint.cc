#include "bdd/internal/checkpoint.h"

#include <fcntl.h>

#include <array>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bdd/diagrams.h"
#include "bdd/files.h"
#include "bdd/internal/byte_reader.h"
#include "bdd/internal/file_lock.h"
#include "dtutils/internal/regular_file.h"

namespace cariama::bdd::internal {
namespace {

constexpr std::string_view kMagic = "CARIBDD2";

}  // namespace

uint64_t model_fingerprint(const Model& model) {
  std::vector<Bdd> functions{model.variables, model.initial};
  for (const Transition& one : model.transitions) {
    functions.push_back(one.relation);
    functions.push_back(one.variables);
  }
  std::string bytes;
  append_diagrams(model.variables.manager()->store(functions), bytes);
  return checksum(bytes);
}

CheckpointFile::CheckpointFile(const std::string& folder, Manager& manager, uint64_t fingerprint,
                               std::string_view strategy, uint64_t most_level)
    : folder_(folder),
      path_(folder + "/reach.checkpoint"),
      manager_(manager),
      fingerprint_(fingerprint),
      strategy_(strategy),
      most_level_(most_level) {}

absl::Status CheckpointFile::lock() {
  absl::Status locked;
  if (manager_.rank() == 0) {
    std::error_code error;
    std::filesystem::create_directories(folder_, error);  // if it fails, lock_file() says why
    absl::StatusOr<FileDescriptor> file = lock_file(
        folder_ + "/reach.lock", absl::StrCat("another search uses the checkpoint folder ", folder_,
                                              ": let it end, or use a folder of its own"));
    locked = file.status();
    if (file.ok()) lock_ = *std::move(file);
  }
  return manager_.agree(locked, "the checkpoint folder was not locked");
}

absl::StatusOr<std::optional<Checkpoint>> CheckpointFile::read() const {
  uint64_t level = 0;
  std::optional<StoredDiagrams> diagrams;
  uint64_t seen = 0;  // checksum of the file; 0 without a file
  const absl::Status parsed = parse(level, diagrams, seen);
  const absl::Status agreed =
      manager_.agree(parsed, absl::StrCat("the checkpoint ", path_, " was not read"), seen);
  if (!agreed.ok()) return agreed;
  if (!diagrams) return std::nullopt;
  const std::vector<Bdd> functions = manager_.load(*diagrams);
  return Checkpoint{level, functions[0], functions[1]};
}

absl::Status CheckpointFile::parse(uint64_t& level, std::optional<StoredDiagrams>& diagrams,
                                   uint64_t& seen) const {
  const auto opened = cariama::internal::open_regular_file(path_, O_RDONLY, "cannot open");
  if (absl::IsNotFound(opened.status())) return absl::OkStatus();
  if (!opened.ok()) return opened.status();
  const absl::StatusOr<std::string> file = read_file(path_);
  if (!file.ok()) return file.status();
  const auto wrong = [&](const std::string& what) {
    return absl::InvalidArgumentError(
        absl::StrCat(path_, ": ", what, "; remove the file to begin anew"));
  };
  const std::string_view all = *file;
  if (all.substr(0, kMagic.size()) != kMagic) return wrong("not a checkpoint of a search");
  if (all.size() < kMagic.size() + sizeof(uint64_t)) return wrong("truncated");
  const std::string_view bytes = all.substr(0, all.size() - sizeof(uint64_t));
  uint64_t expected = 0;
  seen = checksum(bytes);
  if (!ByteReader(all, bytes.size()).read(expected) || seen != expected) {
    return wrong("truncated or damaged: its checksum is wrong");
  }
  ByteReader in(bytes, kMagic.size());
  uint64_t fingerprint = 0;
  uint32_t length = 0;
  if (!in.read(fingerprint) || !in.read(length) || length > in.left()) return wrong("truncated");
  const std::string strategy(in.take(length));
  if (!in.read(level)) return wrong("truncated");
  if (fingerprint != fingerprint_) return wrong("the checkpoint of another model");
  if (strategy != strategy_) {
    return wrong(absl::StrCat("the checkpoint of a search with --strategy ", strategy));
  }
  if (level > most_level_) return wrong(absl::StrCat("level ", level, " does not exist"));
  size_t offset = in.offset();
  absl::StatusOr<StoredDiagrams> parsed = parse_diagrams(bytes, offset);
  if (!parsed.ok()) return wrong(std::string(parsed.status().message()));
  if (parsed->roots.size() != 2 || offset != bytes.size()) return wrong("damaged");
  diagrams = *std::move(parsed);
  return absl::OkStatus();
}

absl::Status CheckpointFile::write(const Checkpoint& checkpoint) const {
  absl::Status written;
  if (manager_.rank() == 0) {
    std::string bytes(kMagic);
    append_integer(fingerprint_, bytes);
    append_integer(static_cast<uint32_t>(strategy_.size()), bytes);
    bytes += strategy_;
    append_integer(checkpoint.level, bytes);
    const std::array<Bdd, 2> functions{checkpoint.reached, checkpoint.frontier};
    append_diagrams(manager_.store(functions), bytes);
    append_integer(checksum(bytes), bytes);
    written = write_file(path_, bytes);
  }
  return manager_.agree(written, "no checkpoint was written");
}

}  // namespace cariama::bdd::internal
