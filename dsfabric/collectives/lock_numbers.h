// The numbers of the lock objects of a process (distributed_lock.h).
#ifndef CARIAMA_DSFABRIC_COLLECTIVES_LOCK_NUMBERS_H_
#define CARIAMA_DSFABRIC_COLLECTIVES_LOCK_NUMBERS_H_

#include <atomic>
#include <cstdint>

namespace cariama::internal {

// The number of the next DistributedLock, modulo 2^32. Tests change it, to reach the end of the 32
// bits soon.
[[nodiscard]] std::atomic<uint32_t>& next_lock_number();

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_COLLECTIVES_LOCK_NUMBERS_H_
