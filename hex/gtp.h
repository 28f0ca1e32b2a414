// The Go Text Protocol, version 2, as Hex tools speak it: HexGui, Benzene's twogtp, match referees.
//
//   GtpSession session(engine, [](std::string_view text) { write(1, ...); });
//   session.execute("boardsize 11 11");
//   session.execute("genmove b");             // "= f6\n\n"
//
// run_gtp() (gtp_stream.h) does it on a pair of file descriptors, reading while a search runs.
//
// A line is `[id] command arguments`; the answer is `=[id] text` or `?[id] message`, and an empty
// line. Nothing else is ever written, except live output of a search where it was asked for. No
// input makes the session end but `quit`. docs/hex.md lists the commands.
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
#include "hex/game_record.h"
#include "hex/opening.h"
#include "hex/solver.h"

namespace cariama::hex {

struct GtpOptions {
  int cols = 11;
  int rows = 11;
  SwapRule swap = SwapRule::kOff;
  SearchLimits limits{.seconds =
                          5};  // of a genmove, unless a clock runs (time_settings, time_left)
  // genmove answers `resign` if the engine's best move wins less often, or is proven to lose. 0:
  // never.
  double resign_below = 0;
  bool live_graphics = false;  // gogui-gfx blocks during genmove
  double live_interval = 0.5;  // seconds between them
  // After a genmove thinks on while the other side does, until the next line.
  bool ponder = false;
  bool files = true;           // loadsgf, savesgf and exec may touch files
  double analyze_seconds = 0;  // at most for lz-analyze and kata-analyze; 0: until the next line
  double solve_seconds = 30;   // at most for dfpn-solve-state
  SolverOptions solver{};      // of dfpn-solve-state and of swap decisions on small boards
  uint64_t solve_nodes = 0;    // also; 0: no limit
};

// Tells a search, from another thread, to end: because of `# interrupt`, or, while analysing,
// because of any line. Lines have numbers from 1, in the order of reading; the session says which
// one it executes. Thread-safe.
class GtpInterrupts {
 public:
  // The reader: line `number` is there. interrupt: it ends what earlier lines asked for.
  void received(uint64_t number, bool interrupt);
  // The input ended. Analyses end; a genmove still answers within its limits.
  void ended();

  // The session: it executes that line from now on.
  void executing(uint64_t number);
  // A search begins or ends; `analysis` means that any later line ends it.
  void search_begins(bool analysis);
  void search_ends();
  [[nodiscard]] const std::atomic<bool>& stop() const { return stop_; }

 private:
  void update();

  std::atomic<bool> stop_{false};
  std::mutex mutex_;  // of what follows
  uint64_t received_ = 0;
  uint64_t interrupted_ = 0;
  uint64_t executing_ = 0;
  bool ended_ = false;
  bool searching_ = false;
  bool analysis_ = false;
};

class GtpSession {
 public:
  // Gets complete answers and blocks of live output, in order; from the thread that calls
  // execute(), or from the one that the engine reports from.
  using Output = std::function<void(std::string_view)>;

  // `engine` and `interrupts` (may be null) outlive the session.
  GtpSession(Engine& engine, Output output, const GtpOptions& options = {},
             GtpInterrupts* interrupts = nullptr);

  // Executes one line, without its end. Blocks as long as the command takes. False after `quit`.
  bool execute(std::string_view line);
  // Between two lines: thinks on after a genmove, if that is wanted, until the next line is there.
  // What a search engine learns from it is in its tree when the opponent's move comes.
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
  // The best move for `color` and what was learned; does not play it. nullopt: resign.
  absl::StatusOr<std::optional<Move>> think(Color color);
  SearchReport search(Board board, Color color, const SearchLimits& limits, bool analysis,
                      double interval, const std::function<void(const SearchReport&)>& progress);
  [[nodiscard]] SearchLimits move_limits(Color color) const;

  Engine& engine_;
  Output output_;
  GtpOptions options_;
  GtpInterrupts* interrupts_;
  GtpInterrupts no_interrupts_;
  GameRecord game_;
  std::optional<Color> resigned_;
  SearchReport last_report_;
  bool moved_ = false;              // the last line was a genmove
  std::optional<Solver> solver_;    // made at first use: it has a large table
  std::optional<double> clock_[2];  // seconds left, by Color
  std::string current_id_;
  bool streaming_ = false;  // the answer was begun, and ends with an empty line
  bool quit_ = false;
  int exec_depth_ = 0;
};

}  // namespace cariama::hex

#endif  // CARIAMA_HEX_GTP_H_
