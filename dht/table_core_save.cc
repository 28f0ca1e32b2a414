// Saving a table to files, and loading it.
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "dht/agreement.h"
#include "dht/internal/table_file.h"
#include "dht/table_core.h"
#include "dtutils/error.h"
#include "dtutils/internal/sync_folder.h"

namespace cariama {
namespace {

constexpr std::string_view kNoFileMemory = "no memory for saving or loading a hash table";

std::string table_file_name(const std::string& prefix, uint32_t rank) {
  return prefix + "." + std::to_string(rank);
}

}  // namespace

absl::StatusOr<uint64_t> TableCore::save(const std::string& prefix, Deadline deadline) {
  // A late transfer could put a key between the two passes over the buckets that write a file: the
  // header would then state another number of keys than follow it.
  if (absl::Status idle = await_readiness(Step::kSave, "the hash table was not saved", deadline);
      !idle.ok()) {
    return idle;
  }
  const uint32_t rank = fabric().rank();
  // The largest of all clocks identifies the save.
  const auto clock =
      static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
  const auto id = all_.all_reduce(
      clock, [](uint64_t a, uint64_t b) { return a < b ? b : a; }, deadline);
  if (!id.ok()) return id.status();
  internal::TableFileHeader header;
  header.words = static_cast<uint32_t>(words_);
  header.rank = rank;
  header.processes = geometry_.processes;
  header.buckets = geometry_.buckets;
  header.probe_limit = geometry_.probe_limit;
  header.id = *id;
  const std::string name = table_file_name(prefix, rank);
  const std::string unfinished = name + ".unfinished";
  uint64_t keys = 0;
  const absl::Status written = status_of(kNoFileMemory, [&] {
    const auto count = internal::write_table_file(unfinished, header, local_words());
    if (count.ok()) keys = *count;
    return count.status();
  });
  absl::Status all = agree(all_, written, "the hash table was not saved", deadline);
  if (!all.ok()) {
    ::unlink(unfinished.c_str());
    return all;
  }
  const absl::Status named = status_of(kNoFileMemory, [&] {
    if (std::rename(unfinished.c_str(), name.c_str()) == 0) return internal::sync_folder_of(name);
    return make_errno_error(errno, ErrorScope::kProcess, "cannot rename " + unfinished);
  });
  all = agree(all_, named, "the hash table was not saved", deadline);
  if (!all.ok()) return all;
  return all_.all_reduce(keys, std::plus<>(), deadline);
}

absl::Status TableCore::too_small() const {
  return make_error(absl::StatusCode::kResourceExhausted, ErrorScope::kOperation,
                    "a hash table of " + std::to_string(geometry_.buckets) +
                        " buckets per process is too small for the saved table",
                    "create it with more buckets");
}

absl::StatusOr<TableLoadResult> TableCore::load(const std::string& prefix, const PutStored& put,
                                                const std::function<absl::Status()>& finish,
                                                Deadline deadline) {
  if (absl::Status idle = await_readiness(Step::kLoad, "the hash table was not loaded", deadline);
      !idle.ok()) {
    return idle;
  }
  const uint32_t rank = fabric().rank();
  // All processes read the header of file 0, which says how many files there are.
  internal::TableFileHeader first;
  absl::Status mine = status_of(kNoFileMemory, [&] {
    return internal::read_table_file(
        table_file_name(prefix, 0),
        [&](const internal::TableFileHeader& header) {
          first = header;
          return absl::OkStatus();
        },
        nullptr);
  });
  if (mine.ok() && first.words != words_) {
    mine = make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kOperation,
                      "the saved table " + prefix + " has keys of " + std::to_string(first.words) +
                          " words, this table of " + std::to_string(words_),
                      "load it into a table of the same width");
  }
  if (absl::Status all = agree(all_, mine, "the hash table was not loaded", deadline, first.id);
      !all.ok()) {
    return all;
  }
  const auto present = size(deadline);
  if (!present.ok()) return present.status();
  const bool same_shape = *present == 0 && first.processes == geometry_.processes &&
                          first.buckets == geometry_.buckets &&
                          first.probe_limit == geometry_.probe_limit;
  uint64_t keys = 0;
  const std::span<uint64_t> own = local_words();
  const auto read_file = [&](uint32_t file, bool restore) {
    const std::string name = table_file_name(prefix, file);
    // No key is put before the header was compared. `restore` follows from file 0, so it holds for
    // a file only if the shapes are equal.
    const auto accept = [&](const internal::TableFileHeader& header) {
      internal::TableFileHeader expected = first;
      expected.rank = file;
      expected.keys = header.keys;
      if (header != expected) {
        return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kOperation,
                          "the saved tables " + table_file_name(prefix, 0) + " and " + name +
                              " are of different saves",
                          "load files that one save has written");
      }
      keys += header.keys;
      return absl::OkStatus();
    };
    return internal::read_table_file(
        name, accept, [&](uint64_t position, std::span<const uint64_t> stored) -> absl::Status {
          if (!restore) return put(stored);
          if (geometry_.home_of(stored[0]).owner != rank) {
            return make_error(absl::StatusCode::kDataLoss, ErrorScope::kOperation,
                              "the saved table " + name + " is damaged: the key of bucket " +
                                  std::to_string(position) + " belongs to another process",
                              "load an older save");
          }
          std::copy(stored.begin(), stored.end(),
                    own.begin() + static_cast<ptrdiff_t>(position * words_));
          return absl::OkStatus();
        });
  };
  const auto read_files = [&](bool restore) -> absl::Status {
    keys = 0;
    const absl::Status read = status_of(kNoFileMemory, [&] {
      for (uint32_t file = rank; file < first.processes; file += geometry_.processes) {
        if (absl::Status done = read_file(file, restore); !done.ok()) return done;
      }
      return restore ? absl::OkStatus() : finish();
    });
    return agree(all_, read, "the hash table was not loaded", deadline);
  };
  if (absl::Status read = read_files(same_shape); !read.ok()) return read;
  bool restored = same_shape;
  if (restored) {
    // A bucket whose last word was not set when it was saved is empty now: an operation would not
    // find the keys behind it.
    const auto whole = all_.all_reduce(
        uint32_t{has_whole_paths()}, [](uint32_t a, uint32_t b) { return a & b; }, deadline);
    if (!whole.ok()) return whole.status();
    restored = *whole != 0;
    if (!restored) {
      if (absl::Status cleared = wipe(deadline); !cleared.ok()) return cleared;
      if (absl::Status read = read_files(false); !read.ok()) return read;
    }
  }
  const auto total = all_.all_reduce(keys, std::plus<>(), deadline);
  if (!total.ok()) return total.status();
  return TableLoadResult{*total, restored};
}

bool TableCore::has_whole_paths() const {
  const std::span<const uint64_t> words = local_words();
  const uint64_t buckets = geometry_.buckets;
  uint64_t empty = 0;
  while (empty < buckets && words[empty * words_] != 0) ++empty;
  if (empty == buckets) return true;
  // Follows the buckets from behind that empty one, once around the share.
  uint64_t run = 0;  // occupied buckets before the current one, without a gap
  for (uint64_t i = 1; i < buckets; ++i) {
    const uint64_t at = (empty + i) % buckets;
    const uint64_t word = words[at * words_];
    if (word == 0) {
      run = 0;
      continue;
    }
    const uint64_t home = geometry_.home_of(word).position;
    const uint64_t passed = at >= home ? at - home : at + buckets - home;
    if (passed > run) return false;
    ++run;
  }
  return true;
}

}  // namespace cariama
