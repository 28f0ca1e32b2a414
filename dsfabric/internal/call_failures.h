// The errors that all paths of calls report in the same words, for the sources of this layer and of
// the layers above.
#ifndef CARIAMA_DSFABRIC_INTERNAL_CALL_FAILURES_H_
#define CARIAMA_DSFABRIC_INTERNAL_CALL_FAILURES_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "dsfabric/export.h"
#include "dsfabric/ids.h"
#include "dtutils/memory.h"

namespace cariama::internal {

// Returns "TYPE: TEXT" of an exception, or the type alone if there is no text.
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT std::string describe_exception(const std::string& type,
                                                                     const std::string& text);
// Returns the description of the exception that is being handled, which may have any type.
[[nodiscard]] std::string describe_exception();
// Returns the error of a result whose loading threw the exception that is being handled.
[[nodiscard]] absl::Status unreadable_result();

// Returns the error of a call with Retry whose destination `label` has made no room for it in time.
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT absl::Status no_room_in_time(const std::string& label);

// Returns OK if process `rank` may write `size` bytes to `target`, which a caller gave: `target` is
// memory of that process, and is long enough. Error: INVALID_ARGUMENT.
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT absl::Status check_target(Rank rank,
                                                                const RemoteMemoryLocator& target,
                                                                uint64_t size);

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_INTERNAL_CALL_FAILURES_H_
