#include "bench/support/transfer_load.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>

#include "bench/support/summary.h"
#include "dtutils/completion.h"
#include "dtutils/error.h"
#include "dtutils/wait.h"

namespace cariama::bench {
namespace {

using Clock = std::chrono::steady_clock;

// A barrier at which the threads of a load start together.
class Gate {
 public:
  explicit Gate(uint32_t threads) : missing_(threads) {}

  [[gnu::noinline]] void wait() {
    if (missing_.fetch_sub(1) == 1) {
      start_ = Clock::now();
      open_.store(true, std::memory_order_release);
      return;
    }
    static_cast<void>(
        wait_until([this] { return open_.load(std::memory_order_acquire); }, kForever));
  }
  [[nodiscard]] Clock::time_point start() const { return start_; }

 private:
  std::atomic<uint32_t> missing_;
  std::atomic<bool> open_{false};
  Clock::time_point start_;
};

// The offsets of a window's slots, one after the other.
class Slots {
 public:
  explicit Slots(const Window& window) : stride_(window.stride), end_(window.bytes) {}
  uint64_t next() {
    const uint64_t offset = next_;
    next_ += stride_;
    if (next_ == end_) next_ = 0;
    return offset;
  }

 private:
  const uint64_t stride_;
  const uint64_t end_;
  uint64_t next_ = 0;
};

bool is_atomic(Operation operation) {
  return operation == Operation::kFetchAdd || operation == Operation::kCompareSwap;
}

// The measured loops are separate functions that have their data by value: inside a larger function
// the compiler would run out of registers, and the loops would measure the spills.

// Calls transfer(offset) for each message, once all threads are ready.
template <typename Transfer>
[[gnu::noinline]] void transfer_all(const Load& load, Gate& gate, Transfer transfer) {
  Slots slots(load.window);
  const uint64_t messages = load.messages;
  gate.wait();
  for (uint64_t i = 0; i < messages; ++i) transfer(slots.next());
}

// Calls transfer(offset), which may fail, for each message, once all threads are ready.
template <typename Transfer>
[[gnu::noinline]] absl::Status post_all(const Load& load, Gate& gate, Transfer transfer) {
  Slots slots(load.window);
  const uint64_t messages = load.messages;
  gate.wait();
  for (uint64_t i = 0; i < messages; ++i) {
    if (absl::Status status = transfer(slots.next(), nullptr); !status.ok()) [[unlikely]] {
      return status;
    }
  }
  return absl::OkStatus();
}

// ---- ceiling -----------------------------------------------------------------------------------

// Calls loop(transfer), where transfer(offset) is the simplest code for the operation on the mapped
// memory of the peer: this thread's window, and a counter in the cache line behind it.
template <typename Loop>
void ceiling(Side& side, const Load& load, uint32_t thread, Loop&& loop) {
  const RemoteMemoryLocator remote = side.remote(thread);
  std::byte* const there = side.manual_queue().direct_access(remote);
  std::byte* const here = side.handle(thread).get_buffer();
  const uint64_t size = load.window.size;
  const std::atomic_ref<uint64_t> counter(
      *reinterpret_cast<uint64_t*>(there + remote.length - sizeof(uint64_t) * 8));
  const std::atomic_ref<uint64_t> word(*reinterpret_cast<uint64_t*>(there));
  uint64_t count = 0;
  switch (load.operation) {
    case Operation::kWrite:
      return loop([there, here, size, counter, count](uint64_t offset) mutable {
        std::memcpy(there + offset, here + offset, size);
        counter.store(++count, std::memory_order_release);
      });
    case Operation::kRead:
      return loop([there, here, size, counter, &count](uint64_t offset) {
        count += counter.load(std::memory_order_acquire);
        std::memcpy(here + offset, there + offset, size);
      });
    case Operation::kFetchAdd:
      return loop([word, &count](uint64_t) { count += word.fetch_add(1); });
    case Operation::kCompareSwap:
      return loop([word, count](uint64_t) mutable {
        uint64_t expected = count;
        if (word.compare_exchange_strong(expected, count + 1)) ++count;
      });
    case Operation::kSend:
      return;
  }
}

// ---- manual ------------------------------------------------------------------------------------

// One thread's accounting of its operations on a shared queue pair.
struct alignas(64) ManualLane {
  std::atomic<uint64_t> retired{0};  // advanced by the thread that polls the lane's completions
};

Opcode opcode_of(Operation operation) {
  switch (operation) {
    case Operation::kWrite:
      return Opcode::kWrite;
    case Operation::kRead:
      return Opcode::kRead;
    case Operation::kSend:
      return Opcode::kSend;
    case Operation::kFetchAdd:
      return Opcode::kFetchAdd;
    case Operation::kCompareSwap:
      break;
  }
  return Opcode::kCompareSwap;
}

class ManualThread {
 public:
  static constexpr uint32_t kMaxList = 64;

