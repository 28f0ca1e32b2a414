// A call with operations on the share of a hash table, as the owner executes it, and its answer, as
// the caller reads it.
//
// A call that is refused changes nothing. Otherwise every operation has its answer: a put ends in a
// bucket that has the key, or in none. No word that was set changes. The caller accepts the answer.
// Of the words that a misbehaving owner may send it accepts only those that name a bucket of the
// share or none.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "dht/internal/owner_calls.h"
#include "dht/table_layout.h"
#include "dht/table_options.h"
#include "tests/fuzz/fuzz_input.h"

namespace cariama {
namespace {

using Mode = OwnerCalls::Mode;

// Any words, as the answer of a misbehaving owner.
void read_forged(const std::vector<uint64_t>& words, size_t buckets) {
  for (const uint64_t word : words) {
    for (const Mode mode : {Mode::kFind, Mode::kPut, Mode::kRead}) {
      const uint64_t asked = word % 64;
      const auto said = decode_outcome(word, mode, asked, buckets);
      if (!said) continue;
      require(said->outcome <= TableOutcome::kFull);
      require(mode == Mode::kPut || said->outcome == TableOutcome::kFound ||
              said->outcome == TableOutcome::kAbsent);
      if (said->outcome > TableOutcome::kInserted) continue;
      require(said->position < buckets && (mode != Mode::kRead || said->position == asked));
    }
  }
}

void execute(FuzzInput& input) {
  const size_t words = 1 + input.take<uint8_t>() % kMaxKeyWords;
  const size_t buckets = 1 + input.take<uint8_t>() % 32;
  const size_t limit = 1 + input.take<uint8_t>() % buckets;
  std::vector<uint64_t> share(buckets * words);
  for (uint64_t& word : share) word = input.take<uint8_t>() % 4 == 0 ? 0 : kWordPresent | 5;
  const std::vector<uint64_t> before = share;
  const CalledShare called{reinterpret_cast<uint64_t>(share.data()), buckets, limit, words};
  std::vector<uint64_t> call;
  while (!input.empty()) {
    const auto kind = input.take<uint8_t>();
    if (kind >= 16) {  // a well-formed operation
      const auto mode = static_cast<Mode>(kind % 3);
      call.push_back((kind / 16) % buckets | uint64_t{static_cast<uint8_t>(mode)} << 48);
      for (size_t i = 0; i < words && mode != Mode::kRead; ++i) {
        call.push_back(kWordPresent | (5 + input.take<uint8_t>() % 4));
      }
    } else {
      call.push_back(input.take<uint64_t>());
    }
  }
  read_forged(call, buckets);
  const std::vector<uint64_t> answer = execute_operations(called, call);
  if (answer.empty()) return require(share == before);
  size_t at = 0;
  for (size_t i = 0; i < call.size();) {
    const auto mode = static_cast<Mode>(call[i] >> 48);
    const auto said = decode_outcome(answer.at(at++), mode, call[i] & 0xffff'ffff'ffff, buckets);
    require(said.has_value());
    const auto [outcome, position] = *said;
    if (mode == Mode::kRead) {
      require(position < buckets || outcome == TableOutcome::kAbsent);
      at += words;
      ++i;
      continue;
    }
    if (outcome == TableOutcome::kFound || outcome == TableOutcome::kInserted) {
      require(position < buckets);
      require(std::equal(call.begin() + static_cast<ptrdiff_t>(i + 1),
                         call.begin() + static_cast<ptrdiff_t>(i + 1 + words),
                         share.begin() + static_cast<ptrdiff_t>(position * words)));
    } else {
      require(outcome == (mode == Mode::kPut ? TableOutcome::kFull : TableOutcome::kAbsent));
    }
    require(mode == Mode::kPut || outcome != TableOutcome::kInserted);
    i += 1 + words;
  }
  require(at == answer.size());
  // No word that was set has changed.
  for (size_t i = 0; i < share.size(); ++i) require(before[i] == 0 || before[i] == share[i]);
}

}  // namespace
}  // namespace cariama

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  cariama::FuzzInput input(data, size);
  cariama::execute(input);
  return 0;
}
