#include "dht/internal/table_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <vector>

#include "dht/table_layout.h"
#include "dtutils/error.h"
#include "dtutils/internal/regular_file.h"

namespace cariama::internal {
namespace {

static_assert(std::endian::native == std::endian::little, "files are little endian");

constexpr uint64_t kFileMagic = 0x5448'4441'4952'4143;  // "CARIADHT"
constexpr uint64_t kFileVersion = 1;
constexpr size_t kHeaderWords = 8;
constexpr size_t kBufferWords = 8192;
constexpr uint64_t kMostBuckets = uint64_t{1} << 48;

class Checksum {
 public:
  void add(uint64_t word) {
    state_ = (state_ ^ word) * 0xff51'afd7'ed55'8ccd;
    state_ ^= state_ >> 32;
  }
  [[nodiscard]] uint64_t value() const { return state_; }

 private:
  uint64_t state_ = 0x9e37'79b9'7f4a'7c15;
};

// Reads words from a source, and counts them.
class FileWords {
 public:
  FileWords(std::string_view name, const TableFileSource& source) : name_(name), source_(source) {}

  // The error of damage at the last word.
  [[nodiscard]] absl::Status damage(std::string_view what) const {
    return make_error(absl::StatusCode::kDataLoss, ErrorScope::kOperation,
                      "the saved table " + std::string(name_) + " is damaged at offset " +
                          std::to_string(words_ == 0 ? 0 : (words_ - 1) * sizeof(uint64_t)) + ": " +
                          std::string(what),
                      "load an older save");
  }
  [[nodiscard]] absl::Status next(uint64_t& word) {
    if (at_ == end_) {
      if (absl::Status filled = fill(); !filled.ok()) return filled;
      if (end_ == 0) {
        ++words_;
        return damage("the file ends");
      }
    }
    word = buffer_[at_++];
    ++words_;
    return absl::OkStatus();
  }
  [[nodiscard]] absl::StatusOr<bool> at_end() {
    if (at_ != end_) return false;
    if (absl::Status filled = fill(); !filled.ok()) return filled;
    return end_ == 0;
  }

 private:
  [[nodiscard]] absl::Status fill() {
    auto* const bytes = reinterpret_cast<std::byte*>(buffer_.data());
    size_t got = 0;
    while (got < kBufferWords * sizeof(uint64_t)) {
      const auto read = source_({bytes + got, kBufferWords * sizeof(uint64_t) - got});
      if (!read.ok()) return read.status();
      if (*read == 0) break;
      got += *read;
    }
    at_ = 0;
    end_ = got / sizeof(uint64_t);
    if (got % sizeof(uint64_t) != 0) return damage("the file does not consist of whole words");
    return absl::OkStatus();
  }

  std::string_view name_;
  const TableFileSource& source_;
  std::vector<uint64_t> buffer_ = std::vector<uint64_t>(kBufferWords);
  size_t at_ = 0;
  size_t end_ = 0;
  uint64_t words_ = 0;
};

absl::StatusOr<TableFileHeader> decode_header(FileWords& words) {
  std::array<uint64_t, kHeaderWords> raw{};
  Checksum checksum;
  for (size_t i = 0; i < kHeaderWords; ++i) {
    if (absl::Status read = words.next(raw[i]); !read.ok()) return read;
    if (i == 0 && raw[0] != kFileMagic) return words.damage("it is not a saved hash table");
    if (i + 1 < kHeaderWords) checksum.add(raw[i]);
  }
  if (checksum.value() != raw[kHeaderWords - 1]) {
    return words.damage("the checksum of the header is wrong");
  }
  if ((raw[1] & UINT32_MAX) != kFileVersion) {
    return words.damage("version " + std::to_string(raw[1] & UINT32_MAX) + " is not known");
  }
  TableFileHeader header;
  header.words = static_cast<uint32_t>(raw[1] >> 32);
  header.rank = static_cast<uint32_t>(raw[2]);
  header.processes = static_cast<uint32_t>(raw[2] >> 32);
  header.buckets = raw[3];
  header.probe_limit = raw[4];
  header.keys = raw[5];
  header.id = raw[6];
  if (header.words == 0 || header.words > kMaxKeyWords || header.rank >= header.processes ||
      header.buckets == 0 || header.buckets > kMostBuckets || header.keys > header.buckets) {
    return words.damage("the header contradicts itself");
  }
  return header;
}

absl::Status decode_body(FileWords& words, const TableFileHeader& header,
                         const TableFileVisitor& visit) {
  Checksum checksum;
  uint64_t keys = 0;
  std::array<uint64_t, kMaxKeyWords> stored{};
  for (uint64_t first = 0; first < header.buckets; first += 64) {
    uint64_t mask = 0;
    if (absl::Status read = words.next(mask); !read.ok()) return read;
    checksum.add(mask);
    for (; mask != 0; mask &= mask - 1) {
      const uint64_t position = first + static_cast<uint64_t>(std::countr_zero(mask));
      if (position >= header.buckets) return words.damage("a key is beyond the last bucket");
      for (size_t i = 0; i < header.words; ++i) {
        if (absl::Status read = words.next(stored[i]); !read.ok()) return read;
        checksum.add(stored[i]);
        if ((stored[i] & kWordPresent) == 0) return words.damage("a word of a key is absent");
      }
      if (++keys > header.keys) return words.damage("there are more keys than the header states");
      if (absl::Status visited = visit(position, {stored.data(), header.words}); !visited.ok()) {
        return visited;
      }
    }
  }
  uint64_t expected = 0;
  if (absl::Status read = words.next(expected); !read.ok()) return read;
  if (checksum.value() != expected) return words.damage("the checksum of the keys is wrong");
  if (keys != header.keys) return words.damage("there are fewer keys than the header states");
  const auto ended = words.at_end();
  if (!ended.ok()) return ended.status();
  return *ended ? absl::OkStatus() : words.damage("the file continues after its end");
}

// Writes words to a file through a buffer.
class FileWriter {
 public:
  FileWriter(int file, const std::string& path) : file_(file), path_(path) {
    buffer_.reserve(kBufferWords);
  }
  void add(uint64_t word) {
    buffer_.push_back(word);
    if (buffer_.size() == kBufferWords) static_cast<void>(write_buffer());
  }
  [[nodiscard]] absl::Status write_buffer() {
    const auto* bytes = reinterpret_cast<const char*>(buffer_.data());
    size_t left = buffer_.size() * sizeof(uint64_t);
    while (left != 0 && status_.ok()) {
      const ssize_t written = ::write(file_, bytes, left);
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) {
        status_ = make_errno_error(errno, ErrorScope::kProcess, "cannot write " + path_,
                                   "free space on that file system");
        break;
      }
      bytes += written;
      left -= static_cast<size_t>(written);
    }
    buffer_.clear();
    return status_;
  }

