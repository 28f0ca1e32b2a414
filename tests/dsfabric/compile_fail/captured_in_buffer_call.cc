// error: cariama: this function captures something that is not trivially copyable; pass it as an
// argument of call() instead of capturing it
#include <cstdint>
#include <span>
#include <vector>

#include "dsfabric/call_encoding.h"

auto example(const std::vector<int>& values, std::span<const std::byte> buffer) {
#ifdef CARIAMA_MUST_NOT_COMPILE
  return cariama::make_buffer_call([values](void*, uint64_t) {}, buffer).bytes();
#else
  return cariama::make_buffer_call([count = values.size()](void*, uint64_t) {}, buffer).bytes();
#endif
}
