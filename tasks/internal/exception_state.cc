#include "tasks/internal/exception_state.h"

#include <cxxabi.h>

namespace cariama::tasks {

[[gnu::noinline]] ExceptionState& exception_state() {
  return *reinterpret_cast<ExceptionState*>(abi::__cxa_get_globals());
}

}  // namespace cariama::tasks
