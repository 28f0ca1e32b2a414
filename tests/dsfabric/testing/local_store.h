// A bootstrap and a broker in memory, for Fabric::create(), by which the processes of a job within
// one operating-system process exchange data before they are connected. Waits use the thread's wait
// hook, so that jobs in steps or in virtual time can be set up by threads that take turns.
#ifndef CARIAMA_TESTS_DSFABRIC_TESTING_LOCAL_STORE_H_
#define CARIAMA_TESTS_DSFABRIC_TESTING_LOCAL_STORE_H_

#include <cstdint>
#include <memory>

#include "dsfabric/bootstrap.h"
#include "dsfabric/peers/broker.h"

namespace cariama::testing {

// The data that the processes of a job share. Thread-safe.
struct LocalStore;
[[nodiscard]] std::shared_ptr<LocalStore> make_local_store(uint32_t processes);
// Marks a process as ended, as a launcher does with a process that has died.
void mark_ended(LocalStore& store, uint32_t rank);
// Returns the number of put(), get(), get_all() and fence() operations of `rank` so far.
[[nodiscard]] uint64_t store_operations(const LocalStore& store, uint32_t rank);

// Returns the view of `rank`. Its destruction marks the process as ended.
[[nodiscard]] std::unique_ptr<Bootstrap> make_local_bootstrap(std::shared_ptr<LocalStore> store,
                                                              uint32_t rank);
// Returns a broker that runs the handler of the other process in the calling thread.
[[nodiscard]] std::unique_ptr<internal::Broker> make_local_broker(
    std::shared_ptr<LocalStore> store, uint32_t rank, internal::Broker::Handler handler);

}  // namespace cariama::testing

#endif  // CARIAMA_TESTS_DSFABRIC_TESTING_LOCAL_STORE_H_
