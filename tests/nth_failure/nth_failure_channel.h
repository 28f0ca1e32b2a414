#ifndef CARIAMA_TESTS_NTH_FAILURE_NTH_FAILURE_CHANNEL_H_
#define CARIAMA_TESTS_NTH_FAILURE_NTH_FAILURE_CHANNEL_H_

namespace cariama {

// For n = 1, 2, ... makes the n-th allocation fail while a thread opens a messenger to itself,
// sends calls, runs them, and returns the chunks, until a run makes fewer allocations. After each
// failure the same messenger sends the remaining calls. Each accepted call has to run once, in
// order, and the receiver has to free all chunks. Requires the library in preload/. Returns 0, or
// prints what failed and returns 1.
[[nodiscard]] int fail_in_a_channel();

// The same for a thread that is the sender, the router and the destination of routed calls.
[[nodiscard]] int fail_in_a_router();

}  // namespace cariama

#endif  // CARIAMA_TESTS_NTH_FAILURE_NTH_FAILURE_CHANNEL_H_
