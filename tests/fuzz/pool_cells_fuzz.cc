// The cells of a task pool that peers write: requests of thieves, tasks that a victim hands over,
// and the ends of stolen tasks, with results and exceptions.
//
// A request id that passes the check names another worker. A task that passes the check fits into a
// cell of the thief's deque, and can be handed on. The end of a task yields at most the bytes of a
// payload, or an exception.
//
// Longest input: 1024 bytes.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "tasks/exceptions.h"
#include "tasks/pool/cells.h"
#include "tasks/pool/failure.h"
#include "tests/fuzz/fuzz_input.h"

namespace cariama::tasks {
namespace {

using pool::kPayloadBytes;

constexpr uint64_t kSharedCells = 256;

void take_request(FuzzInput& input) {
  const int workers = 2 + input.take<uint16_t>() % 3000;
  const int rank = input.take<uint16_t>() % workers;
  const auto request_id = input.take<uint64_t>();
  if (names_a_thief(request_id, rank, workers)) {
    const int thief = rank_of_request(request_id);
    require(thief >= 0 && thief < workers && thief != rank);
    require(request_id_of(thief, request_id >> kThiefBits) == request_id);
  }
  const int thief = input.take<uint16_t>() % workers;
  const uint64_t honest = request_id_of(thief, 1 + input.take<uint16_t>());
  require(names_a_thief(honest, rank, workers) == (thief != rank));
}

// As a thief: takes the tasks of a transfer cell into its deque, and hands them on.
void take_tasks(FuzzInput& input) {
  const auto choice = input.take<uint8_t>();
  const int workers = 2 + choice % 8;
  const uint64_t most = 1 + input.take<uint8_t>() % kMostParcels;
  const auto transfer = std::make_unique<TransferCell>();
  transfer->count =
      (choice & 128) != 0 ? input.take<uint64_t>() : input.take<uint8_t>() % (most + 1);
  bool honest = transfer->count <= most;
  for (uint64_t i = 0; i < std::min<uint64_t>(transfer->count, kMostParcels); ++i) {
    Parcel& parcel = transfer->parcels[i];
    const auto kind = input.take<uint8_t>();
    parcel.function = 1 + kind / 16;
    parcel.bytes = input.take<uint8_t>() % (kPayloadBytes + 1);
    parcel.origin = Origin{static_cast<uint32_t>(kind % workers), input.take<uint8_t>()}.word();
    if (kind % 8 == 7) {
      honest = false;
      if ((kind & 16) != 0) parcel.bytes = input.take<uint32_t>();
      if ((kind & 32) != 0) parcel.origin = input.take<uint64_t>();
    }
    std::memset(parcel.payload, kind, sizeof parcel.payload);
  }
  const auto count = tasks_in(*transfer, most, kSharedCells, workers);
  if (!count.has_value()) return require(!honest);
  require(*count == transfer->count && *count <= most);
  const auto deque = std::make_unique<pool::internal::Cell[]>(most);
  for (uint64_t i = 0; i < *count; ++i) {
    const Parcel& parcel = transfer->parcels[i];
    ForeignTask::store(deque[i], parcel, 1);
    std::memcpy(deque[i].payload, parcel.payload, sizeof parcel.payload);
    // A peer that reports to a wrong cell.
    const auto other = input.take<uint8_t>();
    if (other % 8 == 7) deque[i].state.store(input.take<uint64_t>());
    require(ForeignTask::is_in(deque[i]));
    const ForeignTask task = ForeignTask::load(deque[i]);
    require(other % 8 == 7 || (task.function == parcel.function && task.bytes == parcel.bytes));
    Parcel handed_on{task.function, task.bytes, deque[i].origin, {}};
    if (!is_possible(handed_on, kSharedCells, workers)) {
      require(other % 8 == 7);
      continue;
    }
    std::memcpy(handed_on.payload, deque[i].payload, handed_on.bytes);
    const Origin origin = Origin::of(handed_on.origin);
    require(origin.index < kSharedCells && origin.rank < static_cast<uint32_t>(workers));
  }
}

// As the owner: takes the end of a stolen task from its cell.
void take_end(FuzzInput& input) {
  const auto choice = input.take<uint8_t>();
  const uint64_t word = (choice & 128) != 0 ? input.take<uint64_t>()
                                            : uint64_t{1} + choice % 3 +
                                                  (uint64_t{input.take<uint8_t>()} << kStateBits);
  const std::string_view bytes = input.take_bytes(kPayloadBytes);
  const auto payload = std::make_unique<std::array<std::byte, kPayloadBytes>>();
  std::memcpy(payload->data(), bytes.data(), bytes.size());
  const EndOfTask end = EndOfTask::decode(word);
  require(end.bytes <= kPayloadBytes && end.kind < 256);
  if (!end.has_failed()) return;
  try {
    throw_packed(end.kind == kFailedNamed ? FailureForm::kNamed : FailureForm::kHashed,
                 std::span(*payload).first(end.bytes));
  } catch (const std::exception& error) {
    require(error.what() != nullptr);
    return;
  }
  require(false);
}

// An exception with any text arrives with its type, and with the part of its text that fits.
void pack_and_throw(FuzzInput& input) {
  static const std::array<std::string, 4> kTypes{
      typeid(std::out_of_range).name(), typeid(std::runtime_error).name(),
      "N7cariama5tasks12_GLOBAL__N_143AnExceptionWithANameThatLeavesNoRoomForTextE",
      "N7cariama21AnExceptionOfAProgramE"};
  const auto choice = input.take<uint8_t>();
  std::string type((choice & 4) != 0 ? input.take_bytes(choice / 8)
                                     : std::string_view(kTypes[choice % 4]));
  type = type.substr(0, type.find('\0'));  // names of types contain no zero
  const std::string text(input.take_bytes(200));
  std::array<std::byte, kPayloadBytes> payload;
  const PackedFailure packed = pack_failure(type, text, payload);
  require(packed.bytes <= payload.size());
  try {
    throw_packed(packed.form, std::span(payload).first(packed.bytes));
  } catch (const std::out_of_range& error) {
    require(type == kTypes[0] && text.starts_with(error.what()));
  } catch (const std::runtime_error& error) {
    require(error.what() != nullptr);
  } catch (const std::exception&) {
    require((choice & 4) != 0);  // the input names another registered type
  }
}

}  // namespace
}  // namespace cariama::tasks

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cariama::tasks;  // NOLINT
  cariama::FuzzInput input(data, size);
  while (!input.empty()) {
    switch (input.take<uint8_t>() % 4) {
      case 0:
        take_request(input);
        break;
      case 1:
        take_tasks(input);
        break;
      case 2:
        take_end(input);
        break;
      default:
        pack_and_throw(input);
    }
  }
  return 0;
}
