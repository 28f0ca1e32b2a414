#include "bench/support/uts_tree.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <numbers>

namespace cariama::bench {
namespace {

// SHA-1 (RFC 3174) of at most 55 bytes: one block.
std::array<uint8_t, 20> sha1(const uint8_t* bytes, size_t length) {
  uint8_t block[64] = {};
  std::memcpy(block, bytes, length);
  block[length] = 0x80;
  block[62] = static_cast<uint8_t>(length * 8 >> 8);
  block[63] = static_cast<uint8_t>(length * 8);
  uint32_t w[80];
  for (int i = 0; i < 16; ++i) {
    w[i] = uint32_t{block[4 * i]} << 24 | uint32_t{block[4 * i + 1]} << 16 |
           uint32_t{block[4 * i + 2]} << 8 | block[4 * i + 3];
  }
  for (int i = 16; i < 80; ++i) w[i] = std::rotl(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);
  const uint32_t start[5] = {0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476, 0xC3D2E1F0};
  uint32_t a = start[0], b = start[1], c = start[2], d = start[3], e = start[4];
  const auto round = [&](int i, uint32_t f, uint32_t k) {
    const uint32_t next = std::rotl(a, 5) + f + e + w[i] + k;
    e = d;
    d = c;
    c = std::rotl(b, 30);
    b = a;
    a = next;
  };
  for (int i = 0; i < 20; ++i) round(i, (b & c) | (~b & d), 0x5A827999);
  for (int i = 20; i < 40; ++i) round(i, b ^ c ^ d, 0x6ED9EBA1);
  for (int i = 40; i < 60; ++i) round(i, (b & c) | (b & d) | (c & d), 0x8F1BBCDC);
  for (int i = 60; i < 80; ++i) round(i, b ^ c ^ d, 0xCA62C1D6);
  const uint32_t sums[5] = {start[0] + a, start[1] + b, start[2] + c, start[3] + d, start[4] + e};
  std::array<uint8_t, 20> digest;
  for (size_t i = 0; i < 20; ++i)
    digest[i] = static_cast<uint8_t>(sums[i / 4] >> (24 - 8 * (i % 4)));
  return digest;
}

void put_big_endian(uint8_t* to, uint32_t value) {
  for (int i = 0; i < 4; ++i) to[i] = static_cast<uint8_t>(value >> (24 - 8 * i));
}

// Returns a number in [0, 1) with 31 random bits.
double probability(const UtsNode& node) {
  const uint32_t bits = (uint32_t{node.state[16]} << 24 | uint32_t{node.state[17]} << 16 |
                         uint32_t{node.state[18]} << 8 | node.state[19]) &
                        0x7fffffff;
  return static_cast<double>(bits) / 2147483648.0;
}

int geometric(const UtsOptions& options, const UtsNode& node) {
  const double depth = node.depth;
  const double limit = options.d;
  double expected = options.b;
  if (node.depth > 0) {
    switch (options.a) {
      case 0:
        expected = options.b * (1.0 - depth / limit);
        break;
      case 1:
        expected = options.b * std::pow(depth, -std::log(options.b) / std::log(limit));
        break;
      case 2:
        expected = depth > 5 * limit
                       ? 0
                       : std::pow(options.b, std::sin(2.0 * std::numbers::pi * depth / limit));
        break;
      default:
        expected = depth < limit ? options.b : 0;
        break;
    }
  }
  const double p = 1.0 / (1.0 + expected);
  return static_cast<int>(std::floor(std::log(1 - probability(node)) / std::log(1 - p)));
}

int binomial(const UtsOptions& options, const UtsNode& node) {
  return probability(node) < options.q ? options.m : 0;
}

}  // namespace

UtsNode uts_root(const UtsOptions& options) {
  uint8_t seed[20] = {};
  put_big_endian(seed + 16, static_cast<uint32_t>(options.r));
  return {sha1(seed, sizeof seed), 0};
}

UtsNode uts_child(const UtsNode& parent, int index) {
  uint8_t bytes[24];
  std::memcpy(bytes, parent.state.data(), 20);
  put_big_endian(bytes + 20, static_cast<uint32_t>(index));
  return {sha1(bytes, sizeof bytes), parent.depth + 1};
}

int uts_children(const UtsOptions& options, const UtsNode& node) {
  constexpr int kMost = 100;  // maximum number of children, except for a binomial root
  int children = 0;
  if (options.t == 0) {
    if (node.depth == 0) return static_cast<int>(std::floor(options.b));
    children = binomial(options, node);
  } else if (options.t == 1 || node.depth < options.f * options.d) {
    children = geometric(options, node);
  } else {
    children = binomial(options, node);
  }
  return std::min(children, kMost);
}

UtsCount uts_sequential(const UtsOptions& options, const UtsNode& node) {
  const int children = uts_children(options, node);
  UtsCount count{1, static_cast<uint64_t>(node.depth), children == 0 ? uint64_t{1} : 0};
  for (int i = 0; i < children; ++i) count.add(uts_sequential(options, uts_child(node, i)));
  return count;
}

std::optional<UtsKnown> uts_named(const std::string& name) {
  static const std::map<std::string, UtsKnown> known = {
      {"T1", {{.t = 1, .a = 3, .b = 4, .d = 10, .r = 19}, {4'130'071, 10, 3'305'118}}},
      {"T2", {{.t = 1, .a = 2, .b = 6, .d = 16, .r = 502}, {4'117'769, 81, 2'342'762}}},
      {"T3", {{.t = 0, .b = 2000, .q = 0.124875, .m = 8, .r = 42}, {4'112'897, 1572, 3'599'034}}},
      {"T4",
       {{.t = 2, .a = 0, .b = 6, .d = 16, .q = 0.234375, .m = 4, .r = 1},
        {4'132'453, 134, 3'108'986}}},
      {"T5", {{.t = 1, .a = 0, .b = 4, .d = 20, .r = 34}, {4'147'582, 20, 2'181'318}}},
      {"T1L", {{.t = 1, .a = 3, .b = 4, .d = 13, .r = 29}, {102'181'082, 13, 81'746'377}}},
      {"T2L", {{.t = 1, .a = 2, .b = 7, .d = 23, .r = 220}, {96'793'510, 67, 53'791'152}}},
      {"T3L",
       {{.t = 0, .b = 2000, .q = 0.200014, .m = 5, .r = 7}, {111'345'631, 17'844, 89'076'904}}},
      {"paper8", {{.t = 1, .a = 3, .b = 4, .d = 8, .r = 0}, {420'457, 8, 336'331}}},
      {"paper9", {{.t = 1, .a = 3, .b = 4, .d = 9, .r = 0}, {1'677'928, 9, 1'341'463}}},
      {"paper10", {{.t = 1, .a = 3, .b = 4, .d = 10, .r = 0}, {6'700'654, 10, 5'358'786}}},
  };
  const auto found = known.find(name);
  if (found == known.end()) return std::nullopt;
  return found->second;
}

}  // namespace cariama::bench
