// ChunkedRegistration of registration_cache.h.
#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

#include "dtutils/registration/registration_cache.h"

namespace cariama {

ChunkedRegistration::ChunkedRegistration(RegistrationCache& cache, const void* address,
                                         size_t bytes, size_t piece_bytes,
                                         const UseContext& context)
    : cache_(cache),
      position_(static_cast<const std::byte*>(address)),
      end_(position_ + bytes),
      piece_bytes_(piece_bytes == 0 ? bytes : piece_bytes),
      stack_(context.stack == nullptr ? std::optional<CallStack>{} : *context.stack),
      next_use_(context.next_use) {}

// Not inlined: the recorded call stack begins at the frame of this function, so that the frames of
// the library do not count.
[[gnu::noinline]] absl::StatusOr<ChunkedRegistration::Piece> ChunkedRegistration::next() {
  const size_t bytes = std::min(static_cast<size_t>(end_ - position_), piece_bytes_);
  // The older use ends first, so that never more than two pieces are in use.
  uses_[0].release();
  uses_[0] = std::move(uses_[1]);
  const bool transient = begun_++ >= uses_.size() && cache_.policy().records_uses();
  auto acquired = cache_.acquire(position_, bytes,
                                 {.stack = stack_.has_value() ? &*stack_ : nullptr,
                                  .next_use = next_use_,
                                  .transient = transient,
                                  .frame = __builtin_frame_address(0)});
  if (!acquired.ok()) return acquired.status();
  uses_[1] = *std::move(acquired);
  const Piece piece{&uses_[1].region(), position_, bytes, uses_[1].was_hit()};
  position_ += bytes;
  return piece;
}

}  // namespace cariama
