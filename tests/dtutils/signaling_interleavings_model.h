// All interleavings of a few threads that run the real Signaling code against a model of the
// device.
//
// Every access to a shared variable, and every call of the device, is one step. Between two steps a
// thread is plain data: its lane, its position in its program, and the results of the accesses that
// its current action has made. To make a step, the explorer executes the action again from its
// beginning with these results, lets it make one new access, and abandons it by an exception at the
// next access. So the whole system is a value that can be copied and hashed, and a depth-first
// search that remembers the states it has seen visits every interleaving. It covers sequentially
// consistent accesses only; weaker memory orders are covered by signaling_stress_test.cc and by the
// proof in signaling.h.
//
// The device is the slowest that the contract allows: it executes an operation only when the
// completion that covers the operation is polled. That is the worst case for code that treats a
// buffer or a slot as free too early.
#ifndef CARIAMA_TESTS_DTUTILS_SIGNALING_INTERLEAVINGS_MODEL_H_
#define CARIAMA_TESTS_DTUTILS_SIGNALING_INTERLEAVINGS_MODEL_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "dtutils/signaling.h"

namespace cariama::testing {

// The actions of a thread's program.
enum class Action : uint8_t {
  kPost,          // like Transmitter::write: polls until it has a credit, then posts
  kPostSignaled,  // like kPost, with a Synchronizer, so that the operation is signaled
  kPostRefused,   // like kPost, but the queue pair refuses the request
  kTryPost,       // like kPost with FullQueue::kRefuse: does not wait for a credit
  kPoll,          // polls at most one completion
  kLeave,         // gives the lane's unspent credits back
};

// Deliberate mistakes. The search must find each of them.
enum class Mistake : uint8_t {
  kNone,
  kTagBeforePost,         // the tag is read before the operation is posted
  kTagOwnNumber,          // tag of a signaled operation: its own number - 1, without checking epoch
  kFlushNumberAfterPost,  // the flush number is taken after the operation was posted
  kFreeAtFlushNumber,     // a buffer is treated as free if tag <= flushed, instead of tag < flushed
  kFlushedByStore,        // `flushed` is overwritten, instead of raised to a maximum
  kCoversOneTooMany,      // the proof counts an operation that is posted later
  kCoversItselfOnly,  // the proof does not count the unsignaled operations before the signaled one
  kLastCreditUnsignaled,  // the last credit is spent unsignaled: due() is ignored
  kCreditsByStore,        // each compare-exchange stores without comparing
  kKeepsCreditOfRefusal,  // give_back() is not called after the queue pair refused the request
  kCountsOverAllLanes,    // the proof counts the operations of all lanes, not of its own lane
};

struct Instance {
  uint64_t depth = 1;
  std::vector<std::vector<Action>> programs;  // one per thread
  // Number of lanes from which the batch size is computed. 1 gives batches of several operations in
  // a small queue. The credits that the lanes hold unspent or uncovered must still stay below the
  // depth.
  uint64_t lanes_for_batch = 0;  // 0: the number of threads
  Mistake mistake = Mistake::kNone;
};

struct Exploration {
  uint64_t states = 0;
  double schedules = 0;   // number of interleavings, computed on the graph of states
  std::string violation;  // empty: no invariant was violated
};

// Explores all interleavings; stops at the first violation.
[[nodiscard]] Exploration explore(const Instance& instance);

}  // namespace cariama::testing

#endif  // CARIAMA_TESTS_DTUTILS_SIGNALING_INTERLEAVINGS_MODEL_H_
