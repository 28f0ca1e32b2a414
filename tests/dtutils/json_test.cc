#include "dtutils/internal/json.h"

#include <string>

#include "gtest/gtest.h"
#include "tests/dtutils/testing/json.h"

namespace cariama {
namespace {

using testing::parse_json;

TEST(JsonStringTest, PlainTextStaysReadable) {
  EXPECT_EQ(json_string("rank 3"), "\"rank 3\"");
  EXPECT_EQ(json_string(""), "\"\"");
  EXPECT_EQ(json_string("größe → 1"), "\"größe → 1\"");
}

TEST(JsonStringTest, EveryByteGivesValidJson) {
  for (int byte = 0; byte < 256; ++byte) {
    const std::string text = std::string("a") + static_cast<char>(byte) + "b";
    const auto parsed = parse_json(json_string(text));
    ASSERT_TRUE(parsed.has_value()) << byte;
    // An ASCII byte is preserved; a byte that is not valid UTF-8 becomes the replacement character.
    EXPECT_EQ(parsed->string(), byte < 0x80 ? text : "a\\ufffdb") << byte;
  }
}

TEST(JsonStringTest, OnlyShortestFormsOfCodePointsAreUtf8) {
  EXPECT_EQ(json_string("\xC0\x80"), R"("\ufffd\ufffd")");                      // overlong NUL
  EXPECT_EQ(json_string("\xED\xA0\x80"), R"("\ufffd\ufffd\ufffd")");            // a surrogate
  EXPECT_EQ(json_string("\xF4\x90\x80\x80"), R"("\ufffd\ufffd\ufffd\ufffd")");  // past U+10FFFF
  EXPECT_EQ(json_string("\xF0\x9F\x90\xA6"), "\"\xF0\x9F\x90\xA6\"");
  EXPECT_EQ(json_string("\xE2\x82"), R"("\ufffd\ufffd")");  // cut short
}

// The parser that other tests rely on refuses text that is not JSON.
TEST(ParseJsonTest, RefusesInvalidJson) {
  for (const char* bad : {"", "{", "[1,]", "{\"a\":1,}", "{\"a\":1,\"a\":2}", "01", "1.", "1e",
                          "\"\n\"", "\"\\x\"", "nul", "[] []", "{a:1}", "'a'", "-", "\"a"}) {
    EXPECT_FALSE(parse_json(bad).has_value()) << bad;
  }
  const auto good = parse_json(R"( {"a": [1, -2.5e3, true, null, "x\n"], "b": {}} )");
  ASSERT_TRUE(good.has_value());
  EXPECT_EQ(good->at("a").array().at(1).number(), -2500);
  EXPECT_EQ(good->at("a").array().at(4).string(), "x\n");
}

}  // namespace
}  // namespace cariama
