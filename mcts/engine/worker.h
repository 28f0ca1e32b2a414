// Worker: one thread of a search. It runs rollouts and handles the calls of other processes.
//
// A rollout descends from its job's node and selects a move in each node, until the move has no
// child node. There it gets a value: the result of the game, or that of playouts, value() or the
// evaluator. The worker adds it to all nodes on the path. A move with expand_visits visits gets a
// child node, in the process that the placement selects. If the path leads to a node of another
// process, the rollout continues at this process's copy. Without a copy, the worker requests a job
// from the owner (job.h): this and further rollouts. A ticket has the path until the answer.
//
// The worker takes rollouts from the work pool (work_pool.h), extends the local tree (tree.h),
// continues rollouts at copies of remote nodes (copy_exchange.h), and calls the workers of its
// index in other processes. While the tree is small, only rank 0 grows it, and the workers of other
// processes run playouts for it (remote_playouts.h).
#ifndef CARIAMA_MCTS_ENGINE_WORKER_H_
#define CARIAMA_MCTS_ENGINE_WORKER_H_

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dtutils/statistics.h"
#include "dtutils/trace.h"
#include "mcts/engine/chance.h"
#include "mcts/engine/copies.h"
#include "mcts/engine/copy_exchange.h"
#include "mcts/engine/evaluations.h"
#include "mcts/engine/job.h"
#include "mcts/engine/move_records.h"
#include "mcts/engine/node.h"
#include "mcts/engine/remote_playouts.h"
#include "mcts/engine/rollout_counters.h"
#include "mcts/engine/sampler.h"
#include "mcts/engine/selection.h"
#include "mcts/engine/slot_table.h"
#include "mcts/engine/tree.h"
#include "mcts/engine/work_pool.h"
#include "mcts/host.h"
#include "mcts/options.h"
#include "mcts/values.h"

namespace cariama::mcts {

template <Game G>
class Worker {
 public:
  using NodeType = Node<G>;
  using SampleType = Sample<G>;
  Worker(Host& host, uint32_t index)
      : host_(host),
        thread_(host.thread(index)),
        tree_(host.local<LocalTree<G>>()),
        pool_(host.local<WorkPool<G>>()),
        exchange_(host.local<CopyExchange<G>>()),
        evaluations_(host),
        playouts_(host, *this),
        shown_("mcts", "thread " + std::to_string(index), [this] { return counters_.values(); }) {}

  // Resets the worker for a new search. Called by worker 0, while this worker runs no rollout.
  void begin(uint64_t seed) {
    thread_.random = Random(seed);
    sampler_.reset();
    playouts_.begin();
    if constexpr (HasEvaluator<G>) evaluations_.begin(options().evaluation);
    before_ = totals();
  }

  // Runs a few rollouts, and evaluates positions in games with an Evaluator. Returns false if there
  // was nothing to do.
  bool work() {
    if constexpr (!HasEvaluator<G>) {
      const bool played = playouts_.run_one(pool_.stopping());
      // While rank 0 grows the tree alone, it counts the values that have arrived before each
      // rollout.
      return run_slice(tree_.spreads() ? kRolloutsPerPoll : 1) || played;
    } else {
      if (pool_.stopping()) {
        const bool cancelled = cancel_evaluations();
        return run_slice(kRolloutsPerPoll) || cancelled;
      }
      bool found = finish_evaluations();
      if (const uint32_t room = evaluations_.room(); room != 0) {
        found |= run_slice(std::min(room, kRolloutsPerPoll));
      }
      // A batch is evaluated when it is full, or when there is nothing else to do.
      if (!found || evaluations_.room() == 0) {
        const uint32_t submitted = evaluations_.submit();
        counters_.evaluations.add(submitted);
        counters_.evaluation_batches.add(submitted != 0 ? 1 : 0);
        found |= submitted != 0;
      }
      if (!found) evaluations_.wait();
      return found;
    }
  }
  // Returns true if work() would find something to do. Called by the thread of this worker.
  [[nodiscard]] bool has_work() const {
    if constexpr (HasEvaluator<G>) {
      if (evaluations_.has_work() || (pool_.stopping() && evaluations_.has_pending())) return true;
      if (evaluations_.room() == 0) return false;
    }
    return pool_.has_work() || playouts_.has_requests();
  }
  // Adds the root to the next batch, unless it is evaluated. Called by worker 0 of rank 0.
  void evaluate_root(NodeType& root) {
    if constexpr (HasEvaluator<G>) {
      if (root.claim_evaluation()) evaluations_.add_node({nullptr, &root, {}});
    }
  }
  // Ends the rollouts with pending evaluations, without a value. Returns false if there were none.
  bool cancel_evaluations() {
    if constexpr (HasEvaluator<G>) {
      if (!evaluations_.has_pending()) return false;
      evaluations_.cancel([&](const PendingRollout<G>& pending) {
        remove_visits<G>(pending.path, 1);
        counters_.deferred_selections.add();
        return_rollouts(*pending.job, 1);
      });
      note_evaluations();
      return true;
    }
    return false;
  }

