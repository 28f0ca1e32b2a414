#include "dtutils/internal/exchange_message.h"

#include <string>
#include <vector>

#include "dtutils/internal/exchange_store.h"
#include "dtutils/process_group.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cariama::internal {
namespace {

using ::testing::HasSubstr;

ExchangeMessage make(ExchangeType type, uint64_t request, uint32_t rank, std::string key,
                     std::string value) {
  ExchangeMessage message;
  message.type = type;
  message.request = request;
  message.rank = rank;
  message.key = std::move(key);
  message.value = std::move(value);
  return message;
}

std::string bytes_of(const ExchangeMessage& message) {
  std::string bytes;
  encode(message, bytes);
  return bytes;
}

std::vector<ExchangeMessage> samples() {
  std::vector<ExchangeMessage> messages = {
      make(ExchangeType::kPut, 0, 0, "", ""),
      make(ExchangeType::kPut, 0, 0, std::string(Exchange::kMaxKey, 'k'),
           std::string(100'000, 'v')),
      make(ExchangeType::kGet, 0xfedcba9876543210, 0xffffffff, "key", ""),
      make(ExchangeType::kFence, 7, 0, "", ""),
      make(ExchangeType::kValue, 8, 0, "", std::string("\0\xff\n", 3)),
      make(ExchangeType::kError, 9, 0, "", "why"),
  };
  messages.back().code = 14;
  return messages;
}

TEST(ExchangeMessage, TheFormOnTheStreamIsFixed) {
  const std::string bytes =
      bytes_of(make(ExchangeType::kGet, 0x0102030405060708, 0x0a0b0c0d, "ab", "c"));
  EXPECT_EQ(bytes, std::string("CXG1\x02\0\0\0\x08\x07\x06\x05\x04\x03\x02\x01\x0d\x0c\x0b\x0a"
                               "\0\0\0\0\x02\0\0\0\x01\0\0\0"
                               "abc",
                               35));
}

TEST(ExchangeMessage, ArrivesWholeHoweverTheStreamIsCut) {
  std::string stream;
  for (const ExchangeMessage& message : samples()) encode(message, stream);
  for (const size_t piece : {size_t{1}, size_t{31}, size_t{33}, size_t{4096}, stream.size()}) {
    ExchangeDecoder decoder;
    std::vector<ExchangeMessage> got;
    for (size_t at = 0; at < stream.size(); at += piece) {
      decoder.append(std::string_view(stream).substr(at, piece));
      while (true) {
        const absl::StatusOr<std::optional<ExchangeMessage>> message = decoder.next();
        ASSERT_TRUE(message.ok()) << message.status();
        if (!message->has_value()) break;
        got.push_back(**message);
      }
    }
    EXPECT_TRUE(got == samples()) << "in pieces of " << piece;
    EXPECT_EQ(decoder.pending_bytes(), 0U);
  }
}

TEST(ExchangeMessage, EveryFieldIsChecked) {
  struct Case {
    size_t offset;
    std::string bytes;
    std::string complaint;
  };
  const Case cases[] = {
      {0, "X", "starts with"},
      {4, std::string(1, '\0'), "no type 0"},
      {4, "\x0a", "no type 10"},
      {4, "\xff", "no type 255"},
      {5, "\x01", "padding"},
      {7, "\x01", "padding"},
      {24, std::string("\x01\x04\0\0", 4), "key of 1025 bytes"},
      {24, "\xff\xff\xff\xff", "key of 4294967295 bytes"},
      {28, std::string("\x01\0\0\x04", 4), "value of 67108865 bytes"},
      {28, "\xff\xff\xff\xff", "value of 4294967295 bytes"},
  };
  for (const Case& bad : cases) {
    std::string bytes = bytes_of(make(ExchangeType::kPut, 1, 0, "key", "value"));
    bytes.replace(bad.offset, bad.bytes.size(), bad.bytes);
    ExchangeDecoder decoder;
    decoder.append(bytes);
    for (int again = 0; again < 2; ++again) {
      const absl::StatusOr<std::optional<ExchangeMessage>> message = decoder.next();
      ASSERT_EQ(message.status().code(), absl::StatusCode::kInvalidArgument) << bad.complaint;
      EXPECT_THAT(std::string(message.status().message()), HasSubstr(bad.complaint));
      decoder.append(bytes_of(make(ExchangeType::kFence, 1, 0, "", "")));
    }
  }
}

class ExchangeStoreTest : public ::testing::Test {
 protected:
  absl::Status handle(int rank, ExchangeMessage message) {
    answers_.clear();
    return store_.handle(rank, std::move(message), answers_);
  }

  ExchangeStore store_{{"a", "b", "c"}};
  std::vector<ExchangeStore::Answer> answers_;
};

TEST_F(ExchangeStoreTest, RefusesMessagesThatNoClientSends) {
  EXPECT_FALSE(handle(0, make(ExchangeType::kGet, 1, 3, "key", "")).ok());
  EXPECT_FALSE(handle(0, make(ExchangeType::kGet, 1, 0xffffffff, "key", "")).ok());
  EXPECT_FALSE(handle(0, make(ExchangeType::kValue, 1, 0, "", "")).ok());
  EXPECT_FALSE(handle(0, make(ExchangeType::kFenceDone, 1, 0, "", "")).ok());
  EXPECT_FALSE(handle(0, make(ExchangeType::kError, 1, 0, "", "")).ok());
  EXPECT_TRUE(handle(0, make(ExchangeType::kFence, 1, 0, "", "")).ok());
  EXPECT_FALSE(handle(0, make(ExchangeType::kFence, 2, 0, "", "")).ok());
  EXPECT_TRUE(answers_.empty());
}

TEST_F(ExchangeStoreTest, OneWaitPerRankAndTheLatestCounts) {
  ASSERT_TRUE(handle(0, make(ExchangeType::kGet, 1, 2, "first", "")).ok());
  ASSERT_TRUE(handle(0, make(ExchangeType::kGet, 2, 2, "second", "")).ok());
  ASSERT_TRUE(handle(1, make(ExchangeType::kGet, 1, 2, "second", "")).ok());
  EXPECT_TRUE(answers_.empty());
  ASSERT_TRUE(handle(2, make(ExchangeType::kPut, 0, 0, "first", "1")).ok());
  EXPECT_TRUE(answers_.empty());  // the second get() of rank 0 has replaced this one
  ASSERT_TRUE(handle(2, make(ExchangeType::kPut, 0, 0, "second", "2")).ok());
  ASSERT_EQ(answers_.size(), 2U);  // one answer for each of the two waiting ranks
  EXPECT_EQ(answers_[0].rank, 0);
  EXPECT_EQ(answers_[0].message, make(ExchangeType::kValue, 2, 2, "", "2"));
  EXPECT_EQ(answers_[1].rank, 1);
  ASSERT_TRUE(handle(2, make(ExchangeType::kPut, 0, 0, "second", "3")).ok());
  EXPECT_TRUE(answers_.empty());
}

TEST_F(ExchangeStoreTest, TheValuesOfAllRanks) {
  ASSERT_TRUE(handle(2, make(ExchangeType::kPut, 0, 0, "key", "2")).ok());
  ASSERT_TRUE(handle(0, make(ExchangeType::kGetAll, 1, 0, "key", "")).ok());
  ASSERT_EQ(answers_.size(), 1U);
  EXPECT_EQ(answers_[0].rank, 0);
  EXPECT_EQ(answers_[0].message, make(ExchangeType::kValue, 1, 2, "", "2"));
  ASSERT_TRUE(handle(2, make(ExchangeType::kPut, 0, 0, "key", "again")).ok());
  EXPECT_TRUE(answers_.empty());  // the waiting rank has the value of rank 2
  ASSERT_TRUE(handle(0, make(ExchangeType::kPut, 0, 0, "key", "0")).ok());
  ASSERT_EQ(answers_.size(), 1U);
  EXPECT_EQ(answers_[0].message, make(ExchangeType::kValue, 1, 0, "", "0"));
  answers_.clear();
  store_.rank_ended(2, "has ended", answers_);
  EXPECT_TRUE(answers_.empty());  // it has put its value
  ASSERT_TRUE(handle(1, make(ExchangeType::kPut, 0, 0, "key", "1")).ok());
  ASSERT_EQ(answers_.size(), 1U);
  EXPECT_EQ(answers_[0].message, make(ExchangeType::kValue, 1, 1, "", "1"));

  ASSERT_TRUE(handle(0, make(ExchangeType::kGetAll, 2, 0, "key", "")).ok());
  ASSERT_EQ(answers_.size(), 3U);
  EXPECT_EQ(answers_[2].message, make(ExchangeType::kValue, 2, 2, "", "again"));
  ASSERT_TRUE(handle(0, make(ExchangeType::kPut, 0, 0, "key", "1")).ok());
  EXPECT_TRUE(answers_.empty());  // the request is complete
}

TEST_F(ExchangeStoreTest, AnEndedRankFailsAWaitForAllRanks) {
  ASSERT_TRUE(handle(0, make(ExchangeType::kGetAll, 1, 0, "key", "")).ok());
  store_.rank_ended(2, "has ended", answers_);
  ASSERT_EQ(answers_.size(), 1U);
  EXPECT_EQ(answers_[0].message.type, ExchangeType::kError);
  EXPECT_EQ(answers_[0].message.request, 1U);
  EXPECT_EQ(answers_[0].message.value, "c has ended");
  ASSERT_TRUE(handle(1, make(ExchangeType::kPut, 0, 0, "key", "1")).ok());
  EXPECT_TRUE(answers_.empty());
  ASSERT_TRUE(handle(0, make(ExchangeType::kGetAll, 2, 0, "key", "")).ok());
  ASSERT_EQ(answers_.size(), 2U);
  EXPECT_EQ(answers_[1].message.type, ExchangeType::kError);
}

TEST_F(ExchangeStoreTest, AnEndedRankFailsEveryWaitForIt) {
  ASSERT_TRUE(handle(0, make(ExchangeType::kFence, 5, 0, "", "")).ok());
  ASSERT_TRUE(handle(1, make(ExchangeType::kGet, 6, 2, "key", "")).ok());
  answers_.clear();
  store_.rank_ended(2, "has ended", answers_);
  ASSERT_EQ(answers_.size(), 2U);
  for (const ExchangeStore::Answer& answer : answers_) {
    EXPECT_EQ(answer.message.type, ExchangeType::kError);
    EXPECT_EQ(answer.message.request, answer.rank == 0 ? 5U : 6U);
    EXPECT_EQ(answer.message.value, "c has ended");
  }
  ASSERT_TRUE(handle(1, make(ExchangeType::kFence, 7, 0, "", "")).ok());
  ASSERT_EQ(answers_.size(), 1U);  // answered immediately: the fence can never complete
  EXPECT_EQ(answers_[0].message.type, ExchangeType::kError);
}

}  // namespace
}  // namespace cariama::internal
