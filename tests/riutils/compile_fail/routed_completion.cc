// error: cariama: a routed call ends with an answer, which can count a plain Synchronizer down; a
#include "riutils/routed_aggregator.h"

void example(cariama::RoutedAggregator& aggregator, cariama::Synchronizer& done,
             cariama::RemoteObject<cariama::Synchronizer>& written) {
#ifdef CARIAMA_MUST_NOT_COMPILE
  static_cast<void>(aggregator.call<cariama::RemoteNotify>(
      1, [](int) {}, written, 5));
#else
  static_cast<void>(written);
  static_cast<void>(aggregator.call<cariama::RemoteNotify>(
      1, [](int) {}, done, 5));
#endif
}
