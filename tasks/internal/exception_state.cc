#include "tasks/internal/exception_state.h"

#include <cxxabi.h>
#include <unwind.h>

#include <typeinfo>

namespace cariama::tasks {
namespace {

// The header in front of each thrown object (Itanium C++ ABI, 2.2.1), in the layout of libstdc++.
struct ThrownHeader {
  const std::type_info* type;
  void (*destructor)(void*);
  void (*unexpected)();
  void (*terminate)();
  ThrownHeader* next;  // the next older exception that is being handled
  int handlers;
  int handler_switch;
  const unsigned char* action;
  const unsigned char* language_data;
  _Unwind_Ptr catch_temp;
  void* adjusted;
  _Unwind_Exception unwind;  // private_2: the stack pointer of the frame that caught it
};

}  // namespace

[[gnu::noinline]] ExceptionState& exception_state() {
  return *reinterpret_cast<ExceptionState*>(abi::__cxa_get_globals());
}

bool has_exceptions_below(const ExceptionState& state, uint64_t boundary) {
  const auto* newest = static_cast<const ThrownHeader*>(state.handled);
  return state.uncaught != 0 || (newest != nullptr && newest->unwind.private_2 < boundary);
}

ExceptionState split_exceptions(ExceptionState& state, uint64_t boundary) {
  ExceptionState lower = state;
  state.uncaught = 0;
  ThrownHeader* last = nullptr;
  auto* header = static_cast<ThrownHeader*>(state.handled);
  for (; header != nullptr && header->unwind.private_2 < boundary; header = header->next) {
    last = header;
  }
  state.handled = header;
  if (last == nullptr) {
    lower.handled = nullptr;
  } else {
    last->next = nullptr;
  }
  return lower;
}

void join_exceptions(ExceptionState& state, const ExceptionState& upper) {
  state.uncaught += upper.uncaught;
  if (upper.handled == nullptr) return;
  auto* last = static_cast<ThrownHeader*>(upper.handled);
  while (last->next != nullptr) last = last->next;
  last->next = static_cast<ThrownHeader*>(state.handled);
  state.handled = upper.handled;
}

}  // namespace cariama::tasks
