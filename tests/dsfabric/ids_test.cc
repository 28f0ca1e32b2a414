// Ranks, thread ids and thread indices: conversions, hashing, printing, and travelling in calls.
#include "dsfabric/ids.h"

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <sstream>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "dsfabric/send_call.h"
#include "dsfabric/serializer.h"
#include "gtest/gtest.h"
#include "tests/dsfabric/testing/local_job.h"

namespace cariama::testing {
namespace {

template <typename T>
class IdTest : public ::testing::Test {};
using Ids = ::testing::Types<Rank, ThreadId, ThreadIndex>;
TYPED_TEST_SUITE(IdTest, Ids);

TYPED_TEST(IdTest, ConvertsFromAndToIntegers) {
  EXPECT_EQ(TypeParam().value(), 0u);
  const TypeParam id = 7;
  const uint32_t number = id;
  EXPECT_EQ(number, 7u);
  EXPECT_EQ(id.value(), 7u);
  const std::vector<int> squares{0, 1, 4, 9, 16, 25, 36, 49};
  EXPECT_EQ(squares[id], 49);
  uint32_t sum = 0;
  for (TypeParam each = 0; each < id; each = each + 1) sum += each;
  EXPECT_EQ(sum, 21u);
}

TYPED_TEST(IdTest, ComparesAsItsNumber) {
  const TypeParam low = 3;
  const TypeParam high = 1u << 31;
  EXPECT_TRUE(low == low && low == 3u && 3u == low && low != high && low != 4u);
  EXPECT_TRUE(low < high && high > 3u && low <= 3u && low <=> high < 0);
  const std::map<TypeParam, std::string> names{{high, "high"}, {low, "low"}};
  EXPECT_EQ(names.begin()->second, "low");
}

TYPED_TEST(IdTest, HashesAndPrints) {
  std::unordered_map<TypeParam, int> squares;
  std::unordered_set<size_t> hashes;
  for (uint32_t id = 0; id < 100; ++id) {
    squares[id] = static_cast<int>(id * id);
    hashes.insert(std::hash<TypeParam>()(id));
  }
  EXPECT_EQ(squares.size(), 100u);
  EXPECT_EQ(squares.at(TypeParam(12)), 144);
  EXPECT_GT(hashes.size(), 90u);
  std::ostringstream text;
  text << TypeParam(4'000'000'000u) << ' ' << TypeParam(5);
  EXPECT_EQ(text.str(), "4000000000 5");
  EXPECT_EQ(std::to_string(TypeParam(41)), "41");
}

TYPED_TEST(IdTest, IsSerializedAsANumber) {
  // Alone, in a container, and as the number that it wraps.
  const std::vector<TypeParam> ids{1, 1u << 20};
  std::string bytes;
  ArgumentWriter writer(bytes);
  writer(TypeParam(9), ids);
  ArgumentReader reader(std::as_bytes(std::span(bytes.data(), bytes.size())));
  uint32_t first = 0;
  std::vector<TypeParam> loaded;
  reader(first, loaded);
  EXPECT_EQ(first, 9u);
  EXPECT_EQ(loaded, ids);
  EXPECT_EQ(reader.bytes_left(), 0u);
}

// Two processes of three threads: no rank equals the id of one of its threads but for rank 0.
TEST(IdsInCalls, TravelInClosuresArgumentsAndResults) {
  LocalJob job({.processes = 2, .fabric = {.threads = 3}});
  job.run([](Fabric& fabric, uint32_t thread) {
    const ThreadContext& self = *fabric.this_thread();
    EXPECT_EQ(self.index(), thread);
    EXPECT_EQ(self.global_id(), fabric.thread_of(fabric.rank(), self.index()));
    EXPECT_EQ(fabric.rank_of(self.global_id()), fabric.rank());
    EXPECT_EQ(fabric.index_of(self.global_id()), self.index());
    EXPECT_EQ(fabric.thread_of(1), 3u);
    EXPECT_EQ(fabric.thread_of(1, 2), 5u);

    const Rank other = 1 - fabric.rank();
    const ThreadId partner = fabric.thread_of(other, self.index());
    // The closure carries an id, the argument is one, and so is the result.
    auto answer = async_call(
        fabric, partner,
        [partner](ThreadId caller) {
          Fabric& here = *running_fabric();
          EXPECT_EQ(here.this_thread()->global_id(), partner);
          EXPECT_EQ(here.rank_of(caller), running_source());
          return here.rank();
        },
        self.global_id());
    static_assert(std::is_same_v<decltype(answer), Future<Rank>>);
    EXPECT_EQ(must(answer.get(soon())), other);

    Synchronizer served;
    must(service_call<RemoteNotify>(
        fabric, fabric.rank_of(partner), [other] { EXPECT_EQ(running_fabric()->rank(), other); },
        served));
    must(fabric.wait(served, soon()));
  });
}

}  // namespace
}  // namespace cariama::testing
