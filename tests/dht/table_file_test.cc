// Saved tables: a job of the same shape, or of another shape, can load a table; the error of a
// damaged file names the file.
#include "dht/internal/table_file.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "dht/hash_table.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/dht/table_test_support.h"
#include "tests/dsfabric/testing/local_job.h"
#include "tests/dsfabric/testing/process_job.h"

namespace cariama::testing {
namespace {

using ::testing::HasSubstr;

// A folder that is removed with its files.
class ScratchFolder {
 public:
  ScratchFolder() {
    char pattern[] = "/tmp/cariama-dht-XXXXXX";
    name_ = mkdtemp(pattern);
  }
  ~ScratchFolder() {
    for (int rank = 0; rank < 16; ++rank) {
      for (const char* prefix : {"/table.", "/other."}) {
        unlink((name_ + prefix + std::to_string(rank)).c_str());
        unlink((name_ + prefix + std::to_string(rank) + ".unfinished").c_str());
      }
    }
    rmdir(name_.c_str());
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  [[nodiscard]] std::string operator/(const std::string& file) const { return name_ + "/" + file; }

 private:
  std::string name_;
};

std::vector<TableKey<2>> saved_keys() {
  std::mt19937_64 random(7);
  std::vector<TableKey<2>> keys(1000);
  for (auto& key : keys) key = random_key<2>(random);
  return keys;
}

// Saves the keys of a job of `processes`; returns their indices.
std::vector<TableResult> save_table(const std::string& prefix, uint32_t processes,
                                    uint64_t buckets) {
  const auto keys = saved_keys();
  std::vector<TableResult> results(keys.size());
  LocalJob job({.processes = processes});
  job.run([&](Fabric& fabric, uint32_t) {
    Collectives all(fabric);
    auto table = must(HashTable<2>::create(all, {.buckets = buckets}, soon()));
    if (fabric.rank() == 0) must(table->access())->find_or_put(keys, results);
    must(all.barrier(soon()));
    EXPECT_EQ(must(table->save(prefix, soon())), keys.size());
    must(table->destroy(soon()));
  });
  return results;
}

void load_and_compare(const std::string& prefix, uint32_t processes, const TableOptions& options,
                      const std::vector<TableResult>& saved, bool indices_kept) {
  const auto keys = saved_keys();
  LocalJob job({.processes = processes});
  job.run([&](Fabric& fabric, uint32_t) {
    Collectives all(fabric);
    auto table = must(HashTable<2>::create(all, options, soon()));
    const TableLoadResult loaded = must(table->load(prefix, soon()));
    EXPECT_EQ(loaded.keys, keys.size());
    EXPECT_EQ(loaded.indices_kept, indices_kept);
    EXPECT_EQ(must(table->size(soon())), keys.size());
    std::vector<TableResult> found(keys.size());
    must(table->access())->find_or_put(keys, found);
    for (size_t i = 0; i < keys.size(); ++i) {
      EXPECT_EQ(found[i].outcome, TableOutcome::kFound);
      if (indices_kept) {
        EXPECT_EQ(found[i].index, saved[i].index);
      }
    }
    must(table->destroy(soon()));
  });
}

TEST(SavedTableTest, ComesBackInJobsOfOtherShapes) {
  const ScratchFolder folder;
  const auto saved = save_table(folder / "table", 3, 500);
  load_and_compare(folder / "table", 3, {.buckets = 500}, saved, true);
  load_and_compare(folder / "table", 3, {.buckets = 900}, saved, false);
  load_and_compare(folder / "table", 2, {.buckets = 700}, saved, false);
  load_and_compare(folder / "table", 5, {.buckets = 400, .force_remote = true}, saved, false);
  load_and_compare(folder / "table", 1, {.buckets = 1500}, saved, false);
}

TEST(SavedTableTest, ANewJobGetsAllKeysAfterADeath) {
  const ScratchFolder folder;
  run_job_with_a_victim(3, 2, [&](Fabric& fabric) {
    Collectives all(fabric, {.leave_out_dead = true});
    auto table = must(HashTable<2>::create(all, {.buckets = 500}, soon()));
    const auto keys = saved_keys();
    std::vector<TableResult> results(keys.size());
    if (fabric.rank() == 0) must(table->access())->find_or_put(keys, results);
    must(all.barrier(soon()));
    EXPECT_EQ(must(table->save(folder / "table", soon())), keys.size());
    const std::vector<std::optional<pid_t>> processes = must(all.all_gather(getpid(), soon()));
    if (fabric.rank() == 2) return wait_to_be_killed(fabric);
    if (fabric.rank() == 0) kill(*processes[2], SIGKILL);
    EXPECT_TRUE(wait_until([&] { return !fabric.peer_status(2).ok(); }, soon()));
    EXPECT_EQ(table->save(folder / "other", soon()).status().code(),
              absl::StatusCode::kUnavailable);
    must(table->destroy(soon()));
  });
  load_and_compare(folder / "table", 2, {.buckets = 900}, {}, false);
}

// A bucket that an operation has left half filled is not saved. An operation passes it on its way
// to keys behind it.
TEST(SavedTableTest, KeysBehindAHalfFilledBucketAreFound) {
  const ScratchFolder folder;
  LocalJob job({.processes = 2});
  job.run([&](Fabric& fabric, uint32_t) {
    Collectives all(fabric);
    auto table = must(HashTable<2>::create(all, {.buckets = 512}, soon()));
    std::mt19937_64 random(fabric.rank() + 1);
    std::vector<TableKey<2>> keys;
    while (keys.size() < 200) {
      const TableKey<2> key = random_key<2>(random);
      if (table->owner_of(key) == fabric.rank()) keys.push_back(key);
    }
    if (fabric.rank() == 1) {
      const uint64_t home = table->geometry().home_of(encode_key<2>(keys[0])[0]).position;
      table->core().local_words()[2 * home] = kWordPresent | 1;
    }
    std::vector<TableResult> results(keys.size());
    must(table->access())->find_or_put(keys, results);
    EXPECT_EQ(must(table->save(folder / "table", soon())), 2 * keys.size());
    must(table->clear(soon()));
    const TableLoadResult loaded = must(table->load(folder / "table", soon()));
    EXPECT_EQ(loaded.keys, 2 * keys.size());
    EXPECT_FALSE(loaded.indices_kept);
    must(table->access())->find(keys, results);
    for (const TableResult& result : results) EXPECT_EQ(result.outcome, TableOutcome::kFound);
    EXPECT_EQ(must(table->size(soon())), 2 * keys.size());
    must(table->destroy(soon()));
  });
}

absl::Status try_to_load(const std::string& prefix, uint32_t processes, uint64_t buckets) {
  absl::Status first;
  LocalJob job({.processes = processes});
  job.run([&](Fabric& fabric, uint32_t) {
    Collectives all(fabric);
    auto table = must(HashTable<2>::create(all, {.buckets = buckets}, soon()));
    const absl::Status loaded = table->load(prefix, soon()).status();
    if (fabric.rank() == 0) first = loaded;
    EXPECT_FALSE(loaded.ok());
    must(table->destroy(soon()));
  });
  return first;
}

std::string read_whole(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
void write_whole(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

TEST(SavedTableTest, DamagedFilesGiveErrorsThatNameThem) {
  const ScratchFolder folder;
  save_table(folder / "table", 2, 1000);
  save_table(folder / "other", 2, 1000);
  const std::string whole = read_whole(folder / "table.0");
  std::mt19937_64 random(1);
  for (int i = 0; i < 40; ++i) {
    std::string damaged = whole;
    if (i % 4 == 0) {
      damaged.resize(random() % whole.size());
    } else if (i % 4 == 1) {
      damaged += std::string(1 + random() % 20, 'x');
    } else {
      damaged[random() % (i % 4 == 2 ? 64 : whole.size())] ^= static_cast<char>(1 << random() % 8);
    }
    write_whole(folder / "table.0", damaged);
    const absl::Status loaded = internal::read_table_file(
        folder / "table.0", [](const internal::TableFileHeader&) { return absl::OkStatus(); },
        [](uint64_t position, std::span<const uint64_t> stored) {
          EXPECT_LT(position, 1000u);
          EXPECT_EQ(stored.size(), 2u);
          return absl::OkStatus();
        });
    EXPECT_EQ(loaded.code(), absl::StatusCode::kDataLoss) << i << loaded;
    EXPECT_THAT(std::string(loaded.message()), HasSubstr(folder / "table.0"));
    EXPECT_THAT(std::string(loaded.message()), HasSubstr("offset"));
    if (i < 3) {
      EXPECT_EQ(try_to_load(folder / "table", 2, 1000).code(), absl::StatusCode::kDataLoss);
      EXPECT_EQ(try_to_load(folder / "table", 1, 2000).code(), absl::StatusCode::kDataLoss);
    }
  }
  write_whole(folder / "table.0", whole);
  EXPECT_EQ(try_to_load(folder / "table", 1, 500).code(), absl::StatusCode::kResourceExhausted);
  // Files of two saves.
  rename((folder / "other.1").c_str(), (folder / "table.1").c_str());
  const absl::Status mixed = try_to_load(folder / "table", 1, 2000);
  EXPECT_EQ(mixed.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(mixed.message()), HasSubstr("different saves"));
  unlink((folder / "table.1").c_str());
  EXPECT_EQ(try_to_load(folder / "table", 1, 2000).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(try_to_load(folder / "none", 2, 500).code(), absl::StatusCode::kNotFound);
}

// File 0 has the shape of the table, so the positions of the other files are used. A file of the
// same save with more buckets must not be stored beyond the end of the share.
// To open a FIFO would block until another process opens its other end.
TEST(SavedTableTest, AFifoInThePlaceOfAFileIsAnError) {
  const ScratchFolder folder;
  in_one_process([&](Collectives& all) {
    auto table = must(HashTable<2>::create(all, {.buckets = 500}, soon()));
    ASSERT_EQ(mkfifo((folder / "table.0.unfinished").c_str(), 0600), 0);
    EXPECT_EQ(table->save(folder / "table", soon()).status().code(),
              absl::StatusCode::kFailedPrecondition);
    ASSERT_EQ(mkfifo((folder / "other.0").c_str(), 0600), 0);
    EXPECT_EQ(table->load(folder / "other", soon()).status().code(),
              absl::StatusCode::kFailedPrecondition);
    must(table->destroy(soon()));
  });
}

TEST(SavedTableTest, FilesOfDifferentShapesAreRefused) {
  const ScratchFolder folder;
  save_table(folder / "table", 2, 1000);
  const std::string path = folder / "table.1";
  internal::TableFileHeader header;
  must(internal::read_table_file(
      path,
      [&](const internal::TableFileHeader& read) {
        header = read;
        return absl::OkStatus();
      },
      nullptr));
  header.buckets = 2000;
  std::vector<uint64_t> buckets(2 * header.buckets);
  const TableGeometry geometry{.buckets = 1000, .probe_limit = 1000, .processes = 2, .shift = 10};
  std::mt19937_64 random(3);
  for (uint64_t at = 1000; at < header.buckets;) {
    const auto stored = encode_key<2>(random_key<2>(random));
    if (geometry.home_of(stored[0]).owner != 1) continue;
    std::copy(stored.begin(), stored.end(), buckets.begin() + static_cast<ptrdiff_t>(2 * at++));
  }
  must(internal::write_table_file(path, header, buckets).status());
  EXPECT_EQ(try_to_load(folder / "table", 2, 1000).code(), absl::StatusCode::kUnavailable)
      << "rank 0 itself has a good file";
  EXPECT_EQ(try_to_load(folder / "table", 1, 4000).code(), absl::StatusCode::kFailedPrecondition);
}

TEST(SavedTableTest, AFailedSaveLeavesTheOlderOne) {
  const ScratchFolder folder;
  const auto saved = save_table(folder / "table", 2, 1000);
  // The name of the unfinished file of rank 1 is taken by a folder.
  ASSERT_EQ(mkdir((folder / "table.1.unfinished").c_str(), 0700), 0);
  LocalJob job({.processes = 2});
  job.run([&](Fabric& fabric, uint32_t) {
    Collectives all(fabric);
    auto table = must(HashTable<2>::create(all, {.buckets = 64}, soon()));
    EXPECT_FALSE(table->save(folder / "table", soon()).ok());
    must(table->destroy(soon()));
  });
  ASSERT_EQ(rmdir((folder / "table.1.unfinished").c_str()), 0);
  load_and_compare(folder / "table", 2, {.buckets = 1000}, saved, true);
}

}  // namespace
}  // namespace cariama::testing
