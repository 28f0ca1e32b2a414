#include "dtutils/verbs/completion_queue.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <mutex>
#include <string>

#include "dtutils/diagnostics.h"
#include "dtutils/error.h"
#include "dtutils/verbs/queue_pair.h"

namespace cariama::verbs {
namespace {

constexpr int kBatch = 32;

[[gnu::cold]] void report_broken_queue(const Context& context) {
  report_once("verbs.completion_queue", "a completion queue of " + context.description + " broke",
              "look at the kernel log; its queue pairs must be created again");
}

}  // namespace

absl::StatusOr<std::shared_ptr<VerbsCompletionQueue>> VerbsCompletionQueue::create(
    std::shared_ptr<const Context> context, const CompletionQueueOptions& options) {
  const uint32_t most = context->limits.max_completions;
  if (options.depth == 0 || options.depth > most) {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                      "a completion queue of depth " + std::to_string(options.depth) + " on " +
                          context->description,
                      "ask for 1 to " + std::to_string(most) + ", and use several queues");
  }
  std::shared_ptr<VerbsCompletionChannel> channel;
  if (options.channel != nullptr) {
    channel = std::dynamic_pointer_cast<VerbsCompletionChannel>(options.channel);
    if (channel == nullptr || channel->context() != context.get()) {
      return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                        "the completion channel is of another device",
                        "create it from the same domain");
    }
  }
  std::shared_ptr<VerbsCompletionQueue> queue(
      new VerbsCompletionQueue(std::move(context), std::move(channel)));
  const Context& device = *queue->context_;
  queue->handle_.reset(ibv_create_cq(device.handle.get(), static_cast<int>(options.depth),
                                     &queue->events_,
                                     queue->channel_ ? queue->channel_->handle() : nullptr, 0));
  if (queue->handle_ == nullptr) {
    return make_errno_error(errno, ErrorScope::kProcess,
                            "creating a completion queue of depth " +
                                std::to_string(options.depth) + " on " + device.description,
                            "raise ulimit -l if memory ran out");
  }
  return queue;
}

VerbsCompletionQueue::~VerbsCompletionQueue() {
  if (handle_ != nullptr && channel_ != nullptr) channel_->destroy(std::move(handle_), events_);
}

VerbsQueuePair* VerbsCompletionQueue::find(uint32_t number) {
  if (last_found_ != nullptr && last_found_->number() == number) return last_found_;
  const auto found = queue_pairs_.find(number);
  if (found == queue_pairs_.end()) return nullptr;
  return last_found_ = found->second;
}

size_t VerbsCompletionQueue::poll(std::span<Completion> completions) {
  const std::lock_guard lock(lock_);
  size_t count = 0;
  while (!gathered_.empty() && count < completions.size()) {
    // The queue pair exists, because remove() also removes its completions from gathered_.
    const Gathered& first = gathered_.front();
    if (first.queue_pair->deliver(first.work, completions[count])) ++count;
    gathered_.pop_front();
  }
  std::array<ibv_wc, kBatch> batch;
  while (count < completions.size()) {
    const int wanted = static_cast<int>(std::min<size_t>(kBatch, completions.size() - count));
    const int got = ibv_poll_cq(handle_.get(), wanted, batch.data());
    if (got < 0) report_broken_queue(*context_);
    for (int i = 0; i < got; ++i) {
      const ibv_wc& work = batch[static_cast<size_t>(i)];
      VerbsQueuePair* queue_pair = find(work.qp_num);
      if (queue_pair == nullptr) continue;
      queue_pair->observe(work);
      if (queue_pair->deliver(work, completions[count])) ++count;
    }
    if (got < wanted) break;
  }
  return count;
}

void VerbsCompletionQueue::gather() {
  const std::lock_guard lock(lock_);
  std::array<ibv_wc, kBatch> batch;
  int got = 0;
  while ((got = ibv_poll_cq(handle_.get(), kBatch, batch.data())) > 0) {
    for (int i = 0; i < got; ++i) {
      const ibv_wc& work = batch[static_cast<size_t>(i)];
      VerbsQueuePair* queue_pair = find(work.qp_num);
      if (queue_pair == nullptr) continue;
      queue_pair->observe(work);
      gathered_.push_back({queue_pair, work});
    }
  }
}

absl::Status VerbsCompletionQueue::arm(bool solicited_only) {
  if (channel_ == nullptr) {
    return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kOperation,
                      "arming a completion queue that has no channel",
                      "give create_completion_queue() one");
  }
  if (const int error = ibv_req_notify_cq(handle_.get(), solicited_only ? 1 : 0); error != 0) {
    return make_errno_error(error, ErrorScope::kProcess, "arming a completion queue");
  }
  return absl::OkStatus();
}

uint32_t VerbsCompletionQueue::depth() const {
  const std::lock_guard lock(lock_);
  return static_cast<uint32_t>(handle_->cqe);
}

absl::Status VerbsCompletionQueue::reserve(const void* source, uint32_t entries) {
  const std::lock_guard lock(lock_);
  Reservation& reservation = reservations_[source];
  if (reservation.users == 0) {
    const uint64_t needed = reserved_ + entries;
    if (needed > static_cast<uint64_t>(handle_->cqe)) {
      // Doubled, so that a queue used by many queue pairs is not resized for each of them.
      const uint64_t most = context_->limits.max_completions;
      const uint64_t goal =
          std::min(std::max(needed, 2 * static_cast<uint64_t>(handle_->cqe)), most);
      const int error =
          needed > most ? ENOMEM : ibv_resize_cq(handle_.get(), static_cast<int>(goal));
      if (error != 0) {
        reservations_.erase(source);
        return make_errno_error(ENOMEM, ErrorScope::kProcess,
                                "a completion queue of depth " + std::to_string(handle_->cqe) +
                                    " cannot hold the " + std::to_string(needed) +
                                    " completions that its queue pairs may have",
                                "create it with that depth (at most " + std::to_string(most) +
                                    "), or use several completion queues or smaller depths");
      }
    }
    reservation.entries = entries;
    reserved_ = needed;
  }
  ++reservation.users;
  return absl::OkStatus();
}

void VerbsCompletionQueue::release(const void* source) {
  const std::lock_guard lock(lock_);
  const auto found = reservations_.find(source);
  if (found == reservations_.end() || --found->second.users > 0) return;
  reserved_ -= found->second.entries;
  reservations_.erase(found);
}

void VerbsCompletionQueue::add(VerbsQueuePair* queue_pair) {
  const std::lock_guard lock(lock_);
  // A queue pair that is being destroyed may still be registered with the number, which the device
  // has given to the new one.
  queue_pairs_.insert_or_assign(queue_pair->number(), queue_pair);
  last_found_ = nullptr;
}

void VerbsCompletionQueue::remove(VerbsQueuePair* queue_pair) {
  gather();
  const std::lock_guard lock(lock_);
  std::erase_if(gathered_, [&](const Gathered& one) {
    if (one.queue_pair != queue_pair) return false;
    queue_pair->drop(one.work);
    return true;
  });
  const auto found = queue_pairs_.find(queue_pair->number());
  if (found != queue_pairs_.end() && found->second == queue_pair) queue_pairs_.erase(found);
  if (last_found_ == queue_pair) last_found_ = nullptr;
}

}  // namespace cariama::verbs