  // Ends a ticket that gets no answer: of playouts, of a share (empty path), of the creation of a
  // node (no rollouts), or of a job, whose rollouts are removed from the visits of the path.
  void give_up(Ticket<G>& ticket) {
    if (ticket.playout) return playouts_.give_up(ticket);
    if (ticket.path.empty()) {
      pool_.shared(ticket.rank).fetch_sub(static_cast<int32_t>(ticket.rollouts));
      pool_.note_answer();
      return_rollouts(*ticket.job, ticket.rollouts);
      return;
    }
    const Step<G> last = ticket.path.back();
    if (ticket.rollouts == 0) {
      exchange_.end_creation(*last.node, last.move, {});
      end_pending(*ticket.job, 1);
      return;
    }
    last.node->drop_child(last.move, ticket.node);
    pool_.add_outstanding(ticket.rank, -static_cast<int32_t>(ticket.rollouts));
    remove_expected(ticket);
    remove_visits<G>(ticket.path, ticket.rollouts);
    pool_.note_answer();
    return_rollouts(*ticket.job, ticket.rollouts);
  }

  // Adds the counts of this worker since begin().
  void add_to(Statistics& sum) const {
    const Statistics now = totals();
    const auto add = [&](uint64_t Statistics::*one) { sum.*one += now.*one - before_.*one; };
    for (const auto& entry : RolloutCounters::entries()) add(entry.member);
    add(&Statistics::messages);
    add(&Statistics::bytes);
  }

 private:
  friend class RemotePlayouts<G, Worker>;

  // Returns the counts of this worker in all its searches.
  [[nodiscard]] Statistics totals() const {
    Statistics sum = counters_.read();
    if (thread_.aggregators != nullptr) {
      sum.messages = thread_.aggregators->messages();
      sum.bytes = thread_.aggregators->bytes();
    }
    return sum;
  }

  // Returns the worker of the calling thread.
  [[nodiscard]] static Worker& here() {
    return Host::local_here<PerThread<Worker>>()[Host::here().index];
  }
  [[nodiscard]] const SearchOptions& options() const { return tree_.options(); }

  // ---- Rollouts

  // Runs up to `most` rollouts. Returns false if there was none to run.
  bool run_slice(uint32_t most) {
    const uint64_t answers = pool_.answers();
    const bool stopping = pool_.stopping();
    if (!stopping && pool_.root_open()) give_shares();
    typename JobQueue<G>::Taken taken = pool_.jobs().take(most, stopping);
    if (taken.job == nullptr) {
      const bool root = pool_.root_open();
      if (root) {
        taken.job = &pool_.root_job();
        taken.rollouts = taken.job->take(most);
        if (taken.rollouts != 0) exchange_.spread_if_due();
      }
      if (taken.rollouts == 0) {
        const bool open = root || pool_.open_shares().load(std::memory_order_relaxed) > 0;
        pool_.set_idle_cause(open ? IdleCause::kAnswers : IdleCause::kNoShare);
        return false;
      }
    } else {
      if (stopping) {
        cancel(*taken.job, taken.rollouts);
        taken.rollouts = 0;
      }
    }
    // The pending operations keep the job alive. After the last one has ended, the Job object may
    // be reused for another job.
    bool deferred = false;
    bool waits = false;
    for (uint32_t i = 0; i < taken.rollouts && !deferred; ++i) {
      if (rollout(*taken.job)) continue;
      // This rollout was deferred: return it, and the rollouts that have not begun, to the job.
      put_back(*taken.job, taken.rollouts - i);
      deferred = true;
      waits = i == 0;
    }
    if (taken.last) end_pending(*taken.job, 1);
    if (thread_.aggregators != nullptr) thread_.aggregators->flush();
    if (!waits) return true;
    pool_.back_off(answers);
    pool_.set_idle_cause(IdleCause::kDeferred);
    return false;
  }

