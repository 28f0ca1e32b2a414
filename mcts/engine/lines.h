// Lines: the principal variations of the moves of the root (MoveResult::line), for a result and for
// a progress report.
//
// A line leads through nodes of several processes. Each process follows it through its own nodes.
// At the first node of another process rank 0 requests the continuation from the owner, by the name
// of the node. The answer has the moves up to the next node of another process, and the name of
// that node. So rank 0 knows at each moment for which process a line waits, and each answer makes
// the line longer by at least one move. Copies of nodes are not used: only the owner has the counts
// of all processes, and the children that third processes have created.
//
// A line ends at a node of a process that is dead, is late with a command, or does not answer in
// time. Messages: 2 for each entry of a line into another process than rank 0, so at most
// 2 * kMostFollowed * (kMostMoves - 1).
#ifndef CARIAMA_MCTS_ENGINE_LINES_H_
#define CARIAMA_MCTS_ENGINE_LINES_H_

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "dtutils/wait.h"
#include "mcts/engine/final_choice.h"
#include "mcts/engine/node.h"
#include "mcts/engine/tree.h"
#include "mcts/host.h"
#include "mcts/options.h"

namespace cariama::mcts {

// Not thread-safe: only worker 0 of each process uses it. A pointer to a node is used within one
// function only, and in between only worker 0 frees nodes that have a parent.
template <Game G>
class Lines final : public LocalInstance {
 public:
  using Move = typename G::Move;
  static constexpr size_t kMostMoves = 64;  // of a line
  // Number of lines that lead on in other processes: those of the best moves.
  static constexpr size_t kMostFollowed = 32;
  // The time that a result waits for lines, and a progress report for lines and for statistics.
  static constexpr std::chrono::milliseconds kMargin{50};

  explicit Lines(Host& host) : host_(host), tree_(host.local<LocalTree<G>>()) {}

  [[nodiscard]] static Lines& here() { return Host::local_here<Lines>(); }

  // ---- In rank 0.

  // Begins the lines of all moves of the root. Does not wait. late: processes that get no request.
  void begin(const Node<G>& root, const ChoiceOptions& choice, std::span<const Rank> late) {
    drop();
    late_.assign(late.begin(), late.end());
    lines_.resize(static_cast<size_t>(root.size()));
    size_t place = 0;
    for (const int move : ordered_moves(root, choice)) {
      Line& line = lines_[static_cast<size_t>(move)];
      line.moves.push_back(root.move(move));
      const std::optional<RemoteNode> next = extend(line.moves, kMostMoves, root.child(move));
      if (place++ < kMostFollowed) request(static_cast<size_t>(move), next);
    }
    flush();
  }
  // Returns true if no line waits for an answer.
  [[nodiscard]] bool ended() const { return waiting_ == 0; }
  // As begin(). Blocks until the lines have ended, at most for kMargin, and runs calls meanwhile.
  void follow(const Node<G>& root, const ChoiceOptions& choice, std::span<const Rank> late) {
    begin(root, choice, late);
    static_cast<void>(host_.work_until([&] { return ended(); }, deadline_after(kMargin)));
  }
  // Returns the lines, by the index of their move in the root, as far as they are known. Later
  // answers are dropped.
  [[nodiscard]] std::vector<std::vector<Move>> take() {
    std::vector<std::vector<Move>> lines;
    for (Line& line : lines_) lines.push_back(std::move(line.moves));
    drop();
    return lines;
  }
  // The lines that wait for a dead process end.
  void lost(Rank rank) override {
    for (Line& line : lines_) {
      if (line.owner == rank) stop_waiting(line);
    }
  }

 private:
  using Ref = typename Node<G>::Ref;
  struct Line {
    std::vector<Move> moves;
    std::optional<Rank> owner;  // the process that has to answer
  };
  struct Request {
    uint64_t number = 0;  // of the call of begin()
    uint32_t line = 0;    // index in lines_
    uint32_t most = 0;    // moves in the answer
    SlotId node;          // in the table of its owner
  };
  // The moves follow.
  struct Answer {
    uint64_t number = 0;
    uint32_t line = 0;
    std::optional<RemoteNode> next;  // the node of another process to which the moves lead
  };

