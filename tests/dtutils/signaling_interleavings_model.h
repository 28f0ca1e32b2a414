// All interleavings of a few threads that run the real Signaling code against a model of the
// device.
//
// Every access to a shared variable, and every call of the device, is a step. A thread between two
// steps is plain data: its lane, where it is in its program, and what the accesses of its current
// action returned. To make a step, the action is executed again from its beginning with these
// results, goes on through one new access, and is abandoned by an exception at the next one. So the
// whole system is a value that can be copied and hashed, and a depth-first search that remembers
// the states it has seen goes through every interleaving (of sequentially consistent accesses;
// weaker orders are the business of signaling_stress_test.cc and of the proof).
//
// The device is the laziest that the contract allows: it is done with an operation when the
// completion that covers it is polled, no sooner. That is the worst case for whoever believes too
// early that a buffer or a slot is free.
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

// What a thread does, in turn.
enum class Action : uint8_t {
  kPost,          // as Transmitter::write: waits for a credit, polling
  kPostSignaled,  // ... with a Synchronizer
  kPostRefused,   // ... and the queue pair refuses the request
  kTryPost,       // as with FullQueue::kRefuse
  kPoll,          // polls at most one completion
  kLeave,         // gives the lane back
};

// Deliberate mistakes: the search must find each of them.
enum class Mistake : uint8_t {
  kNone,
  kTagBeforePost,
  kTagOwnNumber,  // a signaled operation's own number - 1, without looking at epoch
  kFlushNumberAfterPost,
  kFreeAtFlushNumber,     // tag <= flushed
  kFlushedByStore,        // instead of raising a maximum
  kCoversOneTooMany,      // the proof counts an operation that is posted later
  kCoversItselfOnly,      // ... or forgets the unsignaled ones before it
  kLastCreditUnsignaled,  // `due` is not looked at
  kCreditsByStore,        // instead of by compare-exchange
  kKeepsCreditOfRefusal,  // no give_back()
  kCountsOverAllLanes,    // the proof sums what all lanes have counted, instead of its lane's
};

struct Instance {
  uint64_t depth = 1;
  std::vector<std::vector<Action>> programs;  // one per thread
  // Lanes that the batch size is computed for. 1 makes batches of several operations in a small
  // queue; what the lanes keep loose must stay below the depth all the same.
  uint64_t lanes_for_batch = 0;  // 0: as many as there are threads
  Mistake mistake = Mistake::kNone;
};

struct Exploration {
  uint64_t states = 0;
  double schedules = 0;   // interleavings, counted over the graph of states
  std::string violation;  // empty: none
};

// Goes through all interleavings, up to the first violation.
[[nodiscard]] Exploration explore(const Instance& instance);

}  // namespace cariama::testing

#endif  // CARIAMA_TESTS_DTUTILS_SIGNALING_INTERLEAVINGS_MODEL_H_