  // Runs one rollout of the job. Its pending operation ends here, or when an evaluation ends or the
  // answer of another process arrives. Returns false for a rollout of the root or of a share
  // that was deferred: then the operation stays pending, and the caller has to put it back.
  [[nodiscard]] bool rollout(Job<G>& job) {
    path_.clear();
    counters_.visits.add();
    NodeType* node = job.node;
    Copy<G>* copied = nullptr;  // the record of `node` if `node` is a copy
    if (job.share) {
      const auto root = exchange_.find_root();
      if (root.stale) return defer(job);
      copied = root.copy;
    }
    return descend(job, node, copied);
  }
  // Continues a rollout at a node that its path_ has reached. copied: see rollout(). Returns false
  // as rollout() does.
  [[nodiscard]] bool descend(Job<G>& job, NodeType* node, Copy<G>* copied) {
    for (;;) {
      if (const Outcome known = node->outcome(); known != Outcome::kOpen) {
        end_proved(job, known);
        return true;
      }
      if constexpr (HasEvaluator<G>) {
        if (!node->evaluated()) {
          if (node->claim_evaluation()) {
            evaluations_.add_node({&job, node, path_});
          } else {
            evaluations_.add_waiting({&job, node, path_});
          }
          return true;
        }
      }
      if constexpr (HasRefine<G>) {
        if (node->refinements() < kRefinements && !node->is_chance()) {
          const int level = node->refinements();
          const uint32_t due = level == 0 ? options().refine_visits : options().refine_again_visits;
          if (node->visits() >= due && node->claim_refinement(level)) {
            node->refine(level, tree_.sets_priors(*node));
            continue;
          }
        }
      }
      const int move = node->is_chance() ? choose_outcome(*node, thread_.random)
                                         : select_move(*node, options().selection);
      if (move < 0) {
        // All moves have verdicts, so that the outcome is proved. Or there are no moves: the game
        // has ended with a result that proves nothing.
        if (const Outcome known = node->resolve(); known != Outcome::kOpen) {
          end_proved(job, known);
        } else {
          counters_.completions.add();
          finish(job, path_, 1, internal::sum_of<G>(*node->state().result()), {}, Outcome::kOpen);
        }
        return true;
      }
      const uint32_t before = node->enter(move);
      path_.push_back({node, move});
      if constexpr (HasChance<G>) {
        // An outcome of chance, or a draw. Another thread may prune a move after its selection.
        if (node->closed(move) && node->verdict(move) != Verdict::kPruned) {
          end_proved(job, node->outcome(move));
          return true;
        }
      }
      const auto child = tree_.living_child(*node, move);
      if (child.is_local()) {
        node = child.local();
        copied = nullptr;
        continue;
      }
      if (child.is_remote()) {
        const auto copy = exchange_.find(child.remote(), before);
        if (copy.stale) return defer(job);
        if (copy.node != nullptr) {
          node = copy.node;
          copied = copy.copy;
          continue;
        }
      }
      if (child.is_creating() && before > options().sample_limit()) return defer(job);
      if (child.is_remote()) {
        if (pool_.is_busy(job, child.remote().rank, path_.front().node->visits(), options())) {
          if (!exchange_.sample_instead(child.remote(), before)) return defer(job);
          counters_.sampled_instead.add();
          sample(job, *node, move);
          return true;
        }
        hand_over(job, child.remote(), before);
        return true;
      }
      if (child.none() && copied != nullptr && !tree_.full()) {
        if (options().placement == Placement::kLocality) {
          if (before >= options().expand_visits) exchange_.offer_child(*copied, *node, move);
        } else if (before >= options().owner_expand_visits() && !ends(*node, move)) {
          exchange_.start_exchange(*copied, *node);  // the owner of the original creates the child
          if (before > options().sample_limit()) return defer(job);
        }
      }
      if (child.none() && copied == nullptr && before >= options().expand_visits) {
        if (NodeType* created = create_child(job, *node, move); created != nullptr) {
          node = created;
          continue;
        }
      }
      sample(job, *node, move);
      return true;
    }
  }

