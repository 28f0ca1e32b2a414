// How the exception of a stolen task travels: in the payload of the task's cell.
#ifndef CARIAMA_TASKS_POOL_FAILURE_H_
#define CARIAMA_TASKS_POOL_FAILURE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace cariama::tasks {

// The forms in which a payload describes an exception. The text is cut to the remaining bytes.
enum class FailureForm : uint8_t {
  kNamed,   // TYPE '\0' TEXT
  kHashed,  // 8 bytes, the hash of a registered type (exceptions.h), then TEXT
};

struct PackedFailure {
  FailureForm form;
  size_t bytes;
};
// Writes the exception of type `type` (a mangled name) with this text to `payload`.
[[nodiscard]] PackedFailure pack_failure(const std::string& type, const std::string& text,
                                         std::span<std::byte> payload);
// Throws the exception that `payload` describes (throw_described()).
[[noreturn]] void throw_packed(FailureForm form, std::span<const std::byte> payload);

}  // namespace cariama::tasks

#endif  // CARIAMA_TASKS_POOL_FAILURE_H_
