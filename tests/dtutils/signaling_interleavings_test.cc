// The accounting of a shared send queue: small instances are explored through every interleaving,
// and each of a list of deliberate mistakes must be found (signaling_interleavings_model.h).
#include <cstdio>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/dtutils/signaling_interleavings_model.h"

namespace cariama {
namespace {

using testing::Action;
using testing::Exploration;
using ::testing::HasSubstr;
using testing::Instance;
using testing::Mistake;
using Program = std::vector<Action>;

constexpr Action kPost = Action::kPost;
constexpr Action kSignaled = Action::kPostSignaled;
constexpr Action kRefused = Action::kPostRefused;
constexpr Action kTry = Action::kTryPost;
constexpr Action kPoll = Action::kPoll;
constexpr Action kLeave = Action::kLeave;

struct Named {
  const char* name;
  Instance instance;
};

std::ostream& operator<<(std::ostream& out, const Named& named) { return out << named.name; }

class SignalingInterleavings : public ::testing::TestWithParam<Named> {};

TEST_P(SignalingInterleavings, KeepEveryInvariant) {
  const Exploration result = testing::explore(GetParam().instance);
  EXPECT_EQ(result.violation, "");
  std::printf("%s: %.3g interleavings in %llu states\n", GetParam().name, result.schedules,
              static_cast<unsigned long long>(result.states));
}

INSTANTIATE_TEST_SUITE_P(
    All, SignalingInterleavings,
    ::testing::Values(
        Named{"depth_1", {1, {{kPost, kPost, kPost}, {kPost, kPost, kPost}}}},
        Named{"depth_1_three_threads", {1, {{kPost, kPost}, {kPost, kPost}, {kPost}}}},
        Named{"depth_2", {2, {{kPost, kPost, kPost}, {kPost, kSignaled, kPost}}}},
        Named{"depth_2_three_threads", {2, {{kPost, kPost}, {kPost}, {kPost}}}},
        Named{"depth_3_three_threads", {3, {{kPost, kPost}, {kPost}, {kTry, kPoll}}}},
        Named{"depth_3_pollers", {3, {{kPost, kPost, kPost}, {kPost, kPost}, {kPoll}}}},
        Named{"a_queue_full_of_refusals",
              {1, {{kTry, kTry, kLeave}, {kTry, kPost, kPost}, {kTry, kLeave}}}},
        Named{"requests_that_are_refused",
              {1, {{kPost, kRefused, kPost}, {kRefused, kPost, kLeave}, {kRefused, kLeave}}}},
        // Batches of two credits: there are unsignaled operations and credits that lanes hold.
        Named{"batches",
              {8, {{kPost, kPost, kPost, kPost, kPost}, {kPost, kPost, kPost, kPost, kPost}}, 1}},
        Named{"batches_with_signaled",
              {8, {{kPost, kSignaled, kPost, kPost}, {kPost, kPost, kSignaled, kPost, kPost}}, 1}},
        Named{
            "batches_given_back",
            {8, {{kPost, kLeave, kPost, kPost, kPost}, {kPost, kRefused, kPost, kPost, kPost}}, 1}},
        Named{"batches_and_a_poller",
              {8, {{kPost, kPost, kPost, kPost}, {kPost, kPost, kPost, kPost}, {kPoll, kPoll}}, 1}},
        // Batches of three credits, and a queue that runs out of credits within a batch.
        Named{"a_batch_cut_short",
              {12,
               {{kPost, kPost, kPost, kPost, kPost, kPost, kPost},
                {kPost, kPost, kPost, kPost, kPost, kPost}},
               1}}),
    [](const auto& info) { return std::string(info.param.name); });

struct Seeded {
  const char* name;
  Instance instance;
  const char* violation;
};

std::ostream& operator<<(std::ostream& out, const Seeded& seeded) { return out << seeded.name; }

class SignalingMistakes : public ::testing::TestWithParam<Seeded> {};

TEST_P(SignalingMistakes, AreFound) {
  Instance instance = GetParam().instance;
  const Exploration result = testing::explore(instance);
  EXPECT_THAT(result.violation, HasSubstr(GetParam().violation));
  std::printf("%s: found within %llu states\n", GetParam().name,
              static_cast<unsigned long long>(result.states));
  // Without the mistake the same instance must pass.
  instance.mistake = Mistake::kNone;
  EXPECT_EQ(testing::explore(instance).violation, "");
}

const Program kThree{kPost, kPost, kPost};
const Program kFour{kPost, kPost, kPost, kPost};

INSTANTIATE_TEST_SUITE_P(
    All, SignalingMistakes,
    ::testing::Values(
        Seeded{
            "tag_before_post", {2, {kThree, kThree}, 0, Mistake::kTagBeforePost}, "reported free"},
        Seeded{"tag_own_number", {2, {kThree, kThree}, 0, Mistake::kTagOwnNumber}, "reported free"},
        Seeded{"flush_number_after_post",
               {2, {kThree, kThree}, 0, Mistake::kFlushNumberAfterPost},
               "reported free"},
        Seeded{"free_at_flush_number",
               {2, {kThree, kThree}, 0, Mistake::kFreeAtFlushNumber},
               "reported free"},
        Seeded{"flushed_by_store",
               {2, {kThree, kThree}, 0, Mistake::kFlushedByStore},
               "flushed decreases"},
        Seeded{"covers_one_too_many",
               {2, {kThree, kThree}, 0, Mistake::kCoversOneTooMany},
               "more credits were retired"},
        Seeded{"covers_itself_only",
               {8, {kFour, kFour}, 1, Mistake::kCoversItselfOnly},
               "credits are lost"},
        Seeded{"last_credit_unsignaled",
               {1, {kThree, kThree}, 0, Mistake::kLastCreditUnsignaled},
               "deadlock"},
        Seeded{
            "credits_by_store", {1, {{kPost}, {kPost}}, 0, Mistake::kCreditsByStore}, "overflow"},
        Seeded{"keeps_credit_of_refusal",
               {1, {{kRefused}, {kPost}}, 0, Mistake::kKeepsCreditOfRefusal},
               "deadlock"},
        Seeded{"counts_over_all_lanes",
               {1, {kThree, kThree}, 0, Mistake::kCountsOverAllLanes},
               "credits are lost"}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace cariama
