// The files in which a hash table is saved: one for each process.
//
// Words of 64 bits, little endian:
//
//   header   magic "CARIADHT"; version | words of a key << 32; rank | processes << 32; buckets;
//            probe limit; keys; id of the save; checksum of the words before
//   body     for each 64 buckets in their order: a mask of the occupied buckets, then their words
//   trailer  checksum of the body
//
// Positions are stored, so that a table of the same shape gets its indices back. The checksums
// detect accidental damage, not intended changes. For any content of a file, the decoder reads only
// its own memory, and reports only keys with the properties that the header states.
#ifndef CARIAMA_DHT_INTERNAL_TABLE_FILE_H_
#define CARIAMA_DHT_INTERNAL_TABLE_FILE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace cariama::internal {

struct TableFileHeader {
  uint32_t words = 0;
  uint32_t rank = 0;
  uint32_t processes = 0;
  uint64_t buckets = 0;
  uint64_t probe_limit = 0;
  uint64_t keys = 0;
  uint64_t id = 0;

  friend bool operator==(const TableFileHeader&, const TableFileHeader&) = default;
};

// Reads up to into.size() bytes; returns their number, 0 at the end.
using TableFileSource = std::function<absl::StatusOr<size_t>(std::span<std::byte> into)>;
// Gets the position of a bucket and its words. An error ends the decoding with this error.
using TableFileVisitor =
    std::function<absl::Status(uint64_t position, std::span<const uint64_t> stored)>;

// Decodes a file. `accept` gets the header first. `name` appears in errors. Error: DATA_LOSS (the
// text names the offset), those of `source`, `accept` and `visit`.
[[nodiscard]] absl::Status decode_table_file(
    std::string_view name, const TableFileSource& source,
    const std::function<absl::Status(const TableFileHeader&)>& accept,
    const TableFileVisitor& visit);

// Decodes the file at `path`. `accept` gets the header first. With an empty `visit`, reads the
// header only. Errors: as decode_table_file(), and those of open and read.
[[nodiscard]] absl::Status read_table_file(
    const std::string& path, const std::function<absl::Status(const TableFileHeader&)>& accept,
    const TableFileVisitor& visit);

// Writes a file and flushes it to the disk. `buckets` has header.buckets buckets of header.words
// words; header.keys is computed. Returns the number of keys. Errors: those of open, write, fsync.
[[nodiscard]] absl::StatusOr<uint64_t> write_table_file(const std::string& path,
                                                        TableFileHeader header,
                                                        std::span<const uint64_t> buckets);

}  // namespace cariama::internal

#endif  // CARIAMA_DHT_INTERNAL_TABLE_FILE_H_
