// Posted receives of a fault device, which may be delayed before they reach the inner queue.
#ifndef CARIAMA_DTUTILS_FAULT_FAULT_RECEIVES_H_
#define CARIAMA_DTUTILS_FAULT_FAULT_RECEIVES_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "dtutils/device.h"
#include "dtutils/fault/core.h"
#include "dtutils/internal/growing_ring.h"

namespace cariama::fault {

// One receive queue. Receives are posted to the inner queue in the order of posting, under ids of
// this class (kTag and a number). The tag distinguishes them from sends. The number selects the
// record that has the user's id.
class FaultReceives {
 public:
  static constexpr uint64_t kTag = uint64_t{1} << 63;
  using InnerPost = std::function<PostResult(const ReceiveRequest&)>;

  explicit FaultReceives(Core& core) : core_(core), dice_(core.make_dice()) {}

  // Accepts requests while fewer than `depth` are outstanding. `may_delay`: receives may be
  // delayed.
  PostResult post(std::span<const ReceiveRequest> requests, uint32_t depth, uint32_t max_segments,
                  bool may_delay);
  // Posts the receives that are due to the inner queue, or all receives if `at_once`. Returns the
  // user's ids of the receives that the inner queue refuses permanently.
  std::vector<uint64_t> forward(const InnerPost& inner_post, bool at_once);
  // Returns the user's id for the id of an inner completion and frees its slot. Returns an empty
  // optional if the id is unknown.
  [[nodiscard]] std::optional<uint64_t> take(uint64_t inner_id);
  // Removes the receives that are not in the inner queue yet. Returns the user's ids.
  std::vector<uint64_t> take_delayed();
  [[nodiscard]] bool busy() const { return forwarded_ < receives_.size(); }

 private:
  struct Receive {
    uint64_t id = 0;
    std::vector<Segment> segments;
    uint64_t release = 0;  // tick from which it may be posted
    bool done = false;
  };
  void drop_done();

  Core& core_;
  Dice dice_;
  uint64_t first_ = 0;    // number of receives_.front()
  size_t forwarded_ = 0;  // number of receives, from the front, that are in the inner queue or done
  uint32_t outstanding_ = 0;
  internal::GrowingRing<Receive> receives_;
};

class FaultSharedReceiveQueue final : public SharedReceiveQueue {
 public:
  FaultSharedReceiveQueue(std::shared_ptr<Core> core, std::shared_ptr<SharedReceiveQueue> inner,
                          const SharedReceiveQueueOptions& options);
  ~FaultSharedReceiveQueue() override;

  using SharedReceiveQueue::post_receive;
  PostResult post_receive(std::span<const ReceiveRequest> requests) override;
  uint32_t depth() const override { return options_.depth; }

  [[nodiscard]] const std::shared_ptr<Core>& core() const { return core_; }
  [[nodiscard]] const std::shared_ptr<SharedReceiveQueue>& inner() const { return inner_; }
  [[nodiscard]] FaultReceives& receives() { return receives_; }
  void forward();
  [[nodiscard]] bool busy() const { return receives_.busy(); }

 private:
  const std::shared_ptr<Core> core_;
  const std::shared_ptr<SharedReceiveQueue> inner_;
  const SharedReceiveQueueOptions options_;
  FaultReceives receives_;
};

}  // namespace cariama::fault

#endif  // CARIAMA_DTUTILS_FAULT_FAULT_RECEIVES_H_
