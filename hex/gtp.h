// GtpSession: the Go Text Protocol (GTP), version 2, in the form that Hex programs use: HexGui,
// Benzene's twogtp, match referees.
//
//   GtpSession session(engine, [](std::string_view text) { write(1, ...); });
//   session.execute("boardsize 11 11");
//   session.execute("genmove b");             // "= f6\n\n"
//
// run_gtp() (gtp_stream.h) serves a session on a pair of file descriptors and reads while a search
// runs.
//
// A line is `[id] command arguments`. The answer is `=[id] text` or `?[id] message`, and an empty
// line. The session writes nothing else, except live output of a search if it is enabled. Only
// `quit` ends the session. docs/hex.md lists the commands.
#ifndef CARIAMA_HEX_GTP_H_
#define CARIAMA_HEX_GTP_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "hex/engine.h"
#include "hex/game_clock.h"
#include "hex/game_record.h"
#include "hex/opening.h"
#include "hex/solver.h"

namespace cariama::hex {

struct GtpOptions {
  int cols = 11;
  int rows = 11;
  SwapRule swap = SwapRule::kOff;
  // Limits of a genmove. A clock (time_settings, time_left) replaces limits.seconds. A genmove
  // takes its time from the clock of its color.
  SearchLimits limits{.seconds = 5};
  // genmove answers `resign` if the win rate of the engine's best move is lower than this, or the
  // move is proved to lose. 0: it never resigns.
  double resign_below = 0;
  bool live_graphics = false;  // write gogui-gfx blocks during genmove
  double live_interval = 0.5;  // seconds between two of these blocks
  // After a genmove, search the new position until the next line arrives.
  bool ponder = false;
  bool files = true;           // loadsgf, savesgf and exec may access files
  double analyze_seconds = 0;  // limit for lz-analyze and kata-analyze; 0: until the next line
  double solve_seconds = 30;   // limit for dfpn-solve-state
  SolverOptions solver{};      // for dfpn-solve-state and swap decisions on small boards
  uint64_t solve_nodes = 0;    // limit for dfpn-solve-state; 0: no limit
};

// Ends a running search from another thread. `# interrupt` ends any search. Any line, and the end
// of the input, ends an analysis. Lines are numbered from 1, in the order in which they are read.
// Thread-safe.
class GtpInterrupts {
 public:
  // Called by the reader: it has read line `number`. interrupt: the line ends the search of an
  // earlier line.
  void received(uint64_t number, bool interrupt);
  // Called by the reader: the input has ended. Ends an analysis. A genmove continues within its
  // limits.
  void ended();

  // Called by the session: it executes line `number` now.
  void executing(uint64_t number);
  // Called by the session: a search begins or ends. analysis: any later line ends the search.
  void search_begins(bool analysis);
  void search_ends();
  [[nodiscard]] const std::atomic<bool>& stop() const { return stop_; }

 private:
  void update();

  std::atomic<bool> stop_{false};
  std::mutex mutex_;  // guards the members below
  uint64_t received_ = 0;
  uint64_t interrupted_ = 0;
  uint64_t executing_ = 0;
  bool ended_ = false;
  bool searching_ = false;
  bool analysis_ = false;
};

class GtpSession {
 public:
  // Receives complete answers and blocks of live output, in order. The calling thread is the one
  // that called execute(), or the one in which the engine reports its progress.
  using Output = std::function<void(std::string_view)>;

  // Requires: `engine` and `interrupts` (nullptr is allowed) outlive the session.
  GtpSession(Engine& engine, Output output, const GtpOptions& options = {},
             GtpInterrupts* interrupts = nullptr);

  // Executes one line, given without its end. Blocks until the command has completed. Returns false
  // after `quit`.
  bool execute(std::string_view line);
  // Called between two lines. After a genmove, if GtpOptions::ponder is set, searches the position
  // until the next line arrives. An engine that keeps its tree can reuse this search after the
  // opponent's move.
  void ponder();

  [[nodiscard]] const GameRecord& game() const { return game_; }

 private:
  using Arguments = std::vector<std::string>;
  using Answer = absl::StatusOr<std::string>;
  struct Command {
    Answer (GtpSession::*run)(const Arguments&);
    const char* name;
  };
  static const Command kCommands[];
  static const Command* find_command(std::string_view name);

  // One method for each command or group of commands; arguments[0] is the command.
  Answer protocol_version(const Arguments& arguments);
  Answer name(const Arguments& arguments);
  Answer version(const Arguments& arguments);
  Answer list_commands(const Arguments& arguments);
  Answer known_command(const Arguments& arguments);
  Answer quit(const Arguments& arguments);
  Answer boardsize(const Arguments& arguments);
  Answer clear_board(const Arguments& arguments);
  Answer play(const Arguments& arguments);
  Answer play_game(const Arguments& arguments);
  Answer undo(const Arguments& arguments);
  Answer genmove(const Arguments& arguments);
  Answer reg_genmove(const Arguments& arguments);
  Answer showboard(const Arguments& arguments);
  Answer final_score(const Arguments& arguments);
  Answer all_legal_moves(const Arguments& arguments);
  Answer time_settings(const Arguments& arguments);
  Answer time_left(const Arguments& arguments);
  Answer set_random_seed(const Arguments& arguments);
  Answer clear_cache(const Arguments& arguments);
  Answer load_sgf_file(const Arguments& arguments);
  Answer save_sgf_file(const Arguments& arguments);
  Answer exec(const Arguments& arguments);
  Answer analyze(const Arguments& arguments);
  Answer analyze_commands(const Arguments& arguments);
  Answer solve_state(const Arguments& arguments);
  Answer show_bridges(const Arguments& arguments);
  Answer show_inferior(const Arguments& arguments);
  Answer show_must_play(const Arguments& arguments);
  Answer show_visits(const Arguments& arguments);
  Answer param_game(const Arguments& arguments);
  Answer param_search(const Arguments& arguments);

  void respond(std::string_view id, const Answer& answer);
  void new_game(int cols, int rows);
  Answer play_move(std::string_view color, std::string_view move);
  // Searches and returns the best move for `color`, or nullopt to resign. Does not play the move.
  absl::StatusOr<std::optional<Move>> think(Color color);
  // Proves whether the move should be a swap, within a part of `limits`. Leaves the rest there.
  // Returns nullopt if the board allows no swap, or without a proof.
  std::optional<bool> prove_swap(const Board& board, SearchLimits& limits);
  SearchReport search(Board board, Color color, const SearchLimits& limits, bool analysis,
                      double interval, const std::function<void(const SearchReport&)>& progress);
  [[nodiscard]] GameClock& clock(Color color) { return clock_[static_cast<int>(color)]; }
  // Starts both clocks again.
  void set_clocks() { clock_[0] = clock_[1] = GameClock(time_settings_); }
  [[nodiscard]] SearchLimits move_limits(Color color);

  Engine& engine_;
  Output output_;
  GtpOptions options_;
  GtpInterrupts* interrupts_;
  GtpInterrupts no_interrupts_;
  GameRecord game_;
  std::optional<Color> resigned_;
  SearchReport last_report_;
  bool moved_ = false;                       // the last line was a genmove
  std::optional<Solver> solver_;             // created at the first use, since it has a large table
  GameClock clock_[2];                       // by Color
  TimeSettings time_settings_{.period = 1};  // no limit
  std::string current_id_;
  bool streaming_ = false;  // the command has written its answer itself, except the empty line
  bool quit_ = false;
  int exec_depth_ = 0;
};

}  // namespace cariama::hex

#endif  // CARIAMA_HEX_GTP_H_
