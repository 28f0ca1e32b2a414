// A thread that searches: the rollouts, and what the calls of other processes make it do.
//
// A rollout walks down from its job's node, choosing moves, until it comes to a move that has no
// node yet: there the position is played out, and the value goes back along the way. A move that
// was tried often gets a node, in the process that placement says. Where the way leads to a node of
// another process, the rollout becomes a job for that process (job.h), with as many more rollouts
// of the same job as fit; the way is kept in a ticket until the answer comes.
#ifndef CARIAMA_MCTS_WORKER_H_
#define CARIAMA_MCTS_WORKER_H_

#include <atomic>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "dtutils/statistics.h"
#include "mcts/host.h"
#include "mcts/job.h"
#include "mcts/mirror.h"
#include "mcts/node.h"
#include "mcts/options.h"
#include "mcts/selection.h"

namespace cariama::mcts {

template <Game G>
class Site;

template <Game G>
class Worker {
 public:
  using NodeType = Node<G>;
  using SampleType = Sample<G>;

  Worker(Site<G>& site, HostThread& thread) : site_(site), thread_(thread) {}

  // A search begins. By worker 0, while this one rests.
  void begin(uint64_t seed) {
    random_.emplace(seed);
    playouts_.reset();
    counters_.emplace();
    if (thread_.lines != nullptr) {
      messages_before_ = thread_.lines->messages();
      bytes_before_ = thread_.lines->bytes();
    }
  }

  // A few rollouts. False: there were none to do.
  bool work() {
    const bool stopping = site_.stopping();
    if (!stopping && site_.root_open()) give_shares();
    typename JobQueue<G>::Taken taken = site_.jobs().take(kSlice, stopping);
    if (taken.job == nullptr) {
      if (!site_.root_open()) return false;
      taken.job = &site_.root_job();
      taken.rollouts = taken.job->take(kSlice);
      if (taken.rollouts == 0) return false;
    } else {
      if (stopping) {
        cancel(*taken.job, taken.rollouts);
        taken.rollouts = 0;
      }
    }
    // Its units are what keeps the job: after the last one it may be another one.
    bool postponed = false;
    for (uint32_t i = 0; i < taken.rollouts && !postponed; ++i) {
      if (rollout(*taken.job)) continue;
      // Only the root's rollouts are postponed, with the rest of the slice.
      taken.job->put_back(taken.rollouts - i);
      postponed = true;
      if (i == 0) {
        site_.note_waiting(true);
        return false;
      }
    }
    if (taken.last) end_units(*taken.job, 1);
    if (thread_.lines != nullptr) thread_.lines->flush();
    return true;
  }

  // What a ticket waits for will not come: its rollouts never were.
  void give_up(Ticket<G>& ticket) {
    site_.note_waiting(false);
    if (ticket.path.empty()) {
      site_.shared(ticket.rank).fetch_sub(static_cast<int32_t>(ticket.rollouts));
      return_rollouts(*ticket.job, ticket.rollouts);
      return;
    }
    const Step<G> last = ticket.path.back();
    if (ticket.rollouts == 0) {
      last.node->set_child(last.move, {});
      end_units(*ticket.job, 1);
      return;
    }
    last.node->drop_child(last.move, ticket.rank);
    site_.outstanding(ticket.rank).fetch_sub(static_cast<int32_t>(ticket.rollouts));
    take_back(ticket.path, ticket.rollouts);
    return_rollouts(*ticket.job, ticket.rollouts);
  }

  // Children for moves that others have tried often at copies of the node, while the rollouts of
  // this process went elsewhere: else nobody would ever make them.
  void grow(NodeType& node) {
    for (int i = 0; i < node.size() && !site_.full(); ++i) {
      if (!node.child(i).none() || node.closed(i) || node.visits(i) < enough()) continue;
      G position = node.state();
      position.play(node.move(i));
      if (position.result()) continue;
      const NodeType* made = make_child_here(node, i, position);
      // No rollout came to it that would tell, if it was decided from the beginning.
      if (made != nullptr && made->outcome() != Outcome::kOpen) node.prove(i, made->outcome());
    }
    node.resolve();
  }