  // Defers a rollout: removes its visits, so that it can be repeated later. Returns false if this
  // process repeats it (see rollout()). The requester repeats the rollouts of other jobs.
  [[nodiscard]] bool defer(Job<G>& job) {
    remove_visits<G>(path_, 1);
    counters_.deferred_selections.add();
    if (job.root || job.share) return false;
    return_rollouts(job, 1);
    return true;
  }

  // Returns true if the game ends with this move. Such a move gets no child by
  // LocalTree::create_children().
  [[nodiscard]] static bool ends(const NodeType& node, int move) {
    return node.after(move).result().has_value();
  }
  // Ends a rollout that reached a position with a proved outcome.
  void end_proved(Job<G>& job, Outcome known) {
    // The node of the job is proved: the job needs no more rollouts. With other than two players
    // the verdict of its parent's move may stay open, and rollouts that choose the move have the
    // value of the proof.
    if (path_.empty() && (kTwoPlayers<G> || job.root || job.share)) {
      counters_.cancelled.add();
      if (!job.root) cancel(job, static_cast<uint32_t>(job.take_all()));
      return_rollouts(job, 1);
      return;
    }
    counters_.completions.add();
    finish(job, path_, 1, internal::sum_of<G>(internal::value_with<G>(known)), {}, known);
  }

  // Ends a rollout at the position after the last move of its path: by the result of the game, or
  // by playouts or value(). value() and evaluators see no chance position: outcomes are played
  // before.
  void sample(Job<G>& job, NodeType& node, int move) {
    G position = node.after(move);
    typename G::Move last = node.move(move);
    std::optional<ValueOf<G>> result = internal::checked_result(position);
    const Outcome proved = result ? outcome_of(*result) : Outcome::kOpen;
    if constexpr (HasChance<G> && (HasValue<G> || HasEvaluator<G>)) {
      if (const auto outcome = play_outcomes(position, thread_.random)) {
        last = *outcome;
        result = internal::checked_result(position);
      }
    }
    if (result) {
      counters_.completions.add();
      finish(job, path_, 1, internal::sum_of<G>(*result), {}, proved);
      return;
    }
    if constexpr (HasEvaluator<G>) {
      evaluations_.add_position({&job, nullptr, path_}, position);
      return;
    }
    if (job.root && playouts_.request(job, path_, position, last)) return;
    const internal::SumOf<G> sum =
        sampler_.run(position, last, node.state(), thread_.random, options());
    counters_.playouts.add(options().playouts_per_leaf);
    counters_.completions.add();
    finish(job, path_, 1, sum, sampler_.samples(), Outcome::kOpen);
  }

  // Adds the values of `count` rollouts to the nodes of their path, and ends their operations.
  // below: the proved outcome of the last move, or kOpen.
  void finish(Job<G>& job, std::span<const Step<G>> path, uint32_t count,
              const internal::SumOf<G>& sum, std::span<const SampleType> samples, Outcome below) {
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
    end_pending(job, count);
  }

  // ---- Evaluations (evaluations.h)

  // Completes the rollouts of evaluated batches, and continues those that waited for nodes.
  bool finish_evaluations() {
    bool found = false;
    if constexpr (HasEvaluator<G>) {
      while (const auto batch = evaluations_.poll()) {
        found = true;
        for (size_t i = 0; i < batch->pending.size(); ++i) {
          const PendingRollout<G>& pending = batch->pending[i];
          if (pending.job == nullptr) continue;
          counters_.completions.add();
          finish(*pending.job, pending.path, 1, internal::sum_of<G>(batch->positions[i].value), {},
                 Outcome::kOpen);
        }
        note_evaluations();
      }
      while (std::optional<PendingRollout<G>> ready = evaluations_.take_ready()) {
        path_ = std::move(ready->path);
        found = true;
        if (!descend(*ready->job, ready->node, nullptr)) put_back(*ready->job, 1);
      }
    }
    return found;  // true if there were any
  }
  // Lets the other workers continue the rollouts that wait for nodes which this worker evaluated.
  void note_evaluations() {
    pool_.note_answer();
    if (host_.threads() > 1) host_.wake_workers();
  }

