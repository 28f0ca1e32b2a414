#include "tests/mcts/testing/search_job.h"

#include "gtest/gtest.h"
#include "tests/dsfabric/testing/local_job.h"
#include "tests/dsfabric/testing/process_job.h"
#include "tests/dtutils/testing/process_test.h"

namespace cariama::mcts::testing {
namespace {

// Runs one process of a job: `body` in rank 0; serve() and then `after` in the other ranks.
void search_or_serve(Fabric& fabric, const std::function<void(Host&)>& body,
                     const std::function<void(Host&)>& after, const HostOptions& options) {
  auto host = Host::create(&fabric, options);
  ASSERT_TRUE(host.ok()) << host.status();
  if ((*host)->rank() == 0) {
    body(**host);
    (*host)->end();
  } else {
    EXPECT_EQ((*host)->serve(), absl::OkStatus());
    if (after) after(**host);
  }
}

}  // namespace

void run_search_job(const Shape& shape, const std::function<void(Host&)>& body,
                    const std::function<void(Host&)>& after, const HostOptions& options) {
  using cariama::testing::must;
  cariama::testing::run_test_processes(shape.processes, [&](Exchange& exchange) {
    FabricOptions fabric_options;
    fabric_options.threads = shape.threads;
    auto fabric = cariama::testing::fabric_of_group(exchange, fabric_options);
    ASSERT_TRUE(fabric.ok()) << fabric.status();
    search_or_serve(**fabric, body, after, options);
    must((*fabric)->finalize(cariama::testing::soon()));
  });
}

void run_with_a_victim(const Shape& shape, const std::function<void(Host&)>& body,
                       const std::function<void(Host&)>& after,
                       const std::function<void(Host&)>& before, const HostOptions& host_options) {
  const auto run = [&](Exchange& exchange) {
    FabricOptions options;
    options.threads = shape.threads;
    options.on_failure = FailurePolicy::kContinue;
    auto fabric = cariama::testing::fabric_of_group(exchange, options);
    ASSERT_TRUE(fabric.ok()) << fabric.status();
    auto host = Host::create(fabric->get(), host_options);
    ASSERT_TRUE(host.ok()) << host.status();
    if (before) before(**host);
    if ((*host)->rank() != 0) {
      static_cast<void>((*host)->serve());
      if (after) after(**host);
      return;
    }
    body(**host);
    (*host)->end();
  };
  const int victim = shape.processes - 1;
  const absl::Status status =
      cariama::testing::try_test_processes(shape.processes, run, {.may_die = {victim}});
  EXPECT_TRUE(status.ok()) << status;
}

void run_transport_job(const std::string& transport, uint64_t seed,
                       const std::function<void(Host&)>& body,
                       const std::function<void(Host&)>& after, uint32_t processes) {
  cariama::testing::LocalJob job({.processes = processes,
                                  .transport = cariama::testing::transport_case(transport),
                                  .seed = seed,
                                  .init_thread = false});
  job.run([&](Fabric& fabric, uint32_t) { search_or_serve(fabric, body, after, {}); });
}

}  // namespace cariama::mcts::testing
