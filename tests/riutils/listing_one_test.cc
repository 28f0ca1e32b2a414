// The paper's Listing 1 compiles and runs: every call, template argument and argument order is as
// printed. Only its undefined `i` (line 22) and `source` are corrected, and the parts that the
// listing leaves to the user are filled in. The listing ignores the results of init_thread() and
// call(), for which compilers warn.
#include <atomic>
#include <cstring>

#include "gtest/gtest.h"
#include "riutils/call.h"
#include "tests/dsfabric/testing/local_job.h"

#pragma GCC diagnostic ignored "-Wunused-result"

namespace seriema = cariama;  // the namespace of the paper
// NOLINTNEXTLINE(google-build-using-namespace): as in the listing
using namespace cariama;

namespace {

constexpr uint64_t number_operations = 1000;
constexpr uint32_t destination_thread = 0;
std::atomic<uint64_t> received{0};
std::atomic<uint64_t> damaged{0};
std::atomic<uint64_t> finished{0};

int fill_data(std::byte* buffer) {
  std::memset(buffer, 0x11, 100);
  return 100;
}

void demonstration_thread(int offset) {
  seriema::init_thread(offset);

  RDMAMessengerGlobal messenger;
  Synchronizer synchronizer(number_operations);

  for (uint64_t i = 0; i < number_operations; i++) {
    RDMAMemory* registered_data = seriema::thread_information->circular_allocator->allocate();

    int filled_size = fill_data(registered_data->get_buffer());  // User function
    RDMAMemory* source = registered_data;

    bool result = messenger.call_buffer<RetryAsync>(
        destination_thread,
        [source_thread = i](void* buffer, uint64_t size) {
          // Remote function body:
          // - can use "source_thread", "buffer", "size"
          if (source_thread >= number_operations || size != 100) ++damaged;
          for (uint64_t k = 0; k < size; ++k) {
            if (static_cast<unsigned char*>(buffer)[k] != 0x11) ++damaged;
          }
          ++received;
        },
        source, 0, filled_size, synchronizer);
    EXPECT_TRUE(result);

    // Processing remote messages can also be delegated to helper threads
    if (i % 128 == 0) {
      messenger.process_calls_all();
    }
  }

  Synchronizer remote_synchronizer;
  seriema::call<RemoteNotify>(
      0,
      [source_thread = offset] {
        // Remote function body:
        // - "source_thread" notified it is done
        if (source_thread == 0) ++finished;
      },
      remote_synchronizer);
  remote_synchronizer.spin_nonzero_operations_left();

  messenger.shutdown_all(cariama::testing::soon());
  EXPECT_TRUE(synchronizer.done());
  seriema::finalize_thread();
}

TEST(ListingOne, CompilesAndRuns) {
  cariama::testing::LocalJobOptions options;
  options.init_thread = false;
  cariama::testing::LocalJob job(options);
  job.run([](Fabric& fabric, uint32_t) {
    if (fabric.rank() == 0) {  // the destination of the listing's calls
      auto self = fabric.init_thread(0);
      ASSERT_TRUE(self.ok());
      EXPECT_TRUE(
          fabric.wait([] { return received.load() == number_operations && finished.load() == 1; },
                      cariama::testing::soon()));
      return;
    }
    seriema::set_default_fabric(&fabric);
    demonstration_thread(0);
    seriema::set_default_fabric(nullptr);
  });
  EXPECT_EQ(received.load(), number_operations);
  EXPECT_EQ(damaged.load(), 0u);
}

}  // namespace
