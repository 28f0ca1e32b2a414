// Names of functions for the messages of TaskOptions::check_closures and check_frames.
#ifndef CARIAMA_TASKS_INTERNAL_FUNCTION_NAME_H_
#define CARIAMA_TASKS_INTERNAL_FUNCTION_NAME_H_

#include <cstdint>
#include <string>

namespace cariama::tasks {

// Returns the name of the function that contains the call before the return address `code`, without
// template arguments and parameters: "(anonymous namespace)::search()". Inlined functions have the
// name of the function that contains them. Returns "the function at 0x55..." if the program has no
// symbols.
[[nodiscard]] std::string function_at(uint64_t code);

}  // namespace cariama::tasks

#endif  // CARIAMA_TASKS_INTERNAL_FUNCTION_NAME_H_
