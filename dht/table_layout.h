// The buckets of the distributed hash table: how a key is stored, and where.
//
// A bucket has W words of 64 bits. Bit 63 of each word says that the word is present, so a bucket
// holds a key of 63 W bits: W = 1 keys of 63 bits, W = 2 keys of 126 bits, W = 3 keys of 189 bits.
// Words of a bucket change only once, from 0 to their final value, in the order of their numbers,
// and each by compare-and-swap. So a reader can never take a part of a key for a key.
//
// Word 0 is stored exclusive-or a hash of the other words, which is invertible. Two keys of equal
// word 0 are then as rare as two equal 63-bit hashes, and word 0 alone decides almost always.
//
// Index = owner << shift | position, where shift is the number of bits that a position needs. The
// hash selects the owner first. The probe path of a key stays within the share of its owner, and
// wraps around at its end.
#ifndef CARIAMA_DHT_TABLE_LAYOUT_H_
#define CARIAMA_DHT_TABLE_LAYOUT_H_

#include <array>
#include <cstddef>
#include <cstdint>

namespace cariama {

// A key: W words below 2^63.
template <size_t W>
using TableKey = std::array<uint64_t, W>;

inline constexpr uint64_t kWordPresent = uint64_t{1} << 63;
inline constexpr size_t kMaxKeyWords = 8;

// A bucket: its owner, and its position in the share of the owner.
struct TablePlace {
  uint32_t owner;
  uint64_t position;  // of a bucket within the owner's share
};

// Returns a 63-bit hash of the words 1 to W-1 (bit 63 of each is ignored); 0 if there are none.
[[nodiscard]] inline uint64_t hash_of_rest(const uint64_t* words, size_t count) {
  uint64_t hash = 0;
  for (size_t i = 1; i < count; ++i) {
    hash = (hash ^ (words[i] & ~kWordPresent)) * 0x9e37'79b9'7f4a'7c15;
    hash ^= hash >> 32;
  }
  return hash & ~kWordPresent;
}

// Returns true if all words of the key are below 2^63. Other words are no key: a bucket has no room
// for bit 63, and two keys would be one.
template <size_t W>
[[nodiscard]] constexpr bool is_key(const TableKey<W>& key) {
  uint64_t bits = 0;
  for (const uint64_t word : key) bits |= word;
  return (bits & kWordPresent) == 0;
}

// Converts a key to the words of its bucket. Requires: is_key().
inline void encode_key(const uint64_t* key, size_t words, uint64_t* stored) {
  for (size_t i = 1; i < words; ++i) stored[i] = key[i] | kWordPresent;
  stored[0] = (key[0] ^ hash_of_rest(key, words)) | kWordPresent;
}
template <size_t W>
[[nodiscard]] inline TableKey<W> encode_key(const TableKey<W>& key) {
  TableKey<W> stored;
  encode_key(key.data(), W, stored.data());
  return stored;
}

// Converts the words of a bucket to its key.
inline void decode_key(const uint64_t* stored, size_t words, uint64_t* key) {
  for (size_t i = 1; i < words; ++i) key[i] = stored[i] & ~kWordPresent;
  key[0] = (stored[0] & ~kWordPresent) ^ hash_of_rest(stored, words);
}

struct TableGeometry {
  uint64_t buckets = 0;      // of each process
  uint64_t probe_limit = 0;  // buckets that an operation examines at most
  uint32_t processes = 1;
  uint32_t shift = 0;  // bits of a position

  [[nodiscard]] uint64_t index_of(uint32_t owner, uint64_t position) const {
    return uint64_t{owner} << shift | position;
  }
  [[nodiscard]] TablePlace place_of(uint64_t index) const {
    return {static_cast<uint32_t>(index >> shift), index & ((uint64_t{1} << shift) - 1)};
  }
  // Returns false for the place of an index that is not of this geometry.
  [[nodiscard]] bool contains(const TablePlace& place) const {
    return place.owner < processes && place.position < buckets;
  }
  // Returns the first place of the probe path of a key with this word 0. The hash is a bijection of
  // 64 bits. Only its high bits are used, which depend on all bits of the word: its high part
  // selects the owner, and the rest selects the position.
  [[nodiscard]] TablePlace home_of(uint64_t stored) const {
    uint64_t hash = stored * 0xff51'afd7'ed55'8ccd;
    hash = (hash ^ hash >> 32) * 0xc4ce'b9fe'1a85'ec53;
    const Wide scaled = Wide{hash} * processes;
    return {static_cast<uint32_t>(scaled >> 64),
            static_cast<uint64_t>(Wide{static_cast<uint64_t>(scaled)} * buckets >> 64)};
  }

 private:
  __extension__ using Wide = unsigned __int128;
};

}  // namespace cariama

#endif  // CARIAMA_DHT_TABLE_LAYOUT_H_