 private:
  int file_;
  const std::string& path_;
  std::vector<uint64_t> buffer_;
  absl::Status status_;
};

// The mask of the complete keys among up to 64 buckets.
uint64_t occupied_mask(std::span<const uint64_t> buckets, size_t words) {
  uint64_t mask = 0;
  for (size_t i = 0; i * words < buckets.size(); ++i) {
    if (buckets[i * words + words - 1] != 0) mask |= uint64_t{1} << i;
  }
  return mask;
}

}  // namespace

absl::Status decode_table_file(std::string_view name, const TableFileSource& source,
                               const std::function<absl::Status(const TableFileHeader&)>& accept,
                               const TableFileVisitor& visit) {
  FileWords words(name, source);
  const auto header = decode_header(words);
  if (!header.ok()) return header.status();
  if (absl::Status accepted = accept(*header); !accepted.ok()) return accepted;
  return visit ? decode_body(words, *header, visit) : absl::OkStatus();
}

absl::Status read_table_file(const std::string& path,
                             const std::function<absl::Status(const TableFileHeader&)>& accept,
                             const TableFileVisitor& visit) {
  const auto file =
      cariama::internal::open_regular_file(path, O_RDONLY, "cannot open the saved table");
  if (!file.ok()) return file.status();
  return decode_table_file(
      path,
      [&](std::span<std::byte> into) -> absl::StatusOr<size_t> {
        ssize_t got = 0;
        do {
          got = ::read(file->get(), into.data(), into.size());
        } while (got < 0 && errno == EINTR);
        if (got < 0) {
          return make_errno_error(errno, ErrorScope::kOperation,
                                  "cannot read the saved table " + path);
        }
        return static_cast<size_t>(got);
      },
      accept, visit);
}

absl::StatusOr<uint64_t> write_table_file(const std::string& path, TableFileHeader header,
                                          std::span<const uint64_t> buckets) {
  const auto file = cariama::internal::open_regular_file(path, O_WRONLY | O_CREAT | O_TRUNC,
                                                         "cannot create", 0600);
  if (!file.ok()) return file.status();
  const size_t words = header.words;
  const size_t group = 64 * words;
  header.keys = 0;
  for (size_t at = 0; at < buckets.size(); at += group) {
    header.keys += static_cast<uint64_t>(std::popcount(
        occupied_mask(buckets.subspan(at, std::min(group, buckets.size() - at)), words)));
  }
  FileWriter writer(file->get(), path);
  Checksum of_header;
  for (const uint64_t word : {kFileMagic, kFileVersion | uint64_t{header.words} << 32,
                              header.rank | uint64_t{header.processes} << 32, header.buckets,
                              header.probe_limit, header.keys, header.id}) {
    of_header.add(word);
    writer.add(word);
  }
  writer.add(of_header.value());
  Checksum of_body;
  const auto add = [&](uint64_t word) {
    of_body.add(word);
    writer.add(word);
  };
  for (size_t at = 0; at < buckets.size(); at += group) {
    uint64_t mask = occupied_mask(buckets.subspan(at, std::min(group, buckets.size() - at)), words);
    add(mask);
    for (; mask != 0; mask &= mask - 1) {
      const uint64_t* const key =
          buckets.data() + at + static_cast<size_t>(std::countr_zero(mask)) * words;
      for (size_t i = 0; i < words; ++i) add(key[i]);
    }
  }
  writer.add(of_body.value());
  if (absl::Status written = writer.write_buffer(); !written.ok()) return written;
  if (::fsync(file->get()) != 0) {
    return make_errno_error(errno, ErrorScope::kProcess,
                            "cannot write " + path + " to its disk (fsync)");
  }
  return header.keys;
}

}  // namespace cariama::internal
