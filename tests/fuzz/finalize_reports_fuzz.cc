// Feeds what processes put for the rounds of finalize() to the process that combines it, and its
// result to the others. The input is the bytes of each process.
//
// Bytes that are accepted are equal to their encoding. The result of accepted reports excludes the
// processes without a report and none that has lost no other and that no other has lost. Its ranks
// are ascending, so that the other processes accept it.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dsfabric/fabric/participation.h"
#include "dsfabric/serializer.h"
#include "tests/fuzz/fuzz_input.h"

namespace cariama::internal {
namespace {

// Returns what `bytes` contain, or nullopt if they are refused.
template <typename Put>
std::optional<Put> load(std::string_view bytes, uint32_t processes) {
  try {
    auto put = load_participation<Put>(std::as_bytes(std::span(bytes)), processes);
    std::string again;
    save_value(again, put);
    require(again == bytes);
    return put;
  } catch (const MalformedArguments&) {
    return std::nullopt;
  }
}

// Returns a report that an honest process could put, or one with a few impossible ranks.
std::string take_report(FuzzInput& input, uint32_t processes) {
  ParticipationReport report{input.take<uint64_t>(), input.take<uint64_t>(), {}, {}};
  for (std::vector<uint32_t>* ranks : {&report.lost, &report.lost_before}) {
    const auto mask = input.take<uint16_t>();
    for (uint32_t rank = 0; rank < 16; ++rank) {
      if ((mask >> rank & 1) != 0 && rank < processes + 1) ranks->push_back(rank);
    }
  }
  std::string bytes;
  save_value(bytes, report);
  return bytes;
}

}  // namespace
}  // namespace cariama::internal

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cariama;            // NOLINT(google-build-using-namespace)
  using namespace cariama::internal;  // NOLINT(google-build-using-namespace)
  FuzzInput input(data, size);
  const uint32_t processes = 1 + input.take<uint8_t>() % 12;
  std::vector<std::optional<ParticipationReport>> said(processes);
  std::vector<bool> lost(processes);
  for (uint32_t rank = 0; rank < processes; ++rank) {
    switch (input.take<uint8_t>() % 3) {
      case 0:
        said[rank] = load<ParticipationReport>(take_report(input, processes), processes);
        break;
      case 1:
        said[rank] = load<ParticipationReport>(input.take_bytes(input.take<uint8_t>()), processes);
        break;
      default:
        break;  // the process has ended
    }
    if (!said[rank]) continue;
    for (const uint32_t other : said[rank]->lost_before) {
      require(other < processes);
      lost[rank] = lost[rank] || other != rank;
      lost[other] = lost[other] || other != rank;
    }
  }
  const ParticipationResult result = combine_reports(said);
  require(!result.first_impossible(processes).has_value());
  for (uint32_t rank = 0; rank < processes; ++rank) {
    const bool excluded = std::binary_search(result.without.begin(), result.without.end(), rank);
    require(excluded || said[rank].has_value());
    require(!excluded || !said[rank].has_value() || lost[rank]);
  }
  std::string bytes;
  save_value(bytes, result);
  require(load<ParticipationResult>(bytes, processes).has_value());
  // A result of a misbehaving process.
  static_cast<void>(load<ParticipationResult>(input.take_bytes(size), processes));
  return 0;
}
