#include "bdd/internal/checkpoint.h"

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bdd/diagrams.h"
#include "bdd/internal/byte_reader.h"

namespace cariama::bdd::internal {
namespace {

constexpr std::string_view kMagic = "CARIBDD1";

}  // namespace

uint64_t model_fingerprint(const Model& model) {
  std::vector<Bdd> functions{model.variables, model.initial};
  for (const Transition& one : model.transitions) {
    functions.push_back(one.relation);
    functions.push_back(one.variables);
  }
  const StoredDiagrams diagrams = model.variables.manager()->store(functions);
  uint64_t hash = 0xcbf29ce484222325;
  const auto add = [&](uint64_t word) {
    hash = (hash ^ word) * 0x9e3779b97f4a7c15;
    hash ^= hash >> 29;
  };
  for (const StoredNode& node : diagrams.nodes) {
    add(node.a);
    add(node.b);
  }
  for (const uint64_t root : diagrams.roots) add(root);
  return hash;
}

CheckpointFile::CheckpointFile(const std::string& folder, Manager& manager, uint64_t fingerprint,
                               std::string_view strategy)
    : folder_(folder),
      path_(folder + "/reach.checkpoint"),
      manager_(manager),
      fingerprint_(fingerprint),
      strategy_(strategy) {}

absl::StatusOr<std::optional<Checkpoint>> CheckpointFile::read() const {
  std::ifstream file(path_, std::ios::binary);
  if (!file) return std::nullopt;
  std::ostringstream text;
  text << file.rdbuf();
  const std::string bytes = std::move(text).str();
  const auto wrong = [&](const std::string& what) {
    return absl::InvalidArgumentError(
        absl::StrCat(path_, ": ", what, "; remove the file to begin anew"));
  };
  ByteReader in(bytes, 0);
  if (in.left() < kMagic.size() || in.take(kMagic.size()) != kMagic) {
    return wrong("not a checkpoint of a search");
  }
  uint64_t fingerprint = 0;
  uint32_t length = 0;
  Checkpoint result;
  if (!in.read(fingerprint) || !in.read(length) || length > in.left()) return wrong("truncated");
  const std::string strategy(in.take(length));
  if (!in.read(result.level)) return wrong("truncated");
  if (fingerprint != fingerprint_) return wrong("the checkpoint of another model");
  if (strategy != strategy_) {
    return wrong(absl::StrCat("the checkpoint of a search with --strategy ", strategy));
  }
  size_t offset = in.offset();
  const absl::StatusOr<StoredDiagrams> diagrams = parse_diagrams(bytes, offset);
  if (!diagrams.ok()) return wrong(std::string(diagrams.status().message()));
  if (diagrams->roots.size() != 2 || offset != bytes.size()) return wrong("damaged");
  const std::vector<Bdd> functions = manager_.load(*diagrams);
  result.reached = functions[0];
  result.frontier = functions[1];
  return result;
}

absl::Status CheckpointFile::write(const Checkpoint& checkpoint) const {
  if (manager_.rank() != 0) return absl::OkStatus();
  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  std::string bytes(kMagic);
  append_integer(fingerprint_, bytes);
  append_integer(static_cast<uint32_t>(strategy_.size()), bytes);
  bytes += strategy_;
  append_integer(checkpoint.level, bytes);
  const std::array<Bdd, 2> functions{checkpoint.reached, checkpoint.frontier};
  append_diagrams(manager_.store(functions), bytes);
  const std::string fresh = path_ + ".new";
  std::ofstream file(fresh, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (!file || std::rename(fresh.c_str(), path_.c_str()) != 0) {
    return absl::UnavailableError(absl::StrCat("cannot write the checkpoint ", path_));
  }
  return absl::OkStatus();
}

}  // namespace cariama::bdd::internal
