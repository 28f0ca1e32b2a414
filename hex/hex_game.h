// HexGame: Hex as a game for the search framework (mcts/game.h): positions, moves, playouts, and
// knowledge about positions that needs no search. Contains no communication.
//
// The state contains only stones. When a node is created, the cells whose colour is decided
// (patterns.h) are filled in, so that the search does not consider them.
#ifndef CARIAMA_HEX_HEX_GAME_H_
#define CARIAMA_HEX_HEX_GAME_H_

#include <bit>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "hex/board.h"
#include "hex/connections.h"
#include "hex/patterns.h"
#include "hex/playout.h"
#include "hex/priors.h"
#include "mcts/game.h"
#include "mcts/random.h"

namespace cariama::hex {

// The knowledge of Hex that a search uses beside the rules; each part can be disabled for
// ablations. It is a part of the state, so that it is the same in all processes.
struct HexKnowledge {
  bool bridges = true;    // playouts that save bridges; false: uniform playouts
  bool fill_in = true;    // dead and captured cells, dominated moves
  bool must_play = true;  // must-play regions and connections, at nodes with many visits
  bool priors = true;     // learned priors (priors.h)
};

// kWords: number of words of the board, at least cells / 64. Player 0 is Black. The swap is not
// a move of this game: opening.h decides about it by the value of the position.
template <int kWords>
class HexGame {
 public:
  using Move = hex::Move;
  static constexpr int kMaxMoves = kWords * 64 < kMaxCells ? kWords * 64 : kMaxCells;
  static constexpr int kAmafIds = kMaxMoves;
  static int amaf_id(Move move) { return move; }

  HexGame() = default;
  explicit HexGame(const Board& board, const HexKnowledge& knowledge = {})
      : board_(without_swap(board)), knowledge_(knowledge) {}

  [[nodiscard]] const BasicBoard<kWords>& board() const { return board_; }

  [[nodiscard]] int to_move() const { return static_cast<int>(board_.to_move()); }
  int moves(std::span<Move> out) const {
    int count = 0;
    board_.empty().for_each([&](int cell) { out[count++] = static_cast<Move>(cell); });
    return count;
  }
  void play(Move move) {
    board_.play(move);
    last_ = move;
  }
  [[nodiscard]] std::optional<float> result() const {
    const std::optional<Color> winner = board_.winner();
    if (!winner) return std::nullopt;
    return *winner == Color::kBlack ? 1.0F : 0.0F;
  }
  [[nodiscard]] uint64_t key() const { return board_.key(); }

  // Fills in decided cells, omits dominated moves, and sets the priors of the others. Takes about
  // 10 µs on 11x11.
  int expand(std::span<mcts::Candidate<Move>> out) {
    Bits<kWords> left_out;
    if (knowledge_.fill_in) {
      board_ = filled(board_, fill_in(board_));
      if (board_.winner()) return 0;
      left_out = dominated(board_, board_.to_move());
    }
    int count = 0;
    board_.empty().without(left_out).for_each(
        [&](int cell) { out[count++] = {static_cast<Move>(cell)}; });
    if (knowledge_.priors) {
      Move moves[kMaxMoves];
      float priors[kMaxMoves];
      for (int i = 0; i < count; ++i) moves[i] = out[i].move;
      const auto size = static_cast<size_t>(count);
      move_priors(board_, last_, std::span(moves, size), std::span(priors, size));
      for (int i = 0; i < count; ++i) out[i].prior = priors[i];
    }
    return count;
  }

  // Marks a move with a proved win, or else all moves outside of the must-play region as lost.
  // Takes about 0.1 ms on 11x11 at level 0, some milliseconds at level 1.
  void refine(std::span<const mcts::Candidate<Move>> moves, std::span<mcts::Verdict> verdicts,
              int level) const {
    if (!knowledge_.must_play) return;
    const Color color = board_.to_move();
    Move wins = winning_move(board_, color).move;
    Bits<kWords> region;
    if (wins == kNoMove) region = hex::must_play(board_, color).cells;
    if (wins == kNoMove && region.any()) {
      const Reach reach = level == 0 ? Reach::kStones : Reach::kCells;
      wins = find_connections(board_, color, reach, kEffort).move;
      region &= find_connections(board_, opponent(color), reach, kEffort).threatened;
    }
    for (size_t i = 0; i < moves.size(); ++i) {
      if (wins != kNoMove) {
        if (moves[i].move == wins) verdicts[i] = mcts::Verdict::kWins;
      } else if (!region.test(moves[i].move)) {
        verdicts[i] = mcts::Verdict::kLoses;
      }
    }
  }

  // The playouts of one thread.
  class Playouts {
   public:
    Playouts(const HexGame& root, mcts::Random& random)
        : policy_(root.board_.cols(), root.board_.rows()), uniform_(random.next()) {}

    float run(const HexGame& game, std::optional<Move> last, mcts::Random& random,
              mcts::Owned<kAmafIds>* owned) {
      const BasicBoard<kWords>& board = game.board_;
      Color winner;
      Bits<kWords> black;
      if (game.knowledge_.bridges) {
        policy_.prepare(board);
        mcts::Random numbers(random.next());
        winner = policy_.run(numbers, last.value_or(kNoMove));
        black = policy_.template black_cells<kWords>();
      } else {
        rows_.clear();
        const UniformResult result = uniform_.run_with_boards(board, 1, rows_);
        winner = result.black_wins != 0 ? Color::kBlack : Color::kWhite;
        for (int row = 0; row < board.rows(); ++row) {
          for (uint32_t rest = rows_[static_cast<size_t>(row)]; rest != 0; rest &= rest - 1) {
            black.set(row * board.cols() + std::countr_zero(rest));
          }
        }
      }
      const Bits<kWords> all(board.geometry().all);
      for (int i = 0; i < mcts::Owned<kAmafIds>::kWords; ++i) {
        owned->words[0][i] = black.words[i];
        owned->words[1][i] = all.words[i] & ~black.words[i];
      }
      return winner == Color::kBlack ? 1.0F : 0.0F;
    }

   private:
    PolicyPlayouts policy_;
    UniformPlayouts uniform_;
    std::vector<uint32_t> rows_;
  };

  friend bool operator==(const HexGame& a, const HexGame& b) { return a.board_ == b.board_; }

 private:
  static constexpr int kEffort = 1000;  // see find_connections()

  [[nodiscard]] static BasicBoard<kWords> without_swap(const Board& board) {
    BasicBoard<kWords> plain(board.cols(), board.rows());
    plain.set_position(Bits<kWords>(board.stones(Color::kBlack)),
                       Bits<kWords>(board.stones(Color::kWhite)), board.to_move());
    return plain;
  }

  BasicBoard<kWords> board_;
  Move last_ = kNoMove;  // the last move; kNoMove at the root of a search
  HexKnowledge knowledge_;
};

static_assert(mcts::Game<HexGame<2>> && mcts::HasAmaf<HexGame<2>> && mcts::HasExpand<HexGame<2>> &&
              mcts::HasRefine<HexGame<2>> && mcts::HasPlayouts<HexGame<2>>);

}  // namespace cariama::hex

#endif  // CARIAMA_HEX_HEX_GAME_H_