  // Each thread uses its share of the queue and signals one operation per quarter of the share: the
  // first quarter has completed before the last one is posted.
  ManualThread(Side& side, const Load& load, std::vector<ManualLane>& lanes, uint32_t thread)
      : queue_pair_(side.manual_queue()),
        completions_(side.manual_completions()),
        lanes_(lanes),
        thread_(thread),
        share_(std::max(1U, queue_pair_.limits().send_depth / load.threads)),
        interval_(std::max(1U, share_ / 4)),
        list_(std::min({load.list, kMaxList, interval_})),
        local_(side.handle(thread).get_buffer()),
        remote_(side.remote(thread)),
        slots_(load.window),
        atomic_(is_atomic(load.operation)),
        limit_(share_) {
    const uint32_t bytes = atomic_ ? 8 : static_cast<uint32_t>(load.window.size);
    const bool inlined =
        (load.operation == Operation::kWrite || load.operation == Operation::kSend) &&
        bytes <= queue_pair_.limits().max_inline;
    for (uint32_t i = 0; i < list_; ++i) {
      segments_[i] = {local_, bytes, side.region().local_key()};
      requests_[i].opcode = opcode_of(load.operation);
      requests_[i].flags = inlined ? kInline : 0;
      requests_[i].segment_count = 1;
      requests_[i].segments = &segments_[i];
      requests_[i].remote_address = remote_.address;
      requests_[i].remote_key = remote_.key;
      if (load.operation == Operation::kFetchAdd) requests_[i].operand = 1;
    }
  }

  // Posts `messages`, the last one signaled, and waits for it.
  absl::Status run(uint64_t messages) {
    const absl::Status status = list_ == 1 ? post_singly(messages) : post_lists(messages);
    return status.ok() ? drain() : status;
  }

 private:
  // Posts one message at a time, and accounts for each.
  [[gnu::noinline]] absl::Status post_singly(uint64_t messages) {
    WorkRequest& request = requests_[0];
    for (uint64_t left = messages; left != 0; --left) {
      if (posted_ == limit_) [[unlikely]] {
        if (absl::Status status = make_room(1); !status.ok()) return status;
      }
      fill(0);
      ++posted_;
      const bool signaled = ++unsignaled_ == interval_ || left == 1;
      if (signaled) [[unlikely]]
        signal(request);
      if (!queue_pair_.post_send(request).ok()) [[unlikely]] {
        // Post again to obtain the reason: keeping the first status costs ten instructions per
        // message with g++ 12.
        return to_status(queue_pair_.post_send(request), queue_pair_.peer());
      }
      if (signaled) [[unlikely]]
        request.flags &= static_cast<uint8_t>(~kSignaled);
    }
    return absl::OkStatus();
  }

  [[gnu::noinline]] absl::Status post_lists(uint64_t messages) {
    for (uint64_t left = messages; left != 0;) {
      const auto count = static_cast<uint32_t>(std::min<uint64_t>(left, list_));
      left -= count;
      if (absl::Status status = make_room(count); !status.ok()) return status;
      for (uint32_t i = 0; i < count; ++i) fill(i);
      unsignaled_ += count;
      posted_ += count;
      const bool signaled = unsignaled_ + list_ > interval_ || left == 0;
      WorkRequest& last = requests_[count - 1];
      if (signaled) signal(last);
      const PostResult result = queue_pair_.post_send(std::span(requests_.data(), count));
      if (!result.ok()) [[unlikely]]
        return to_status(result, queue_pair_.peer());
      if (signaled) last.flags &= static_cast<uint8_t>(~kSignaled);
    }
    return absl::OkStatus();
  }