  // Appends the moves of a line that begins at `child`, up to `most` moves in `moves`. Returns the
  // name of the first node of another process, or nullopt if the line ends before.
  [[nodiscard]] std::optional<RemoteNode> extend(std::vector<Move>& moves, size_t most, Ref child) {
    while (moves.size() < most) {
      const Node<G>* node = nullptr;
      if (child.is_local()) node = child.local();
      if (child.is_remote()) {
        const RemoteNode name = child.remote();
        if (name.rank != host_.rank()) return name;
        node = tree_.exported().find({name.slot, name.generation}).value_or(nullptr);
      }
      const int best = node == nullptr ? -1 : best_move(*node);
      if (best < 0) break;
      moves.push_back(node->move(best));
      child = node->child(best);
    }
    return std::nullopt;
  }
  // Returns a move that is proved to win, or else the most visited one; -1 if the line ends here.
  [[nodiscard]] static int best_move(const Node<G>& node) {
    if (node.size() == 0 || node.is_chance()) return -1;
    const auto key = [&](int at) {
      return std::pair(node.verdict(at) == Verdict::kWins, node.visits(at));
    };
    int best = 0;
    for (int i = 1; i < node.size(); ++i) {
      if (key(i) > key(best)) best = i;
    }
    return node.visits(best) != 0 ? best : -1;
  }

  // Requests the continuation of a line from the owner of the node `next`.
  void request(size_t at, std::optional<RemoteNode> next) {
    if (!next) return;
    const Rank owner = next->rank;
    if (!host_.alive(owner) || std::ranges::count(late_, owner) != 0) return;
    Line& line = lines_[at];
    line.owner = owner;
    ++waiting_;
    const Request request{number_,
                          static_cast<uint32_t>(at),
                          static_cast<uint32_t>(kMostMoves - line.moves.size()),
                          {next->slot, next->generation}};
    const bool sent = Host::here().aggregators->call(host_.id(owner, 0),
                                                     [request] { here().on_request(request); });
    if (!sent) stop_waiting(line);
  }
  void on_answer(const Answer& answer, const void* data, uint64_t bytes) {
    if (answer.number != number_ || answer.line >= lines_.size()) return;
    Line& line = lines_[answer.line];
    if (!line.owner) return;
    stop_waiting(line);
    const size_t known = line.moves.size();
    const uint64_t count = bytes / sizeof(Move);
    if (bytes % sizeof(Move) != 0 || count > kMostMoves - known) {
      return internal::note_malformed("a line");
    }
    // An answer without moves ends the line. Otherwise two processes could name each other's nodes
    // without end.
    if (count == 0) return;
    line.moves.resize(known + count);
    std::memcpy(static_cast<void*>(line.moves.data() + known), data, bytes);
    if (!answer.next || !tree_.accepts(*answer.next)) return;
    request(answer.line, extend(line.moves, kMostMoves, Ref(*answer.next)));
    flush();
  }
  void stop_waiting(Line& line) {
    if (line.owner) --waiting_;
    line.owner.reset();
  }
  // Drops the lines, and the answers to the requests that have been sent for them.
  void drop() {
    ++number_;
    waiting_ = 0;
    lines_.clear();
  }
  static void flush() {
    if (PeerAggregators* own = Host::here().aggregators.get(); own != nullptr) own->flush();
  }

  // ---- In the process that owns a node.

  // Answers with no moves if the node does not exist any more. Only rank 0 sends requests.
  void on_request(const Request& request) {
    constexpr size_t kMost =
        std::min<size_t>(kMostMoves, PeerAggregators::kMostBufferBytes / sizeof(Move));
    Answer answer{request.number, request.line, std::nullopt};
    std::vector<Move> moves;
    if (const std::optional<Node<G>*> node = tree_.exported().find(request.node)) {
      answer.next = extend(moves, std::min<size_t>(request.most, kMost), Ref(*node));
    }
    static_cast<void>(Host::here().aggregators->answer_buffer(
        host_.id(0, 0),
        [answer](void* data, uint64_t bytes) { here().on_answer(answer, data, bytes); },
        std::as_bytes(std::span(moves))));
    flush();
  }

  Host& host_;
  LocalTree<G>& tree_;
  uint64_t number_ = 0;      // of begin() and take() calls
  std::vector<Line> lines_;  // by the index of their move in the root
  std::vector<Rank> late_;   // get no request
  size_t waiting_ = 0;       // number of lines with an owner
};

}  // namespace cariama::mcts

#endif  // CARIAMA_MCTS_ENGINE_LINES_H_