  void add_to(Statistics& sum) const {
    sum.visits += counters_->visits.value();
    sum.completions += counters_->completions.value();
    sum.handed_over += counters_->handed_over.value();
    sum.cancelled += counters_->cancelled.value();
    sum.playouts += counters_->playouts.value();
    sum.nodes_made += counters_->nodes_made.value();
    sum.nodes_made_remotely += counters_->nodes_made_remotely.value();
    sum.transpositions += counters_->transpositions.value();
    sum.remote_selections += counters_->remote_selections.value();
    sum.deferred_selections += counters_->deferred_selections.value();
    if (thread_.lines != nullptr) {
      sum.messages += thread_.lines->messages() - messages_before_;
      sum.bytes += thread_.lines->bytes() - bytes_before_;
    }
  }

 private:
  friend class Site<G>;

  // Rollouts of the root that a process is given at a time: many, since what it has not begun
  // disturbs nobody.
  static constexpr uint64_t kMostShared = 4096;
  // Rollouts between two looks at calls and clocks: some 40 µs of Hex.
  static constexpr uint32_t kSlice = 8;

  struct JobRequest {
    SlotId node;
    uint32_t rollouts = 0;
    uint32_t requester = 0;
    SlotId ticket;
    bool share = false;
  };
  struct JobAnswer {
    SlotId ticket;
    uint32_t rank = 0;
    uint32_t completed = 0;
    double value = 0;  // sum, of player 0
    Outcome outcome = Outcome::kOpen;
    bool full = false;
    bool useless = false;  // there is nothing to search, or no node
  };
  struct Creation {
    uint32_t requester = 0;
    SlotId ticket;
  };

  struct Counters {
    Counter visits;
    Counter completions;
    Counter handed_over;
    Counter cancelled;
    Counter playouts;
    Counter nodes_made;
    Counter nodes_made_remotely;
    Counter transpositions;
    Counter remote_selections;
    Counter deferred_selections;
  };

  // The worker of the calling thread.
  [[nodiscard]] static Worker& here() { return Site<G>::here().worker(Host::here().index); }
  [[nodiscard]] const SearchOptions& options() const { return site_.options(); }
  // Visits of a move that shall have a node: so many more while its node is on the way, and as many
  // again at a copy, whose owner has to be told first, are all that are spent on sampling it.
  [[nodiscard]] uint32_t enough() const { return 2 * options().expand_visits + kSlice; }

  // ---- Rollouts

  // Ends one unit of the job, now or later. False: neither, since the rollout, one of the root, had
  // better begin again later.
  [[nodiscard]] bool rollout(Job<G>& job) {
    path_.clear();
    counters_->visits.add();
    NodeType* node = job.node;
    Mirror<G>* copied = nullptr;  // what `node` is a copy by, if it is one
    if (job.share) {
      const auto root = site_.mirroring().root();
      if (root.stale) return defer(job);
      copied = root.mirror;
    }
    for (;;) {
      if (const Outcome known = node->outcome(); known != Outcome::kOpen) {
        end_proved(job, known);
        return true;
      }
      if constexpr (HasRefine<G>) {
        if (node->refinements() < kRefinements) {
          const int level = node->refinements();
          const uint32_t due = level == 0 ? options().refine_visits : options().refine_again_visits;
          if (node->visits() >= due && node->claim_refinement(level)) {
            refine(*node, level);
            continue;
          }
        }
      }
      const int move = select_move(*node, options().selection);
      if (move < 0) {
        // All moves were closed, and the outcome is about to be known.
        end_proved(job, node->resolve());
        return true;
      }
      const uint32_t before = node->enter(move);
      path_.push_back({node, move});
      const auto child = node->child(move);
      if (child.is_local()) {
        node = child.local();
        copied = nullptr;
        continue;
      }
      if (child.is_remote()) {
        const auto copy = site_.mirroring().copy(child.remote(), before);
        if (copy.stale) return defer(job);
        if (copy.node != nullptr) {
          node = copy.node;
          copied = copy.mirror;
          continue;
        }
      }
      if (has_to_wait(job, child, before)) return defer(job);
      if (child.is_remote() && hand_over(job, child.remote(), before)) return true;
      if (child.none() && copied != nullptr && before >= enough() && !site_.full()) {
        site_.mirroring().hurry(*copied, *node);  // its owner makes the child
        if (before > 2 * enough()) return defer(job);
      }
      if (child.none() && copied == nullptr && before >= options().expand_visits) {
        if (NodeType* made = make_child(job, *node, move); made != nullptr) {
          node = made;
          continue;
        }
      }
      sample(job, *node, move);
      return true;
    }
  }