  absl::Status make_room(uint32_t count) {
    while (posted_ + count > limit_) {
      if (absl::Status status = poll(); !status.ok()) return status;
      limit_ = lanes_[thread_].retired.load(std::memory_order_acquire) + share_;
    }
    return absl::OkStatus();
  }

  // Makes the request signaled; its id contains the number of operations that it covers.
  void signal(WorkRequest& request) {
    request.flags |= kSignaled;
    request.id = uint64_t{thread_} << 32 | unsignaled_;
    unsignaled_ = 0;
  }

  absl::Status drain() {
    while (lanes_[thread_].retired.load(std::memory_order_acquire) != posted_) {
      if (absl::Status status = poll(); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  // Makes requests_[i] the next message.
  void fill(uint32_t i) {
    WorkRequest& request = requests_[i];
    if (!atomic_) [[likely]] {
      const uint64_t offset = slots_.next();
      segments_[i].address = local_ + offset;
      request.remote_address = remote_.address + offset;
    } else if (request.opcode == Opcode::kCompareSwap) {
      request.operand = swapped_;  // the value that the previous operation has stored
      request.swap = ++swapped_;
    }
  }

  absl::Status poll() {
    std::array<Completion, 16> batch;
    const size_t count = completions_.poll(batch);
    for (size_t i = 0; i < count; ++i) {
      if (batch[i].status != CompletionStatus::kSuccess) {
        return to_status(batch[i], queue_pair_.peer());
      }
      lanes_[batch[i].id >> 32].retired.fetch_add(batch[i].id & UINT32_MAX,
                                                  std::memory_order_acq_rel);
    }
    // As the library's wait does: spin first, then yield.
    empty_polls_ = count == 0 ? empty_polls_ + 1 : 0;
    if (empty_polls_ > 256) std::this_thread::yield();
    return absl::OkStatus();
  }

  QueuePair& queue_pair_;
  CompletionQueue& completions_;
  std::vector<ManualLane>& lanes_;
  const uint32_t thread_;
  const uint32_t share_;
  const uint32_t interval_;
  const uint32_t list_;
  std::byte* const local_;
  const RemoteMemoryLocator remote_;
  Slots slots_;
  const bool atomic_;
  uint64_t swapped_ = 0;
  uint64_t posted_ = 0;
  uint64_t limit_;  // posted_ may grow up to this value before completions must be polled
  uint32_t empty_polls_ = 0;
  uint64_t unsignaled_ = 0;
  std::array<Segment, kMaxList> segments_;
  std::array<WorkRequest, kMaxList> requests_;
};

// ---- auto --------------------------------------------------------------------------------------

// Calls loop(transfer), where transfer(offset, done) is the one line that a user would write.
template <typename Loop>
absl::Status automatic(Side& side, const Load& load, uint32_t thread, Transmitter& transmitter,
                       Loop&& loop) {
  RDMAMemory memory = side.handle(thread);
  const RemoteMemoryLocator there = side.remote(thread);
  const uint64_t size = load.window.size;
  uint64_t count = 0;
  switch (load.operation) {
    case Operation::kWrite:
      return loop([&memory, &transmitter, there, size](uint64_t offset, Synchronizer* done) {
        return transmitter.write(memory, offset, size, there.slice(offset, size), done);
      });
    case Operation::kRead:
      return loop([&memory, &transmitter, there, size](uint64_t offset, Synchronizer* done) {
        return transmitter.read(memory, offset, size, there.slice(offset, size), done);
      });
    case Operation::kSend:
      return loop([&](uint64_t offset, Synchronizer* done) {
        return transmitter.send(memory, offset, size, done);
      });
    case Operation::kFetchAdd:
      return loop([&](uint64_t, Synchronizer* done) {
        return transmitter.fetch_add(memory, 0, there, 1, done);
      });
    case Operation::kCompareSwap:
      break;
  }
  return loop([&](uint64_t, Synchronizer* done) {
    const uint64_t expected = count++;
    return transmitter.compare_swap(memory, 0, there, expected, expected + 1, done);
  });
}

// ---- a thread of a load ------------------------------------------------------------------------

absl::Status run_thread(Side& side, const Load& load, uint32_t thread,
                        std::vector<ManualLane>& lanes, Gate& gate) {
  switch (load.mode) {
    case Mode::kCeiling:
      ceiling(side, load, thread, [&](auto&& transfer) { transfer_all(load, gate, transfer); });
      return absl::OkStatus();
    case Mode::kManual: {
      ManualThread manual(side, load, lanes, thread);
      gate.wait();
      return manual.run(load.messages);
    }
    case Mode::kAuto:
      break;
  }
  auto transmitter = Transmitter::create(side.transmit_queue());
  if (!transmitter.ok()) {
    gate.wait();
    return transmitter.status();
  }
  return automatic(side, load, thread, *transmitter, [&](auto&& transfer) {
    if (absl::Status status = post_all(load, gate, transfer); !status.ok()) return status;
    Synchronizer done;
    if (absl::Status status = transmitter->signal_all(&done); !status.ok()) return status;
    return transmitter->wait(done, kForever);
  });
}

double nanoseconds(Clock::duration span) {
  return static_cast<double>(std::chrono::duration_cast<std::chrono::nanoseconds>(span).count());
}

}  // namespace

std::string mode_name(Mode mode) {
  switch (mode) {
    case Mode::kCeiling:
      return "ceiling";
    case Mode::kManual:
      return "manual";
    case Mode::kAuto:
      break;
  }
  return "auto";
}

bool possible(Side& side, const Load& load) {
  if (is_atomic(load.operation) && !side.device().limits().atomics) return false;
  if (load.mode != Mode::kCeiling) return true;
  return load.operation != Operation::kSend &&
         side.manual_queue().direct_access(side.remote(0)) != nullptr;
}

absl::StatusOr<double> run_load(Side& side, const Load& load) {
  Gate gate(load.threads);
  std::vector<ManualLane> lanes(load.threads);
  std::vector<absl::Status> results(load.threads);
  std::vector<Clock::time_point> ends(load.threads);
  const auto body = [&](uint32_t thread) {
    results[thread] = run_thread(side, load, thread, lanes, gate);
    ends[thread] = Clock::now();
  };
  std::vector<std::thread> threads;
  for (uint32_t thread = 1; thread < load.threads; ++thread) threads.emplace_back(body, thread);
  body(0);
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& status : results) {
    if (!status.ok()) return status;
  }
  return nanoseconds(*std::max_element(ends.begin(), ends.end()) - gate.start()) * 1e-9;
}

absl::StatusOr<std::vector<double>> run_latency(Side& side, const Load& load) {
  std::vector<double> samples;
  samples.reserve(load.messages);
  Slots slots(load.window);
  const auto timed = [&](auto&& transfer) {
    const Clock::time_point start = Clock::now();
    transfer();
    samples.push_back(nanoseconds(Clock::now() - start));
  };
  switch (load.mode) {
    case Mode::kCeiling:
      ceiling(side, load, 0, [&](auto&& transfer) {
        for (uint64_t i = 0; i < load.messages; ++i) {
          const uint64_t offset = slots.next();
          timed([&] { transfer(offset); });
        }
      });
      return samples;
    case Mode::kManual: {
      std::vector<ManualLane> lanes(1);
      ManualThread manual(side, load, lanes, 0);
      absl::Status status;
      for (uint64_t i = 0; i < load.messages && status.ok(); ++i) {
        timed([&] { status = manual.run(1); });
      }
      if (!status.ok()) return status;
      return samples;
    }
    case Mode::kAuto:
      break;
  }
  auto transmitter = Transmitter::create(side.transmit_queue());
  if (!transmitter.ok()) return transmitter.status();
  const absl::Status status =
      automatic(side, load, 0, *transmitter, [&](auto&& transfer) -> absl::Status {
        absl::Status result;
        for (uint64_t i = 0; i < load.messages && result.ok(); ++i) {
          const uint64_t offset = slots.next();
          timed([&] {
            Synchronizer done;
            result = transfer(offset, &done);
            if (result.ok()) result = transmitter->wait(done, kForever);
          });
        }
        return result;
      });
  if (!status.ok()) return status;
  return samples;
}

double clock_cost() {
  std::vector<double> samples(1001);
  for (double& sample : samples) {
    const Clock::time_point start = Clock::now();
    sample = nanoseconds(Clock::now() - start);
  }
  return percentile(samples, 0.5);
}

}  // namespace cariama::bench
