// error: cariama: the destination of a call, a ThreadId such as fabric.thread_of(rank), stands
// before its function
#include "riutils/routed_aggregator.h"

void example(cariama::RoutedAggregator& aggregator, int x) {
#ifdef CARIAMA_MUST_NOT_COMPILE
  static_cast<void>(aggregator.async_call([x] { return x; }));
#else
  static_cast<void>(aggregator.async_call(1, [x] { return x; }));
#endif
}