  // The rollout had better begin again later, as rollout() says. Who has a share of the root's
  // gives the rest of it back.
  [[nodiscard]] bool defer(Job<G>& job) {
    take_back(path_, 1);
    counters_->deferred_selections.add();
    if (job.root) return false;
    if (job.share) cancel(job, static_cast<uint32_t>(job.take_all()));
    return_rollouts(job, 1);
    return true;
  }

  // Deferred selection: whether a rollout that came to this child is better begun again later. A
  // position that is about to get a node is sampled only a few times more. And what is under way
  // shall be a small part of what is known: that is for the root's rollouts, and shares of them;
  // all others are parts of these.
  [[nodiscard]] bool has_to_wait(const Job<G>& job, typename NodeType::Ref child,
                                 uint32_t before) const {
    Host& host = site_.host();
    if (child.is_creating()) return before > enough();
    if (!(job.root || job.share) || !child.is_remote() || !host.alive(child.remote().rank))
      return false;
    const uint64_t known = path_.front().node->visits() / options().queue_share;
    const uint64_t limit =
        std::clamp<uint64_t>(known, options().queue_target, options().queue_limit) * host.threads();
    return site_.outstanding(child.remote().rank).load(std::memory_order_relaxed) >=
           static_cast<int64_t>(limit);
  }

  // The rollout came to a position whose outcome is proved.
  void end_proved(Job<G>& job, Outcome known) {
    if (path_.empty()) {  // nothing to search any more
      counters_->cancelled.add();
      if (!job.root) cancel(job, static_cast<uint32_t>(job.take_all()));
      return_rollouts(job, 1);
      return;
    }
    counters_->completions.add();
    finish(job, path_, 1, value_of(known), {}, known);
  }

  // The position after the last move of the way is valued here.
  void sample(Job<G>& job, NodeType& node, int move) {
    G position = node.state();
    position.play(node.move(move));
    if (const std::optional<float> result = position.result()) {
      counters_->completions.add();
      finish(job, path_, 1, *result, {}, outcome_of(*result));
      return;
    }
    if (!playouts_) playouts_.emplace(node.state(), *random_);
    samples_.clear();
    double sum = 0;
    const uint32_t playouts = options().playouts_per_leaf;
    for (uint32_t i = 0; i < playouts; ++i) {
      samples_.push_back(playouts_->run(position, node.move(move), *random_));
      sum += samples_.back().value;
    }
    counters_->playouts.add(playouts);
    counters_->completions.add();
    finish(job, path_, 1, sum / playouts, samples_, Outcome::kOpen);
  }

  // Brings values back along a way, and ends their units. `below`: what is proved about the last
  // move.
  void finish(Job<G>& job, std::span<const Step<G>> path, uint32_t count, double sum,
              std::span<const SampleType> samples, Outcome below) {
    for (size_t i = path.size(); i-- > 0;) {
      NodeType& node = *path[i].node;
      node.leave(path[i].move, count, sum);
      for (const SampleType& one : samples) node.count_amaf(one);
      if (below != Outcome::kOpen) {
        node.prove(path[i].move, below);
        below = node.resolve();
      }
    }
    job.add(count, sum, samples);
    end_units(job, count);
  }

  void refine(NodeType& node, int level) {
    if constexpr (HasRefine<G>) {
      using Move = typename G::Move;
      Candidate<Move> moves[G::kMaxMoves];
      for (int i = 0; i < node.size(); ++i) {
        moves[i] = {node.move(i), node.prior(i), node.verdict(i)};
      }
      node.state().refine(std::span(moves, node.size()), level);
      for (int i = 0; i < node.size(); ++i) {
        if (moves[i].verdict != Verdict::kOpen) node.set_verdict(i, moves[i].verdict);
      }
      node.resolve();
    }
  }

