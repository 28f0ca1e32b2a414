// A completion channel over verbs: a verbs completion channel, with an additional eventfd for
// wake().
#ifndef CARIAMA_DTUTILS_VERBS_COMPLETION_CHANNEL_H_
#define CARIAMA_DTUTILS_VERBS_COMPLETION_CHANNEL_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>

#include "absl/status/statusor.h"
#include "dtutils/device.h"
#include "dtutils/verbs/context.h"
#include "dtutils/verbs/handles.h"

namespace cariama::verbs {

// Counts the events of one completion queue that were read from the channel and are not
// acknowledged yet. libibverbs stores its address as the queue's context. Guarded by the channel's
// mutex.
struct EventAccount {
  uint32_t unacknowledged = 0;
};

class VerbsCompletionChannel final : public CompletionChannel {
 public:
  [[nodiscard]] static absl::StatusOr<std::shared_ptr<VerbsCompletionChannel>> create(
      std::shared_ptr<const Context> context);
  ~VerbsCompletionChannel() override;

  [[nodiscard]] bool wait(std::chrono::nanoseconds timeout) override;
  void wake() override;

  [[nodiscard]] const Context* context() const { return context_.get(); }
  [[nodiscard]] ibv_comp_channel* handle() const { return handle_.get(); }

  // Destroys a queue of this channel. ibv_destroy_cq waits until every event that was read has been
  // acknowledged. So this function acknowledges the remaining events, with the mutex locked, so
  // that no further event is read in between.
  void destroy(CompletionQueueHandle queue, EventAccount& account);

 private:
  VerbsCompletionChannel(std::shared_ptr<const Context> context, ChannelHandle handle, int wake_fd)
      : context_(std::move(context)), handle_(std::move(handle)), wake_fd_(wake_fd) {}

  // Reads all pending events. Returns true if there was one.
  bool take_events();

  const std::shared_ptr<const Context> context_;
  const ChannelHandle handle_;
  const int wake_fd_;
  std::mutex mutex_;  // locked while events are read and counted, never while sleeping
};

}  // namespace cariama::verbs

#endif  // CARIAMA_DTUTILS_VERBS_COMPLETION_CHANNEL_H_
