// error: cariama: a call of a RoutedAggregator takes no completion; a messenger's does
#include "riutils/routed_aggregator.h"

void example(cariama::RoutedAggregator& aggregator, cariama::Synchronizer& done) {
#ifdef CARIAMA_MUST_NOT_COMPILE
  static_cast<void>(aggregator.call(
      1, [](int) {}, done, 5));
#else
  static_cast<void>(done);
  static_cast<void>(aggregator.call(
      1, [](int) {}, 5));
#endif
}