  // ---- Ends

  void take_back(std::span<const Step<G>> path, uint32_t count) {
    for (const Step<G>& step : path) step.node->take_back(step.move, count);
  }
  // Rollouts of the job were begun and given up: the root's are wanted again, others not.
  void return_rollouts(Job<G>& job, uint32_t count) {
    if (job.root && !site_.stopping() && job.node->outcome() == Outcome::kOpen) {
      job.put_back(count);
    } else {
      end_units(job, count);
    }
  }
  // Rollouts that were never begun.
  void cancel(Job<G>& job, uint32_t count) {
    if (count != 0) end_units(job, count);
  }
  void end_units(Job<G>& job, uint64_t count) {
    const bool root = job.root;  // the root's job belongs to the search as soon as it is over
    if (!job.end_units(count) || root) return;
    answer(job);
    site_.jobs().recycle(job);
  }
  void answer(const Job<G>& job) {
    const JobAnswer answer{job.ticket,
                           site_.host().rank(),
                           static_cast<uint32_t>(job.completed()),
                           job.value(),
                           job.node == nullptr ? Outcome::kOpen : job.node->outcome(),
                           site_.full(),
                           job.node == nullptr || job.node->outcome() != Outcome::kOpen};
    // The same thread of the other process that asked, if it is this one's number: so threads need
    // channels to their peers of the same number alone.
    const uint32_t to = site_.host().id(job.requester / site_.host().threads(), thread_.index);
    thread_.lines->call_buffer(
        to, [answer](void* data, uint64_t bytes) { here().on_answer(answer, data, bytes); },
        std::as_bytes(job.samples()));
  }

  // ---- Other processes

  // Asks the owner for rollouts from its node: this one, and more of the same job. False: the
  // owner is dead.
  bool hand_over(Job<G>& job, RemoteNode node, uint32_t before) {
    Host& host = site_.host();
    const Step<G> last = path_.back();
    if (!host.alive(node.rank)) {
      last.node->drop_child(last.move, node.rank);
      return false;
    }
    const uint32_t wanted =
        std::clamp<uint32_t>(before / options().batch_divisor, 1, options().max_batch);
    uint32_t rollouts = 1;
    if (wanted > 1) {
      const uint32_t more = job.take(wanted - 1);
      if (more != 0) {
        for (const Step<G>& step : path_) step.node->enter(step.move, more);
      }
      rollouts += more;
      counters_->visits.add(more);
    }
    counters_->handed_over.add(rollouts);
    counters_->remote_selections.add();
    site_.outstanding(node.rank).fetch_add(static_cast<int32_t>(rollouts));
    const SlotId ticket = site_.tickets().add({&job, node.rank, rollouts, path_});
    const JobRequest request{
        {node.slot, node.generation}, rollouts, host.id(host.rank(), thread_.index), ticket};
    send_or_give_up(node.rank, ticket, [&](uint32_t thread) {
      return thread_.lines->call(thread, [request] { here().on_job(request); });
    });
    return true;
  }

