// Feeds the decoder of the set-up data that a process publishes when it joins a job.
//
// Bytes that it accepts must be equal to the encoding of the result.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "dsfabric/bootstrap/introduction.h"
#include "dsfabric/serializer.h"
#include "tests/fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cariama;            // NOLINT(google-build-using-namespace)
  using namespace cariama::internal;  // NOLINT(google-build-using-namespace)
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  try {
    require(encode(load_introduction(bytes)) == bytes);
  } catch (const MalformedArguments&) {
  }
  return 0;
}
