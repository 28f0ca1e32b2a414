#include "dsfabric/bootstrap/introduction.h"

#include <cstddef>
#include <string>
#include <string_view>

#include "dsfabric/serializer.h"
#include "gtest/gtest.h"

namespace cariama::internal {
namespace {

Introduction of_node_1() {
  return {.program = {.functions = 3, .table_hash = 4},
          .threads = 2,
          .queue_pairs = 1,
          .lease = 2000,
          .pid = 4711,
          .board = 7,
          .busy_threads = 2,
          .cpus = {3, 1},
          .host = "node1",
          .host_identity = "boot/4/5"};
}

TEST(Introduction, IsEqualAfterItsEncoding) {
  const Introduction saved = of_node_1();
  const Introduction loaded = load_introduction(encode(saved));
  EXPECT_EQ(loaded.program, saved.program);
  EXPECT_EQ(loaded.threads, 2u);
  EXPECT_EQ(loaded.queue_pairs, 1u);
  EXPECT_EQ(loaded.lease, 2000u);
  EXPECT_EQ(loaded.pid, 4711u);
  EXPECT_EQ(loaded.board, 7);
  EXPECT_EQ(loaded.busy_threads, 2u);
  EXPECT_EQ(loaded.cpus, saved.cpus);
  EXPECT_EQ(loaded.host, "node1");
  EXPECT_EQ(loaded.host_identity, "boot/4/5");
}

TEST(Introduction, CutOrContinuedIsRefused) {
  const std::string bytes = encode(of_node_1());
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_THROW(static_cast<void>(load_introduction(std::string_view(bytes).substr(0, length))),
                 MalformedArguments)
        << length;
  }
  EXPECT_THROW(static_cast<void>(load_introduction(bytes + "x")), MalformedArguments);
}

}  // namespace
}  // namespace cariama::internal
