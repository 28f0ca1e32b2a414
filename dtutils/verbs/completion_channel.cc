#include "dtutils/verbs/completion_channel.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "dtutils/error.h"

namespace cariama::verbs {
namespace {

// Acknowledging takes a mutex inside libibverbs, so one call acknowledges many events
// (ibv_get_cq_event(3)).
constexpr uint32_t kAcknowledgeAt = 64;

}  // namespace

absl::StatusOr<std::shared_ptr<VerbsCompletionChannel>> VerbsCompletionChannel::create(
    std::shared_ptr<const Context> context) {
  ChannelHandle handle(ibv_create_comp_channel(context->handle.get()));
  if (handle == nullptr) {
    return make_errno_error(errno, ErrorScope::kProcess,
                            "creating a completion channel on " + context->description,
                            "raise ulimit -n if descriptors ran out");
  }
  const int flags = fcntl(handle->fd, F_GETFL);
  if (flags < 0 || fcntl(handle->fd, F_SETFL, flags | O_NONBLOCK) < 0) {
    return make_errno_error(errno, ErrorScope::kProcess, "preparing a completion channel");
  }
  const int wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_fd < 0) {
    return make_errno_error(errno, ErrorScope::kProcess, "creating an eventfd",
                            "raise ulimit -n if descriptors ran out");
  }
  return std::shared_ptr<VerbsCompletionChannel>(
      new VerbsCompletionChannel(std::move(context), std::move(handle), wake_fd));
}

VerbsCompletionChannel::~VerbsCompletionChannel() { close(wake_fd_); }

bool VerbsCompletionChannel::wait(std::chrono::nanoseconds timeout) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  for (;;) {
    const auto left = std::max(timeout - (Clock::now() - start), std::chrono::nanoseconds(0));
    const timespec limit{.tv_sec = static_cast<time_t>(left.count() / 1'000'000'000),
                         .tv_nsec = static_cast<long>(left.count() % 1'000'000'000)};
    pollfd descriptors[] = {{.fd = handle_->fd, .events = POLLIN, .revents = 0},
                            {.fd = wake_fd_, .events = POLLIN, .revents = 0}};
    const int ready = ppoll(descriptors, 2, &limit, nullptr);
    if (ready < 0 && errno != EINTR) return true;  // let the caller poll; it may find nothing new
    if (ready > 0) {
      bool woken = false;
      if (descriptors[1].revents != 0) {
        uint64_t count = 0;
        woken = read(wake_fd_, &count, sizeof(count)) == sizeof(count);
      }
      if (descriptors[0].revents != 0) woken |= take_events();
      if (woken) return true;
      // The channel was readable without an event if the event's queue was destroyed meanwhile.
    }
    if (left.count() == 0) return false;
  }
}

void VerbsCompletionChannel::wake() {
  // Async-signal-safe. write() fails only if the counter is at its limit, and then a wake-up is
  // already pending.
  const int saved = errno;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_fd_, &one, sizeof(one));
  errno = saved;
}

bool VerbsCompletionChannel::take_events() {
  const std::lock_guard lock(mutex_);
  bool any = false;
  ibv_cq* queue = nullptr;
  void* user = nullptr;
  while (ibv_get_cq_event(handle_.get(), &queue, &user) == 0) {
    any = true;
    auto* account = static_cast<EventAccount*>(user);
    if (++account->unacknowledged >= kAcknowledgeAt) {
      ibv_ack_cq_events(queue, std::exchange(account->unacknowledged, 0));
    }
  }
  return any;
}

void VerbsCompletionChannel::destroy(CompletionQueueHandle queue, EventAccount& account) {
  const std::lock_guard lock(mutex_);
  if (account.unacknowledged > 0) {
    ibv_ack_cq_events(queue.get(), std::exchange(account.unacknowledged, 0));
  }
  queue.reset();
}

}  // namespace cariama::verbs
