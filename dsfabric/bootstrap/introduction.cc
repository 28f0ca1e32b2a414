#include "dsfabric/bootstrap/introduction.h"

#include <array>
#include <cstddef>
#include <span>

#include "dsfabric/serializer.h"

namespace cariama::internal {

std::string encode(const Introduction& introduction) {
  std::string out;
  save_value(out, introduction.program);
  save_value(out, std::array<uint32_t, 5>{introduction.threads, introduction.queue_pairs,
                                          introduction.lease, introduction.pid,
                                          introduction.busy_threads});
  save_value(out, introduction.board);
  save_value(out, introduction.cpus);
  save_value(out, introduction.host);
  save_value(out, introduction.host_identity);
  return out;
}

Introduction load_introduction(std::string_view bytes) {
  auto in = std::as_bytes(std::span(bytes));
  Introduction introduction;
  introduction.program = load_value<ProgramFingerprint>(in);
  const auto numbers = load_value<std::array<uint32_t, 5>>(in);
  introduction.threads = numbers[0];
  introduction.queue_pairs = numbers[1];
  introduction.lease = numbers[2];
  introduction.pid = numbers[3];
  introduction.busy_threads = numbers[4];
  introduction.board = load_value<int32_t>(in);
  introduction.cpus = load_value<std::vector<uint64_t>>(in);
  introduction.host = load_value<std::string>(in);
  introduction.host_identity = load_value<std::string>(in);
  if (!in.empty()) throw MalformedArguments("bytes follow the set-up data of a process");
  return introduction;
}

}  // namespace cariama::internal
