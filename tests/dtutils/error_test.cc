#include "dtutils/error.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cariama {
namespace {

using ::testing::EndsWith;

constexpr ErrorScope kEveryScope[] = {ErrorScope::kNone, ErrorScope::kOperation, ErrorScope::kLink,
                                      ErrorScope::kPeer, ErrorScope::kProcess};

TEST(ErrorScopes, ArePrintedAsWords) {
  for (const ErrorScope scope : kEveryScope) {
    const absl::Status status = make_error(absl::StatusCode::kInternal, scope, "what", "remedy");
    EXPECT_EQ(error_scope(status), scope);
    EXPECT_EQ(std::string(status.message()), "what: remedy");
    EXPECT_THAT(status.ToString(), EndsWith(" [cariama.dtutils/error_scope='" +
                                            std::string(scope_name(scope)) + "']"));
  }
}

TEST(ErrorScopes, AreNoneWithoutAPayloadOfThisLibrary) {
  EXPECT_EQ(error_scope(absl::OkStatus()), ErrorScope::kNone);
  EXPECT_EQ(error_scope(absl::InternalError("of another library")), ErrorScope::kNone);
  absl::Status damaged = make_error(absl::StatusCode::kInternal, ErrorScope::kPeer, "what");
  damaged.SetPayload("cariama.dtutils/error_scope", absl::Cord("peers"));
  EXPECT_EQ(error_scope(damaged), ErrorScope::kNone);
}

}  // namespace
}  // namespace cariama
