// RemotePlayouts: the playouts that other processes run for rank 0 while the tree is small.
//
// In a small tree nearly all rollouts pass through the same few nodes. If several processes select
// moves there, each one decides without the latest values of the others. So until the root has
// SearchOptions::spread_visits visits, by default in a whole short search, only the workers of
// rank 0 select moves, create nodes and update them. A rollout of the root that ends with playouts
// or value() requests these from a process that has no copy of the root:
//
//   worker i of rank 0                           worker i of another process
//   request()                     ── position →  on_request(): appends it to its list
//   ... further rollouts ...                     run_one(): runs the playouts or value()
//   on_answer(): ends the rollout ← JobAnswer ─
//
// A rollout in flight counts as in WU-UCT (Liu et al. 2020): the nodes of its path have its visit,
// and as its value the one that their moves are expected to have, whatever
// SelectionOptions::virtual_loss is. Each worker of another process has at most
// SearchOptions::playouts_in_flight requests, so that it has the next one when it ends one. Without
// a process that has room, the worker of rank 0 runs the playouts itself.
//
// A process gets requests until it has its copy of the root (copy_exchange.h), so also between the
// announcement of the root and the arrival of the copy.
#ifndef CARIAMA_MCTS_ENGINE_REMOTE_PLAYOUTS_H_
#define CARIAMA_MCTS_ENGINE_REMOTE_PLAYOUTS_H_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "dtutils/trace.h"
#include "mcts/engine/chance.h"
#include "mcts/engine/job.h"
#include "mcts/engine/move_records.h"
#include "mcts/engine/node.h"
#include "mcts/engine/peer_aggregators.h"
#include "mcts/engine/slot_table.h"
#include "mcts/game.h"
#include "mcts/host.h"
#include "mcts/options.h"

namespace cariama::mcts {

// The part of one worker. Requires: Owner is a Worker of the game G that has this object as its
// member `playouts_`. Not thread-safe: only the worker uses it, except for begin() and give_up().
template <Game G, typename Owner>
class RemotePlayouts {
 public:
  RemotePlayouts(Host& host, Owner& worker) : worker_(worker), in_flight_(host.size()) {}

  // Begins a search. Called by worker 0. Requires: no request of this worker is in flight.
  void begin() {
    std::ranges::fill(in_flight_, 0U);
    all_have_copies_ = false;
  }

  // ---- In rank 0.

  // Requests the playouts of a rollout of the root's job. position: has no result, and is the one
  // after the moves of `path` (in games with value() also after outcomes of chance). last: its last
  // move or outcome. Returns false if no process has room for a request. Throws std::runtime_error
  // if the game returned no player to move: the other process would ignore the position.
  [[nodiscard]] bool request(Job<G>& job, std::vector<Step<G>>& path, const G& position,
                             typename G::Move last) {
    const Rank rank = choose();
    if (rank == 0) return false;
    if (!Node<G>::is_possible(position)) {
      internal::refuse_player(position.to_move(), players<G>());
    }
    SelectionOptions expected = worker_.options().selection;
    expected.virtual_loss = 0;
    add_expected<G>(path, 1, expected);
    worker_.counters_.handed_over.add();
    ++in_flight_[rank];
    const SlotId ticket =
        worker_.pool_.tickets().add({&job, rank, 1, path, RemoteNode{}, /*playout=*/true});
    const Request request{worker_.host_.id(worker_.host_.rank(), worker_.thread_.index), ticket,
                          last};
    worker_.send_or_give_up(rank, ticket, [&](ThreadId thread) {
      return worker_.thread_.aggregators->call_buffer(
          thread,
          [request](void* data, uint64_t bytes) {
            Owner::here().playouts_.on_request(request, data, bytes);
          },
          std::as_bytes(std::span(&position, 1)));
    });
    return true;
  }
  // Ends the rollout of a ticket that was answered.
  void on_answer(const Ticket<G>& ticket, const JobAnswer<G>& answer, const void* data,
                 uint64_t bytes) {
    uint32_t& in_flight = in_flight_[ticket.rank];
    if (in_flight != 0) --in_flight;  // 0: the answer went to a worker that has not requested it
    if (answer.completed == 0) return give_up(ticket);
    remove_expected(ticket);
    if (!decode_samples<G>(data, bytes, answered_)) internal::note_malformed("playouts");
    worker_.finish(*ticket.job, ticket.path, 1, answer.value, answered_, Outcome::kOpen);
  }
  // Ends the rollout of a ticket without a value: the rollout is repeated. Thread-safe. If the
  // process has died, it keeps its count of requests in flight: it gets no more of them.
  void give_up(const Ticket<G>& ticket) {
    remove_expected(ticket);
    remove_visits<G>(ticket.path, 1);
    worker_.return_rollouts(*ticket.job, 1);
  }

