// Cells of a pool that peers have written and that a worker refuses.
#include "tasks/pool/cells.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <optional>

namespace cariama::tasks {
namespace {

constexpr uint64_t kShared = 100;
constexpr int kWorkers = 3;

std::unique_ptr<TransferCell> transfer_of(uint64_t count) {
  auto transfer = std::make_unique<TransferCell>();
  transfer->count = count;
  for (Parcel& parcel : transfer->parcels) {
    parcel.bytes = pool::kPayloadBytes;
    parcel.origin = Origin{kWorkers - 1, kShared - 1}.word();
  }
  return transfer;
}

TEST(PoolCells, MoreTasksThanTheThiefHasRoomForAreRefused) {
  for (const uint64_t most : {uint64_t{1}, uint64_t{4}, uint64_t{kMostParcels}}) {
    for (uint64_t count = 0; count <= most; ++count) {
      EXPECT_EQ(tasks_in(*transfer_of(count), most, kShared, kWorkers), count);
    }
    for (const uint64_t count : {most + 1, uint64_t{kMostParcels} + 1, UINT64_MAX}) {
      EXPECT_EQ(tasks_in(*transfer_of(count), most, kShared, kWorkers), std::nullopt) << count;
    }
  }
}

TEST(PoolCells, TasksThatFitIntoNoCellAreRefused) {
  const auto transfer = transfer_of(2);
  const auto tasks = [&] { return tasks_in(*transfer, 4, kShared, kWorkers); };
  Parcel& last = transfer->parcels[1];
  const Parcel good = last;
  last.bytes = pool::kPayloadBytes + 1;
  EXPECT_EQ(tasks(), std::nullopt);
  last = good;
  last.origin = Origin{kWorkers, 0}.word();
  EXPECT_EQ(tasks(), std::nullopt) << "a rank of no worker";
  last.origin = Origin{0, kShared}.word();
  EXPECT_EQ(tasks(), std::nullopt) << "a private cell";
  last = good;
  EXPECT_EQ(tasks(), 2u);
}

TEST(PoolCells, RequestIdsNameAnotherWorker) {
  EXPECT_TRUE(names_a_thief(request_id_of(2, 5), 1, kWorkers));
  EXPECT_FALSE(names_a_thief(request_id_of(1, 5), 1, kWorkers)) << "the worker itself";
  EXPECT_FALSE(names_a_thief(request_id_of(3, 5), 1, kWorkers));
  EXPECT_FALSE(names_a_thief(UINT64_MAX, 1, kWorkers));
}

TEST(PoolCells, EndsOfTasksHaveAtMostThePayload) {
  const auto end = [](uint64_t kind, uint64_t bytes) {
    return EndOfTask::decode(kind | bytes << kStateBits);
  };
  EXPECT_EQ(end(kDone, 8).bytes, 8u);
  EXPECT_FALSE(end(kDone, 8).has_failed());
  EXPECT_TRUE(end(kFailedNamed, 96).has_failed());
  EXPECT_EQ(end(kFailedHashed, 97).bytes, pool::kPayloadBytes);
  EXPECT_EQ(EndOfTask::decode(UINT64_MAX).bytes, pool::kPayloadBytes);
  EXPECT_FALSE(EndOfTask::decode(UINT64_MAX).has_failed());
}

}  // namespace
}  // namespace cariama::tasks