  // ---- The end of rollouts and jobs

  // Puts rollouts of the root or of a share back, to be repeated. Their operations stay pending.
  void put_back(Job<G>& job, uint32_t count) {
    job.root ? job.put_back(count) : pool_.jobs().put_back(job, count);
  }
  // Ends rollouts of the job that were begun and have no value. Rollouts of the root are put back,
  // to be repeated, as long as the search goes on. Other rollouts are ended: the requester repeats
  // them.
  void return_rollouts(Job<G>& job, uint32_t count) {
    if (job.root && !pool_.stopping() && job.node->outcome() == Outcome::kOpen) {
      job.put_back(count);
      if (host_.threads() > 1) host_.wake_workers();
    } else {
      end_pending(job, count);
    }
  }
  // Ends rollouts that were never begun.
  void cancel(Job<G>& job, uint32_t count) {
    if (count != 0) end_pending(job, count);
  }
  // Ends pending operations. If this finishes the job, sends the answer.
  void end_pending(Job<G>& job, uint64_t count) {
    // Read before: when the root's job is finished, the search may change it.
    const bool root = job.root;
    if (!job.end_pending(count) || root) return;
    answer(job);
    if (job.share) pool_.open_shares().fetch_sub(1, std::memory_order_relaxed);
    pool_.jobs().recycle(job);
  }
  void answer(const Job<G>& job) {
    const JobAnswer<G> answer{job.ticket,
                              host_.rank(),
                              static_cast<uint32_t>(job.completed()),
                              job.value(),
                              job.node == nullptr ? Outcome::kOpen : job.node->outcome(),
                              tree_.full(),
                              job.node == nullptr || job.node->outcome() != Outcome::kOpen};
    // The answer goes to the thread of the requesting process with this thread's index, even if
    // another thread sent the request. So a thread needs channels only to threads of its own index.
    send_answer(host_.id(job.requester / host_.threads(), thread_.index), answer, job.samples());
  }
  void send_answer(ThreadId to, const JobAnswer<G>& answer, std::span<const SampleType> samples) {
    // The answer contains only the samples that fit into a call. Without the others the requester
    // has fewer AMAF statistics; without the answer it would wait for the rollouts forever.
    constexpr size_t kMost = PeerAggregators::kMostBufferBytes / sizeof(Sample<G>);
    thread_.aggregators->answer_buffer(
        to, [answer](void* data, uint64_t bytes) { here().on_answer(answer, data, bytes); },
        std::as_bytes(samples.first(std::min(samples.size(), kMost))));
  }

  // ---- Other processes

  // Requests rollouts from a remote node: this rollout and a batch of others of the same job.
  void hand_over(Job<G>& job, RemoteNode node, uint32_t before) {
    const uint32_t wanted =
        std::clamp<uint32_t>(before / options().batch_divisor, 1, options().max_batch);
    uint32_t rollouts = 1;
    if (wanted > 1) {
      // Half of the rollouts of a share stay here: this process runs them until the answer arrives.
      const uint64_t spare = job.share ? job.left() / 2 : wanted;
      const uint32_t more = job.take(static_cast<uint32_t>(std::min<uint64_t>(wanted - 1, spare)));
      if (more != 0) {
        for (const Step<G>& step : path_) step.node->enter(step.move, more);
      }
      rollouts += more;
      counters_.visits.add(more);
    }
    add_expected<G>(path_, rollouts, options().selection);
    const TraceScope trace("mcts", "hand over rollouts", "rollouts", rollouts);
    counters_.handed_over.add(rollouts);
    counters_.remote_selections.add();
    pool_.add_outstanding(node.rank, static_cast<int32_t>(rollouts));
    const SlotId ticket = pool_.tickets().add({&job, node.rank, rollouts, path_, node});
    const JobRequest request{
        {node.slot, node.generation}, rollouts, host_.id(host_.rank(), thread_.index), ticket};
    send_or_give_up(node.rank, ticket, [&](ThreadId thread) {
      return thread_.aggregators->call(thread, [request] { here().on_job(request); });
    });
  }

