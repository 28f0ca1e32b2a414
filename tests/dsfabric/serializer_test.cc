// The serialization of arguments: saved values can be loaded, and invalid bytes are refused.
#include "dsfabric/serializer.h"

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <variant>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cariama {

// A plain class directly in the namespace of the serializer, like global_ptr and Rank.
struct PlainOfTheLibrary {
  uint64_t value = 0;
  friend bool operator==(const PlainOfTheLibrary&, const PlainOfTheLibrary&) = default;
};

namespace {

struct Point {  // has no serialize(): saved bytewise
  int32_t x = 0;
  int32_t y = 0;
  friend bool operator==(const Point&, const Point&) = default;
  friend auto operator<=>(const Point&, const Point&) = default;
};

struct Nothing {
  friend bool operator==(const Nothing&, const Nothing&) = default;
};

struct SerializedPerson {
  std::string name;
  std::vector<SerializedPerson> children;
  std::map<std::string, double> marks;
  template <typename Archive>
  void serialize(Archive& archive) {
    archive(name, children, marks);
  }
  friend bool operator==(const SerializedPerson&, const SerializedPerson&) = default;
};

// A trivially copyable class with its own serialize(), which is used within containers.
struct Squeezed {
  uint64_t value = 0;
  template <typename Archive>
  void serialize(Archive& archive) {
    auto byte = static_cast<uint8_t>(value);
    archive(byte);
    value = byte;
  }
  friend bool operator==(const Squeezed&, const Squeezed&) = default;
};

std::span<const std::byte> view(const std::string& bytes) {
  return std::as_bytes(std::span(bytes.data(), bytes.size()));
}

template <typename T>
std::string saved(const T& value) {
  std::string bytes;
  save_value(bytes, value);
  return bytes;
}

template <typename T>
void expect_round_trip(const T& value) {
  const std::string bytes = saved(value) + "rest";
  std::span<const std::byte> in = view(bytes);
  EXPECT_TRUE(load_value<T>(in) == value);
  EXPECT_EQ(in.size(), 4u);  // exactly the saved bytes were consumed
}

TEST(Serializer, RestoresWhatItSaved) {
  expect_round_trip(42);
  expect_round_trip(true);
  expect_round_trip(std::string());
  expect_round_trip(std::string("with\0zero", 9));
  expect_round_trip(std::string(100'000, 'x'));
  expect_round_trip(std::vector<int>{});
  expect_round_trip(std::vector<double>{1.5, -0.0, 1e300});
  expect_round_trip(std::vector<bool>{true, false, true});
  expect_round_trip(std::vector<std::string>{"", "a", "bb"});
  expect_round_trip(std::map<std::string, std::vector<int>>{{"one", {1}}, {"none", {}}});
  expect_round_trip(std::unordered_map<int, std::string>{{1, "x"}, {2, ""}});
  expect_round_trip(std::set<std::pair<int, int>>{{1, 2}, {3, 4}});
  expect_round_trip(std::optional<std::string>());
  expect_round_trip(std::optional<std::string>("there"));
  expect_round_trip(std::variant<int, std::string>("text"));
  expect_round_trip(std::tuple<int, std::string, std::vector<char>>{7, "seven", {'7'}});
  expect_round_trip(std::array<std::string, 3>{"a", "b", "c"});
  expect_round_trip(
      SerializedPerson{"Ada", {{"Bea", {}, {}}, {"Cy", {}, {{"x", 1.5}}}}, {{"y", 2}}});
}

TEST(Serializer, PlainClassesTravelBytewiseAlsoWithinContainers) {
  expect_round_trip(Point{1, -2});
  expect_round_trip(std::vector<Point>{{1, 2}, {3, 4}});
  expect_round_trip(std::map<Point, std::optional<Point>>{{{1, 2}, Point{3, 4}}, {{5, 6}, {}}});
  expect_round_trip(std::vector<PlainOfTheLibrary>{{1}, {2}});
  expect_round_trip(std::optional(PlainOfTheLibrary{3}));
  expect_round_trip(std::vector<Nothing>(5));
  EXPECT_EQ(saved(std::vector<Point>(3)).size(), sizeof(uint64_t) + 3 * sizeof(Point));
  expect_round_trip(std::vector<Squeezed>{{200}, {3}});
  EXPECT_EQ(saved(std::vector<Squeezed>(2)).size(), sizeof(uint64_t) + 2);
}

TEST(Serializer, OwningPointersTravelWithTheirObjects) {
  const std::string bytes = saved(std::make_unique<std::string>("owned"));
  std::span<const std::byte> in = view(bytes);
  EXPECT_EQ(*load_value<std::unique_ptr<std::string>>(in), "owned");
}

template <typename T>
void expect_malformed(const std::string& bytes) {
  std::span<const std::byte> in = view(bytes);
  EXPECT_THROW(static_cast<void>(load_value<T>(in)), MalformedArguments);
}

TEST(Serializer, EveryTruncationIsNoticed) {
  const auto expect_all = [](const auto& value) {
    using T = std::decay_t<decltype(value)>;
    const std::string bytes = saved(value);
    for (size_t length = 0; length < bytes.size(); ++length) {
      expect_malformed<T>(bytes.substr(0, length));
    }
  };
  expect_all(uint64_t{1});
  expect_all(Point{1, 2});
  expect_all(std::string("text"));
  expect_all(std::vector<Point>{{1, 2}, {3, 4}});
  expect_all(SerializedPerson{"Ada", {{"Bea", {}, {}}}, {{"y", 2}}});
}

TEST(Serializer, FalseSizesAllocateNoMemory) {
  // 2^60 elements: allocating memory for them would end the process.
  const std::string huge = saved(uint64_t{1} << 60) + "some bytes";
  expect_malformed<std::string>(huge);
  expect_malformed<std::vector<int>>(huge);
  expect_malformed<std::vector<Point>>(huge);
  expect_malformed<std::vector<std::string>>(huge);
  expect_malformed<std::map<int, int>>(huge);
  expect_malformed<std::vector<bool>>(huge);
  expect_malformed<std::set<Point>>(huge);
  const std::string one_too_many = saved(uint64_t{5}) + "1234";
  expect_malformed<std::string>(one_too_many);
}

TEST(Serializer, InvalidBoolsAreRefused) {
  expect_malformed<bool>("\x02");
  expect_malformed<std::vector<bool>>(saved(uint64_t{1}) + "\xff");
}

TEST(Serializer, ConceptRejectsTypesThatCannotTravel) {
  struct NotSaved {
    std::string text;
  };
  static_assert(!Serializable<NotSaved>);
  static_assert(!Serializable<std::string*> || std::is_trivially_copyable_v<std::string*>);
  static_assert(Serializable<Point> && Serializable<std::vector<Point>> &&
                Serializable<SerializedPerson>);
}

// Random bytes either load or throw. (The fuzzer tests more of them.)
TEST(Serializer, RandomBytesLoadOrThrow) {
  std::mt19937 random(1);
  int loaded = 0;
  for (int i = 0; i < 5000; ++i) {
    std::string bytes(random() % 64, '\0');
    // Mostly small numbers, so that some sizes are valid.
    for (char& byte : bytes) byte = static_cast<char>(random() % 8 == 0 ? random() : 0);
    std::span<const std::byte> in = view(bytes);
    try {
      static_cast<void>(load_value<SerializedPerson>(in));
      ++loaded;
    } catch (const std::exception&) {
    }
  }
  EXPECT_GT(loaded, 0);
  EXPECT_LT(loaded, 5000);
}

}  // namespace
}  // namespace cariama
