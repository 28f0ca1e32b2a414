// The set-up data that every process of a job publishes for all others when it joins the job.
#ifndef CARIAMA_DSFABRIC_BOOTSTRAP_INTRODUCTION_H_
#define CARIAMA_DSFABRIC_BOOTSTRAP_INTRODUCTION_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dsfabric/function_table.h"

namespace cariama::internal {

struct Introduction {
  ProgramFingerprint program{};
  uint32_t threads = 0;
  uint32_t queue_pairs = 0;
  uint32_t lease = 0;  // milliseconds
  uint32_t pid = 0;
  int32_t board = -1;  // HostBoard::Offer::descriptor
  uint32_t busy_threads = 0;
  std::vector<uint64_t> cpus{};
  std::string host{};
  std::string host_identity{};
};

[[nodiscard]] std::string encode(const Introduction& introduction);
// Accepts only what encode() returns. Throws MalformedArguments (dsfabric/serializer.h).
[[nodiscard]] Introduction load_introduction(std::string_view bytes);

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_BOOTSTRAP_INTRODUCTION_H_