  // Rank 0: sends a share of the root's rollouts to each process that has too few.
  void give_shares() {
    Job<G>& job = pool_.root_job();
    for (uint32_t rank = 1; rank < host_.size() && !job.exhausted(); ++rank) {
      if (!exchange_.has_root_copy(rank).load(std::memory_order_relaxed) || !host_.alive(rank)) {
        continue;
      }
      const uint32_t rollouts = pool_.take_share(rank);
      if (rollouts == 0) continue;
      const SlotId ticket = pool_.tickets().add({&job, rank, rollouts, {}});
      const JobRequest request{
          {}, rollouts, host_.id(host_.rank(), thread_.index), ticket, /*share=*/true};
      send_or_give_up(rank, ticket, [&](ThreadId thread) {
        return thread_.aggregators->call(thread, [request] { here().on_job(request); });
      });
    }
  }
  void on_shared(const Ticket<G>& ticket, const JobAnswer<G>& answer) {
    pool_.shared(ticket.rank).fetch_sub(static_cast<int32_t>(ticket.rollouts));
    if (answer.full) tree_.note_full();
    pool_.note_answer();
    const uint32_t completed = std::min(answer.completed, ticket.rollouts);
    if (answer.useless) exchange_.has_root_copy(ticket.rank).store(false);
    counters_.visits.add(completed);
    counters_.handed_over.add(completed);
    if (completed != 0) finish(*ticket.job, {}, completed, answer.value, {}, Outcome::kOpen);
    if (completed != ticket.rollouts) return_rollouts(*ticket.job, ticket.rollouts - completed);
  }

  // Creates the child of a move. Returns the node if it is in this process. Returns nullptr if
  // another process creates it, or there is no memory.
  NodeType* create_child(Job<G>& job, NodeType& node, int move) {
    if (tree_.full()) return nullptr;
    const G position = node.after(move);
    const Rank rank = tree_.place(node, position, thread_.random);
    if (rank == host_.rank()) {
      return tree_.create_child(node, move, position, thread_.index);
    }
    if (!node.claim_child(move)) return nullptr;
    const TraceScope trace("mcts", "request child", "rank", rank);
    job.add_pending();
    const SlotId ticket = pool_.tickets().add({&job, rank, 0, {{&node, move}}});
    const Creation creation{host_.id(host_.rank(), thread_.index), ticket};
    send_or_give_up(rank, ticket, [&](ThreadId thread) {
      return thread_.aggregators->call_buffer(
          thread,
          [creation](void* data, uint64_t bytes) { here().on_create(creation, data, bytes); },
          std::as_bytes(std::span(&position, 1)));
    });
    return nullptr;
  }
  // Sends the request of a ticket. If the process is dead or dies, either this function or
  // SearchProcess::lost() ends the ticket, and tickets().take() ensures that only one of them does.
  // No ticket is missed: this function checks alive() after the ticket was entered, and lost() runs
  // after the process was marked as dead.
  template <typename Send>
  void send_or_give_up(Rank rank, SlotId ticket, Send&& send) {
    const bool sent = send(host_.id(rank, thread_.index));
    if (sent && host_.alive(rank)) return;
    if (std::optional<Ticket<G>> mine = pool_.tickets().take(ticket)) give_up(*mine);
  }

  // Handles a request to create a node; on_created() handles its answer.
  void on_create(const Creation& creation, const void* data, uint64_t bytes) {
    const auto obtained = tree_.create_requested(data, bytes, thread_.index);
    if (!obtained) return;
    if (obtained->created) counters_.nodes_created_remotely.add();
    const SlotId id = obtained->id;
    const bool created = obtained->node != nullptr;
    const Outcome outcome = created ? obtained->node->outcome() : Outcome::kOpen;
    const bool sent = thread_.aggregators->call(
        creation.requester, [ticket = creation.ticket, id, rank = host_.rank(), created, outcome] {
          here().on_created(ticket, id, rank, created, outcome);
        });
    if (!sent && created) tree_.discard_exported(id, thread_.index);
  }
  void on_created(SlotId name, SlotId id, uint32_t rank, bool created, Outcome outcome) {
    const TraceScope trace("mcts", "child created", "rank", rank);
    std::optional<Ticket<G>> ticket = pool_.tickets().take(name);
    if (!ticket) return;
    if (!created) tree_.note_full();
    const Step<G> step = ticket->path.back();
    const RemoteNode child{static_cast<uint16_t>(rank), static_cast<uint16_t>(id.generation),
                           id.slot};
    created = created && tree_.accepts(child);
    exchange_.end_creation(*step.node, step.move,
                           created ? typename NodeType::Ref(child) : typename NodeType::Ref());
    if (outcome != Outcome::kOpen) {
      step.node->prove(step.move, outcome);
      step.node->resolve();
    }
    end_pending(*ticket->job, 1);
  }