  // ---- In the other processes.

  // Returns true if run_one() would find a request. Only calls that the worker itself runs add
  // requests, so that it sees each one before it sleeps.
  [[nodiscard]] bool has_requests() const { return !requested_.empty(); }
  // Runs the playouts of the oldest request and answers it. stopping: answers without playouts.
  // Returns false if there is no request.
  bool run_one(bool stopping) {
    if (requested_.empty()) return false;
    const Requested one = requested_.front();
    requested_.pop_front();
    JobAnswer<G> answer;
    answer.ticket = one.request.ticket;
    answer.rank = worker_.host_.rank();
    std::span<const Sample<G>> samples;
    if (!stopping) {
      const TraceScope trace("mcts", "run requested playouts");
      const SearchOptions& options = worker_.options();
      worker_.counters_.visits.add();
      answer.value = worker_.sampler_.run(one.position, one.request.last, one.position,
                                          worker_.thread_.random, options);
      answer.completed = 1;
      samples = worker_.sampler_.samples();
      worker_.counters_.playouts.add(options.playouts_per_leaf);
      worker_.counters_.completions.add();
    }
    worker_.send_answer(one.request.requester, answer, samples);
    worker_.thread_.aggregators->flush();
    return true;
  }

 private:
  // The position follows.
  struct Request {
    ThreadId requester;
    SlotId ticket;
    typename G::Move last;
  };
  struct Requested {
    Request request;
    G position;
  };

  // Returns the process with the fewest requests of this worker in flight, of those that have room
  // and no copy of the root. Returns 0 if there is none.
  [[nodiscard]] Rank choose() {
    const SearchOptions& options = worker_.options();
    if (options.spread_visits == 0 || options.playouts_in_flight == 0) return Rank(0);
    // The position of such a game does not fit into a call.
    if (all_have_copies_ || sizeof(G) > PeerAggregators::kMostBufferBytes) return Rank(0);
    const auto processes = static_cast<uint32_t>(in_flight_.size());
    uint32_t chosen = 0;
    uint32_t least = options.playouts_in_flight;
    all_have_copies_ = true;
    uint32_t rank = last_;
    for (uint32_t i = 1; i < processes && least != 0; ++i) {
      rank = rank + 1 < processes ? rank + 1 : 1;
      if (!worker_.host_.alive(rank)) continue;
      if (worker_.exchange_.has_root_copy(rank).load(std::memory_order_relaxed)) continue;
      all_have_copies_ = false;
      if (in_flight_[rank] >= least) continue;
      least = in_flight_[rank];
      chosen = rank;
    }
    if (chosen != 0) last_ = chosen;
    return Rank(chosen);
  }
  void on_request(const Request& request, const void* data, uint64_t bytes) {
    const TraceScope trace("mcts", "take request for playouts");
    const std::optional<G> position = decode_position<G>(data, bytes);
    if (!position || !has_playouts(*position) || !Node<G>::is_possible(*position)) {
      return internal::note_malformed("the position of a playout");
    }
    requested_.push_back({request, *position});
  }
  // Returns true if rollouts may end in this position with playouts or value(): the game has not
  // ended, and value() sees no chance position.
  [[nodiscard]] static bool has_playouts(const G& position) {
    if (position.result().has_value()) return false;
    return !(HasValue<G> || HasEvaluator<G>) || !internal::is_chance(position);
  }

  Owner& worker_;
  // Rank 0:
  std::vector<uint32_t> in_flight_;  // by rank
  uint32_t last_ = 0;                // the rank that choose() has returned last
  // No living process lacks a copy of the root, so that request() need not look for one again.
  bool all_have_copies_ = false;
  std::vector<Sample<G>> answered_;
  // Other ranks:
  std::deque<Requested> requested_;
};

}  // namespace cariama::mcts

#endif  // CARIAMA_MCTS_ENGINE_REMOTE_PLAYOUTS_H_