  // Rank 0: gives the other processes rollouts of the root, as long as they have too few.
  void give_shares() {
    Host& host = site_.host();
    Job<G>& job = site_.root_job();
    for (uint32_t rank = 1; rank < host.size(); ++rank) {
      if (!site_.mirroring().ready(rank).load(std::memory_order_relaxed) || !host.alive(rank)) {
        continue;
      }
      // Towards the end less, so that all end at the same time.
      const uint64_t some = std::min(std::clamp<uint64_t>(job.node->visits() / 4, 64, kMostShared),
                                     job.left() / (2 * host.size() * host.threads()) + 1);
      if (site_.shared(rank).load(std::memory_order_relaxed) >=
          static_cast<int64_t>(some * host.threads())) {
        continue;
      }
      const uint32_t rollouts = job.take(static_cast<uint32_t>(some));
      if (rollouts == 0) return;
      site_.shared(rank).fetch_add(static_cast<int32_t>(rollouts));
      const SlotId ticket = site_.tickets().add({&job, rank, rollouts, {}});
      const JobRequest request{
          {}, rollouts, host.id(host.rank(), thread_.index), ticket, /*share=*/true};
      send_or_give_up(rank, ticket, [&](uint32_t thread) {
        return thread_.lines->call(thread, [request] { here().on_job(request); });
      });
    }
  }
  void on_shared(const Ticket<G>& ticket, const JobAnswer& answer) {
    site_.shared(ticket.rank).fetch_sub(static_cast<int32_t>(ticket.rollouts));
    if (answer.full) site_.note_full();
    site_.note_waiting(false);
    const uint32_t completed = std::min(answer.completed, ticket.rollouts);
    if (answer.useless) site_.mirroring().ready(ticket.rank).store(false);
    counters_->visits.add(completed);
    counters_->handed_over.add(completed);
    if (completed != 0) finish(*ticket.job, {}, completed, 0, {}, Outcome::kOpen);
    if (completed != ticket.rollouts) return_rollouts(*ticket.job, ticket.rollouts - completed);
  }

  // The node for a move, here; or nullptr: it is being made elsewhere, or there is no memory.
  NodeType* make_child(Job<G>& job, NodeType& node, int move) {
    if (site_.full()) return nullptr;
    G position = node.state();
    position.play(node.move(move));
    const uint32_t rank = site_.place(node, position, *random_);
    if (rank == site_.host().rank()) return make_child_here(node, move, position);
    if (!node.claim_child(move)) return nullptr;
    job.add_unit();
    const SlotId ticket = site_.tickets().add({&job, rank, 0, {{&node, move}}});
    const Creation creation{site_.host().id(site_.host().rank(), thread_.index), ticket};
    send_or_give_up(rank, ticket, [&](uint32_t thread) {
      return thread_.lines->call_buffer(
          thread,
          [creation](void* data, uint64_t bytes) { here().on_create(creation, data, bytes); },
          std::as_bytes(std::span(&position, 1)));
    });
    return nullptr;
  }
  // First made, then put in its place: so no thread waits for another one that was interrupted
  // between the two. If several do it at the same time, one of the nodes stays.
  NodeType* make_child_here(NodeType& node, int move, const G& position) {
    NodeType* made = obtain_node(position).node;
    if (made == nullptr || node.adopt_child(move, made)) return made;
    discard(made);
    const auto child = node.child(move);
    return child.is_local() ? child.local() : nullptr;
  }
  // A node for the position, with one more parent: a new one, or one that is there already.
  // nullptr: no memory.
  struct Obtained {
    NodeType* node = nullptr;
    bool fresh = false;
  };
  Obtained obtain_node(const G& position) {
    const bool shared = HasKey<G> && options().transpositions;
    NodeType* known = nullptr;
    if (shared) known = site_.transpositions().find(NodeType::key_of(position));
    if (known == nullptr) {
      NodeType* made = NodeType::make(position, site_.arena(thread_.index),
                                      static_cast<uint16_t>(thread_.index), *random_, true);
      if (made == nullptr) {
        site_.note_full();
        return {};
      }
      known = shared ? site_.transpositions().find_or_add(made->key(), made) : made;
      if (known == made) {
        site_.count_node();
        counters_->nodes_made.add();
        return {made, true};
      }
      made->destroy(site_.arena(thread_.index));
    }
    counters_->transpositions.add();
    return {known, false};
  }
  // That has found no parent after all.
  void discard(NodeType* node) {
    if (!site_.transpositions().drop_parent(node)) return;
    if (node->maker() == thread_.index) {
      site_.free_one(node);
    } else {  // its arena is in use
      site_.free_later(node);
    }
  }

  // The ticket may be ended by the death of its process, which is looked at after it was entered:
  // so one of the two ends it.
  template <typename Send>
  void send_or_give_up(uint32_t rank, SlotId ticket, Send&& send) {
    const bool sent = send(site_.host().id(rank, thread_.index));
    if (sent && site_.host().alive(rank)) return;
    if (std::optional<Ticket<G>> mine = site_.tickets().take(ticket)) give_up(*mine);
  }

