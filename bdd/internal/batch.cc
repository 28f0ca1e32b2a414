#include "bdd/internal/batch.h"

#include <bit>
#include <stdexcept>
#include <utility>

#include "bdd/internal/batch_steps.h"
#include "bdd/internal/engine.h"

namespace cariama::bdd::internal {
namespace {

constexpr size_t kBuckets = size_t{1} << 14;

// Steps that are resumed between two polls of the look-ups, while others are ready.
constexpr uint32_t kStepsPerPoll = 16;

}  // namespace

Batch::Batch(Engine& engine, size_t least_spare_tasks)
    : engine_(engine), least_spare_tasks_(least_spare_tasks), buckets_(kBuckets) {}

Batch::~Batch() = default;

Batch::Promise*& Batch::bucket(const Key& key) {
  const uint64_t mixed =
      (std::rotl(key.a, 1) * 0x9e3779b97f4a7c15 + std::rotl(key.b, 17)) * 0xff51afd7ed558ccd +
      std::rotl(key.c, 31);
  return buckets_[(mixed ^ mixed >> 29) % kBuckets];
}

template <typename Create>
Batch::Pending Batch::find_or_start(const Key& key, Create create) {
  Pending pending;
  if (engine_.cache.find(key.a, key.b, key.c, pending.edge)) return pending;
  for (Promise* one = bucket(key); one != nullptr; one = one->next_in_bucket) {
    if (one->key == key) return {kFalse, one, 0};
  }
  return start(create(), key);
}

Batch::Pending Batch::start(Step step, const Key& key) {
  Promise& promise = step.promise;
  promise.key = key;
  if (key.a != 0) {
    Promise*& first = bucket(key);
    promise.next_in_bucket = std::exchange(first, &promise);
  }
  promise.next = std::exchange(steps_, &promise);
  if (promise.next != nullptr) promise.next->previous = &promise;
  ready_.push_back(std::coroutine_handle<Promise>::from_promise(promise));
  return {kFalse, &promise, 0};
}

void Batch::wait_for(const Pending& pending, Waiter& waiter) {
  waiter.next = std::exchange(pending.step->waiters, &waiter);
}

void Batch::arrive(Suspended& suspended) {
  if (--suspended.left == 0 && suspended.step) ready_.push_back(suspended.step);
}

void Batch::end(Promise& step) {
  // After a failure the result has no meaning.
  const bool valid = failure_ == Failure::kNone && exception_ == nullptr;
  if (step.key.a != 0) {
    Promise** place = &bucket(step.key);
    while (*place != &step) place = &(*place)->next_in_bucket;
    *place = step.next_in_bucket;
    if (valid) engine_.cache.put(step.key.a, step.key.b, step.key.c, step.result);
  }
  if (step.next != nullptr) step.next->previous = step.previous;
  (step.previous == nullptr ? steps_ : step.previous->next) = step.next;
  for (Waiter* waiter = step.waiters; waiter != nullptr;) {
    Waiter* const next = waiter->next;
    *waiter->result = step.result;
    arrive(*waiter->suspended);
    waiter = next;
  }
  std::coroutine_handle<Promise>::from_promise(step).destroy();
}

// ---- Look-ups -----------------------------------------------------------------------------------

void Batch::submit(Lookup& lookup) {
  lookup.next = nullptr;
  (first_queued_ == nullptr ? first_queued_ : last_queued_->next) = &lookup;
  last_queued_ = &lookup;
  submit_queue();
}

void Batch::submit_queue() {
  while (first_queued_ != nullptr) {
    Lookup& lookup = *first_queued_;
    const auto tag = reinterpret_cast<uint64_t>(&lookup);
    const bool started = lookup.put ? engine_.table->start_find_or_put(lookup.node, tag)
                                    : engine_.table->start_read(lookup.index, tag);
    if (!started) return;
    ++in_flight_;
    first_queued_ = lookup.next;
  }
}

// A look-up is in the frame of its step. The frame exists until the look-up has ended, also after a
// failure.
void Batch::poll() {
  engine_.table->poll([this](const NodeTable::Lookup& ended) {
    auto& lookup = *reinterpret_cast<Lookup*>(ended.tag);
    --in_flight_;
    if (ended.lost) failure_ = Failure::kLost;
    lookup.node = ended.node;
    lookup.index = ended.index;
    arrive(*lookup.suspended);
  });
  submit_queue();
}

void Batch::await_lookup() {
  engine_.table->await_lookup();
  poll();
}

// ---- Operations ---------------------------------------------------------------------------------

Edge Batch::run(Pending operation, void (*serve_thieves)()) {
  if (operation.step == nullptr) return operation.edge ^ operation.mark;
  Suspended caller{1, nullptr};
  Waiter waiter{nullptr, &operation.edge, &caller};
  wait_for(operation, waiter);
  // Serves thieves. If that throws, for a run that ends early, the steps are removed: they refer to
  // the frame of this function.
  const auto serve = [&] {
    try {
      serve_thieves();
    } catch (...) {
      remove_all();
      failure_ = Failure::kNone;
      exception_ = nullptr;
      throw;
    }
  };
  uint32_t resumed = 0;
  while (caller.left != 0 && failure_ == Failure::kNone && exception_ == nullptr) {
    // If look-ups are queued, more steps would only add to the queue.
    if (first_queued_ == nullptr && !ready_.empty()) {
      const std::coroutine_handle<> step = ready_.back();
      ready_.pop_back();
      step.resume();
      if (++resumed % kStepsPerPoll != 0) continue;
      poll();
    } else {
      await_lookup();
    }
    if (serve_thieves != nullptr) serve();
  }
  if (caller.left == 0 && failure_ == Failure::kNone && exception_ == nullptr) {
    return operation.edge ^ operation.mark;
  }
  remove_all();
  if (const std::exception_ptr exception = std::exchange(exception_, nullptr)) {
    failure_ = Failure::kNone;
    std::rethrow_exception(exception);
  }
  if (std::exchange(failure_, Failure::kNone) == Failure::kFull) engine_.no_room();
  engine_.table->lost();
}

void Batch::remove_all() {
  first_queued_ = last_queued_ = nullptr;
  while (in_flight_ != 0) await_lookup();
  ready_.clear();
  buckets_.assign(kBuckets, nullptr);
  while (steps_ != nullptr) {
    Promise* const step = std::exchange(steps_, steps_->next);
    std::coroutine_handle<Promise>::from_promise(*step).destroy();
  }
}

Batch::Pending Batch::conjoin(Edge a, Edge b) {
  return find_or_start({key_of(Op::kAnd, a), b, 0}, [&] { return conjoin_step(a, b); });
}
Batch::Pending Batch::exclusive_or(Edge a, Edge b) {
  return find_or_start({key_of(Op::kXor, a), b, 0}, [&] { return exclusive_or_step(a, b); });
}
Batch::Pending Batch::if_then_else(Edge a, Edge b, Edge c) {
  return find_or_start({key_of(Op::kIte, a), b, c}, [&] { return if_then_else_step(a, b, c); });
}
Batch::Pending Batch::quantify(Edge a, Edge cube) {
  if (is_constant(a) || is_constant(cube)) return {a, nullptr, 0};
  return find_or_start({key_of(Op::kExists, a), cube, 0}, [&] { return quantify_step(a, cube); });
}
Batch::Pending Batch::conjoin_quantify(Edge a, Edge b, Edge cube) {
  if (a == kFalse || b == kFalse || a == negate(b)) return {kFalse, nullptr, 0};
  if (a == kTrue || a == b) return quantify(b, cube);
  if (b == kTrue) return quantify(a, cube);
  if (is_constant(cube)) return any_conjunction(a, b);
  if (a > b) std::swap(a, b);
  return find_or_start({key_of(Op::kAndExists, a), b, cube},
                       [&] { return conjoin_quantify_step(a, b, cube); });
}
Batch::Pending Batch::substitute(Edge a, uint32_t variable, Edge by) {
  return find_or_start({key_of(Op::kCompose, a), variable, by},
                       [&] { return substitute_step(a, variable, by); });
}
template <bool kForward>
Batch::Pending Batch::step(Edge states, Edge relation, Edge cube) {
  if (states == kFalse || relation == kFalse) return {kFalse, nullptr, 0};
  if (is_constant(cube)) return {states, nullptr, 0};
  constexpr Op kOp = kForward ? Op::kNext : Op::kPrevious;
  return find_or_start({key_of(kOp, states), relation, cube},
                       [&] { return relation_step<kForward>(states, relation, cube); });
}
template <bool kForward>
Batch::Pending Batch::image(Edge states, uint32_t from, uint32_t to) {
  if (from == to) return {kFalse, nullptr, 0};
  return start(image_step<kForward>(states, from, to), {});
}
Batch::Pending Batch::saturate(Edge states, uint32_t index) {
  if (states == kFalse || index == engine_.groups.size()) return {states, nullptr, 0};
  return find_or_start({key_of(Op::kSaturate, states), index, engine_.group_set},
                       [&] { return saturate_step(states, index); });
}

template Batch::Pending Batch::step<true>(Edge, Edge, Edge);
template Batch::Pending Batch::step<false>(Edge, Edge, Edge);
template Batch::Pending Batch::image<true>(Edge, uint32_t, uint32_t);
template Batch::Pending Batch::image<false>(Edge, uint32_t, uint32_t);

}  // namespace cariama::bdd::internal
