// error: cariama: a RoutedAggregator copies the buffer into the call
#include <cstddef>
#include <cstdint>
#include <span>

#include "riutils/routed_aggregator.h"

void example(cariama::RoutedAggregator& aggregator, std::span<const std::byte> bytes) {
#ifdef CARIAMA_MUST_NOT_COMPILE
  static_cast<void>(aggregator.call_buffer<cariama::Sync>(
      1, [](void*, uint64_t) {}, bytes));
#else
  static_cast<void>(aggregator.call_buffer(
      1, [](void*, uint64_t) {}, bytes));
#endif
}
