// A count in a word that another process WRITEs, with check bytes against mixed bytes.
//
// On some transports the bytes of a word become visible one by one, and WRITEs in any order
// (ArrivalOrder::kWithinWrite and kWithinBlocks). So while several WRITEs of one word are in
// flight, and afterwards until the next WRITE, each byte of the word may be from any of them.
//
// A checked count consists of the lower four bytes of the count and of four check bytes: the former
// times the matrix of MixColumns of AES. All square submatrices of this matrix are invertible, so
// two different checked counts have the same byte in at most three of the eight places. A mix of
// the bytes of two checked counts agrees with one of them in at least four places. If the mix is a
// checked count, it is therefore that one. By the same argument:
//   counts that differ in their lowest byte only       a mix of any number of them is refused
//   counts that differ in their two lowest bytes       a mix of up to five is refused
//   counts that differ in their three lowest bytes     a mix of up to three is refused
//   any other mix                                      accepted with a probability of about 2^-32
#ifndef CARIAMA_DSFABRIC_PEERS_CHECKED_COUNT_H_
#define CARIAMA_DSFABRIC_PEERS_CHECKED_COUNT_H_

#include <bit>
#include <cstdint>

namespace cariama::internal {

// Returns the word for the lower 32 bits of `count`. That for 0 is 0.
[[nodiscard]] constexpr uint64_t checked_count(uint64_t count) {
  const auto bytes = static_cast<uint32_t>(count);
  const uint32_t next = std::rotr(bytes, 8);
  // Each byte of the sum times x in the field of 2^8 elements modulo x^8 + x^4 + x^3 + x + 1.
  const uint32_t sum = bytes ^ next;
  const uint32_t doubled = (sum & 0x7f7f7f7fU) << 1 ^ (sum >> 7 & 0x01010101U) * 0x1bU;
  const uint32_t check = doubled ^ next ^ std::rotr(bytes, 16) ^ std::rotr(bytes, 24);
  return uint64_t{check} << 32 | bytes;
}

// Returns true if checked_count() returns `word` for some count: the one in its lower 32 bits.
[[nodiscard]] constexpr bool is_checked_count(uint64_t word) { return checked_count(word) == word; }

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_PEERS_CHECKED_COUNT_H_