  void on_job(const JobRequest& request) {
    const TraceScope trace("mcts", "take rollouts", "rollouts", request.rollouts);
    Job<G>& job = pool_.jobs().new_job();
    job.requester = request.requester;
    job.ticket = request.ticket;
    job.root = false;
    job.share = request.share;
    if (job.share) pool_.open_shares().fetch_add(1, std::memory_order_relaxed);
    if (request.share) {
      job.node = exchange_.find_root().node;
    } else {
      job.node = tree_.exported().find(request.node).value_or(nullptr);
    }
    job.start(job.node != nullptr ? request.rollouts : 0);
    if (job.node == nullptr) {  // no node has this name (any more)
      end_pending(job, 1);
      return;
    }
    pool_.jobs().push(job);
    if (host_.threads() > 1) host_.wake_workers();
  }

  void on_answer(const JobAnswer<G>& answer, const void* data, uint64_t bytes) {
    if (!answer.is_possible(host_.size())) return internal::note_malformed("the answer of a job");
    const TraceScope trace("mcts", "take results", "rollouts", answer.completed);
    std::optional<Ticket<G>> ticket = pool_.tickets().take(answer.ticket);
    if (!ticket) return;  // give_up() has ended the ticket
    if (ticket->playout) return playouts_.on_answer(*ticket, answer, data, bytes);
    if (ticket->path.empty()) {
      on_shared(*ticket, answer);
      return;
    }
    if (answer.full) tree_.note_full();
    if (answer.useless && answer.outcome == Outcome::kOpen) {
      // The owner has no node with this name. Removes the name from the parent: otherwise the
      // repeated rollouts would request jobs from this node again.
      const Step<G> last = ticket->path.back();
      last.node->drop_child(last.move, ticket->node);
      exchange_.report_unknown(*last.node, last.move, ticket->node);
    }
    const uint32_t completed = std::min(answer.completed, ticket->rollouts);
    const uint32_t missing = ticket->rollouts - completed;
    pool_.add_outstanding(ticket->rank, -static_cast<int32_t>(ticket->rollouts));
    // If the remote job completed no rollout although its node exists and is not proved, it is
    // itself waiting for other processes. Then this process waits for another answer, too: a worker
    // that finds no rollout to run sleeps (WorkPool::has_work()), and does not retry rollouts that
    // would be deferred again.
    if (const uint64_t answers = pool_.answers();
        completed == 0 && !answer.useless && pool_.outstanding_sum() > 0) {
      pool_.back_off(answers);
    } else {
      pool_.note_answer();
    }
    remove_expected(*ticket);
    if (missing != 0) remove_visits<G>(ticket->path, missing);
    if (!decode_samples<G>(data, bytes, answered_)) internal::note_malformed("playouts");
    if (completed != 0 || answer.outcome != Outcome::kOpen) {
      finish(*ticket->job, ticket->path, completed, answer.value, answered_, answer.outcome);
    }
    if (missing != 0) return_rollouts(*ticket->job, missing);
  }

  Host& host_;
  HostThread& thread_;
  LocalTree<G>& tree_;
  WorkPool<G>& pool_;
  CopyExchange<G>& exchange_;
  Sampler<G> sampler_;
  Evaluations<G> evaluations_;
  RemotePlayouts<G, Worker> playouts_;
  std::vector<Step<G>> path_;
  std::vector<SampleType> answered_;
  RolloutCounters counters_;
  CounterSet shown_;   // last: reads counters_
  Statistics before_;  // totals() at the beginning of the search
};

}  // namespace cariama::mcts

#endif  // CARIAMA_MCTS_ENGINE_WORKER_H_