  void on_create(const Creation& creation, const void* data, uint64_t bytes) {
    if (bytes != sizeof(G)) return;
    alignas(G) std::byte copy[sizeof(G)];
    std::memcpy(copy, data, sizeof(G));
    const auto [made, fresh] = obtain_node(*std::launder(reinterpret_cast<const G*>(copy)));
    SlotId id;
    if (made != nullptr) {
      if (fresh) counters_->nodes_made_remotely.add();
      id = site_.exported().add(made);
    }
    const bool created = made != nullptr;
    const Outcome outcome = created ? made->outcome() : Outcome::kOpen;
    const uint32_t rank = site_.host().rank();
    const SlotId ticket = creation.ticket;
    thread_.lines->call(creation.requester, [ticket, id, rank, created, outcome] {
      here().on_created(ticket, id, rank, created, outcome);
    });
  }
  void on_created(SlotId name, SlotId id, uint32_t rank, bool created, Outcome outcome) {
    std::optional<Ticket<G>> ticket = site_.tickets().take(name);
    if (!ticket) return;
    site_.note_waiting(false);
    const Step<G> step = ticket->path.back();
    if (created) {
      step.node->set_child(step.move, typename NodeType::Ref(RemoteNode{
                                          static_cast<uint16_t>(rank),
                                          static_cast<uint16_t>(id.generation), id.slot}));
    } else {
      site_.note_full();
      step.node->set_child(step.move, {});
    }
    if (outcome != Outcome::kOpen) {
      step.node->prove(step.move, outcome);
      step.node->resolve();
    }
    end_units(*ticket->job, 1);
  }

  void on_job(const JobRequest& request) {
    Job<G>& job = site_.jobs().new_job();
    job.requester = request.requester;
    job.ticket = request.ticket;
    job.root = false;
    job.share = request.share;
    if (request.share) {
      job.node = site_.mirroring().root().node;
    } else {
      const std::optional<NodeType*> node = site_.exported().find(request.node);
      job.node = node ? *node : nullptr;
    }
    job.start(job.node != nullptr ? request.rollouts : 0);
    if (job.node == nullptr) {  // a name that nothing has (any more)
      end_units(job, 1);
      return;
    }
    site_.jobs().push(job);
    if (site_.host().threads() > 1) site_.host().wake_workers();
  }

  void on_answer(const JobAnswer& answer, const void* data, uint64_t bytes) {
    if (answer.rank >= site_.host().size()) return;
    std::optional<Ticket<G>> ticket = site_.tickets().take(answer.ticket);
    if (!ticket) return;  // given up meanwhile
    if (ticket->path.empty()) {
      on_shared(*ticket, answer);
      return;
    }
    // Nothing done: it waits for something itself, and so had we better.
    site_.note_waiting(answer.completed == 0 && answer.outcome == Outcome::kOpen);
    if (answer.full) site_.note_full();
    const uint32_t completed = std::min(answer.completed, ticket->rollouts);
    const uint32_t missing = ticket->rollouts - completed;
    site_.outstanding(ticket->rank).fetch_sub(static_cast<int32_t>(ticket->rollouts));
    if (missing != 0) take_back(ticket->path, missing);
    const size_t count = bytes / sizeof(SampleType);
    answered_.resize(HasAmaf<G> ? count : 0);
    if (!answered_.empty()) std::memcpy(answered_.data(), data, count * sizeof(SampleType));
    if (completed != 0 || answer.outcome != Outcome::kOpen) {
      finish(*ticket->job, ticket->path, completed, answer.value, answered_, answer.outcome);
    }
    if (missing != 0) return_rollouts(*ticket->job, missing);
  }

  Site<G>& site_;
  HostThread& thread_;
  std::optional<Random> random_;
  std::optional<internal::PlayoutRunner<G>> playouts_;
  std::vector<Step<G>> path_;
  std::vector<SampleType> samples_;
  std::vector<SampleType> answered_;
  std::optional<Counters> counters_{std::in_place};
  uint64_t messages_before_ = 0;
  uint64_t bytes_before_ = 0;
};

}  // namespace cariama::mcts

#endif  // CARIAMA_MCTS_WORKER_H_
