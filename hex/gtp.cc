#include "hex/gtp.h"

#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "dtutils/error.h"
#include "hex/analysis.h"
#include "hex/gtp_text.h"
#include "hex/patterns.h"
#include "hex/sgf.h"

namespace cariama::hex {
namespace {

// Limits of the exec command: the nesting of exec within scripts, and the size of a script.
constexpr int kMaxExecDepth = 4;
constexpr size_t kMaxScript = size_t{1} << 20;

absl::Status fail(std::string_view text) {
  return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation, text);
}

bool parse_switch(const std::string& text, bool& value) {
  if (text != "0" && text != "1") return false;
  value = text == "1";
  return true;
}

// Parses a number in [low, high]. Returns false, and leaves `value` unchanged, if the text is not
// such a number.
bool parse_number(const std::string& text, double low, double high, double& value) {
  double number = 0;
  if (!absl::SimpleAtod(text, &number) || !(number >= low && number <= high)) return false;
  value = number;
  return true;
}

}  // namespace

void GtpInterrupts::update() {
  stop_.store(searching_ &&
                  (interrupted_ > executing_ || (analysis_ && (ended_ || received_ > executing_))),
              std::memory_order_relaxed);
}

void GtpInterrupts::received(uint64_t number, bool interrupt) {
  const std::lock_guard lock(mutex_);
  received_ = number;
  if (interrupt) interrupted_ = number;
  update();
}
void GtpInterrupts::ended() {
  const std::lock_guard lock(mutex_);
  ended_ = true;
  update();
}
void GtpInterrupts::executing(uint64_t number) {
  const std::lock_guard lock(mutex_);
  executing_ = number;
  update();
}
void GtpInterrupts::search_begins(bool analysis) {
  const std::lock_guard lock(mutex_);
  searching_ = true;
  analysis_ = analysis;
  update();
}
void GtpInterrupts::search_ends() {
  const std::lock_guard lock(mutex_);
  searching_ = false;
  update();
}

const GtpSession::Command GtpSession::kCommands[] = {
    {&GtpSession::all_legal_moves, "all_legal_moves"},
    {&GtpSession::boardsize, "boardsize"},
    {&GtpSession::clear_board, "clear_board"},
    {&GtpSession::clear_cache, "clear_cache"},
    {&GtpSession::solve_state, "dfpn-solve-state"},
    {&GtpSession::exec, "exec"},
    {&GtpSession::final_score, "final_score"},
    {&GtpSession::genmove, "genmove"},
    {&GtpSession::show_bridges, "hex-bridges"},
    {&GtpSession::show_inferior, "hex-inferior"},
    {&GtpSession::show_must_play, "hex-must-play"},
    {&GtpSession::show_visits, "hex-visits"},
    {&GtpSession::analyze_commands, "hexgui-analyze_commands"},
    {&GtpSession::analyze, "kata-analyze"},
    {&GtpSession::known_command, "known_command"},
    {&GtpSession::list_commands, "list_commands"},
    {&GtpSession::load_sgf_file, "loadsgf"},
    {&GtpSession::analyze, "lz-analyze"},
    {&GtpSession::name, "name"},
    {&GtpSession::param_game, "param_game"},
    {&GtpSession::param_search, "param_search"},
    {&GtpSession::play, "play"},
    {&GtpSession::play_game, "play-game"},
    {&GtpSession::protocol_version, "protocol_version"},
    {&GtpSession::quit, "quit"},
    {&GtpSession::reg_genmove, "reg_genmove"},
    {&GtpSession::save_sgf_file, "savesgf"},
    {&GtpSession::set_random_seed, "set_random_seed"},
    {&GtpSession::showboard, "showboard"},
    {&GtpSession::time_left, "time_left"},
    {&GtpSession::time_settings, "time_settings"},
    {&GtpSession::undo, "undo"},
    {&GtpSession::version, "version"},
};

const GtpSession::Command* GtpSession::find_command(std::string_view name) {
  for (const Command& command : kCommands) {
    if (command.name == name) return &command;
  }
  return nullptr;
}

GtpSession::GtpSession(Engine& engine, Output output, const GtpOptions& options,
                       GtpInterrupts* interrupts)
    : engine_(engine),
      output_(std::move(output)),
      options_(options),
      interrupts_(interrupts != nullptr ? interrupts : &no_interrupts_),
      game_(Board(options.cols, options.rows, options.swap)) {}

bool GtpSession::execute(std::string_view line) {
  std::vector<std::string> words = gtp_words(line);
  std::string id;
  if (!words.empty() && is_gtp_id(words.front())) {
    id = words.front();
    words.erase(words.begin());
    if (words.empty()) {
      respond(id, fail("no command"));
      return !quit_;
    }
  }
  if (words.empty()) return !quit_;
  const Command* command = find_command(words.front());
  if (command == nullptr) {
    respond(id, fail("unknown command"));
    return !quit_;
  }
  current_id_ = id;
  const Answer answer = (this->*command->run)(words);
  if (streaming_) {
    output_("\n");
    streaming_ = false;
  } else {
    respond(id, answer);
  }
  return !quit_;
}

void GtpSession::respond(std::string_view id, const Answer& answer) {
  output_(
      gtp_answer(answer.ok(), id, answer.ok() ? *answer : std::string(answer.status().message())));
}

void GtpSession::new_game(int cols, int rows) {
  options_.cols = cols;
  options_.rows = rows;
  game_ = GameRecord(Board(cols, rows, options_.swap));
  resigned_.reset();
  last_report_ = {};
  set_clocks();
}

GtpSession::Answer GtpSession::protocol_version(const Arguments&) { return "2"; }
GtpSession::Answer GtpSession::name(const Arguments&) { return engine_.name(); }
GtpSession::Answer GtpSession::version(const Arguments&) { return engine_.version(); }

GtpSession::Answer GtpSession::list_commands(const Arguments&) {
  std::string text;
  for (const Command& command : kCommands) {
    if (!text.empty()) text += '\n';
    text += command.name;
  }
  return text;
}

GtpSession::Answer GtpSession::known_command(const Arguments& arguments) {
  return arguments.size() == 2 && find_command(arguments[1]) != nullptr ? "true" : "false";
}

GtpSession::Answer GtpSession::quit(const Arguments&) {
  quit_ = true;
  return "";
}

GtpSession::Answer GtpSession::boardsize(const Arguments& arguments) {
  int cols = 0;
  int rows = 0;
  if (arguments.size() < 2 || arguments.size() > 3 || !absl::SimpleAtoi(arguments[1], &cols) ||
      !absl::SimpleAtoi(arguments.back(), &rows) || !is_board_size(cols, rows)) {
    return fail("unacceptable size: boardsize COLS [ROWS], each 3 to 25");
  }
  new_game(cols, rows);
  return "";
}

GtpSession::Answer GtpSession::clear_board(const Arguments&) {
  new_game(options_.cols, options_.rows);
  return "";
}

GtpSession::Answer GtpSession::play_move(std::string_view color_text, std::string_view move_text) {
  const auto color = parse_gtp_color(color_text);
  if (!color) return fail("no color: b or w");
  const Board& board = game_.board();
  std::string lower(move_text);
  for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  if (lower == "resign" || lower == "forfeit") {
    resigned_ = *color;
    return "";
  }
  if (lower == "swap") lower = "swap-pieces";  // LittleGolem
  const auto move = board.parse(lower);
  if (!move) return fail("not a cell of this board");
  if (board.winner()) return fail("the game has ended");
  if (*move != kSwapPieces && board.at(*move)) return fail("the cell is occupied");
  if (!game_.play(*color, *move)) return fail("the swap is not possible now");
  return "";
}

GtpSession::Answer GtpSession::play(const Arguments& arguments) {
  if (arguments.size() != 3) return fail("play COLOR MOVE");
  return play_move(arguments[1], arguments[2]);
}

GtpSession::Answer GtpSession::play_game(const Arguments& arguments) {
  new_game(options_.cols, options_.rows);
  for (size_t i = 1; i < arguments.size(); ++i) {
    const char* color = game_.board().to_move() == Color::kBlack ? "b" : "w";
    if (Answer answer = play_move(color, arguments[i]); !answer.ok()) return answer;
  }
  return "";
}

GtpSession::Answer GtpSession::undo(const Arguments&) {
  if (resigned_) {
    resigned_.reset();
    return "";
  }
  if (!game_.undo()) return fail("there is no move to take back");
  return "";
}

SearchLimits GtpSession::move_limits(Color color) {
  SearchLimits limits = options_.limits;
  const int empties = static_cast<int>(game_.board().empty().count());
  if (const auto seconds = clock(color).move_seconds(empties)) limits.seconds = *seconds;
  return limits;
}

SearchReport GtpSession::search(Board board, Color color, const SearchLimits& limits, bool analysis,
                                double interval,
                                const std::function<void(const SearchReport&)>& progress) {
  board.set_to_move(color);
  interrupts_->search_begins(analysis);
  SearchReport report = engine_.search(board, limits, interrupts_->stop(), progress, interval);
  interrupts_->search_ends();
  last_report_ = report;
  return report;
}

std::optional<bool> GtpSession::prove_swap(const Board& board, SearchLimits& limits) {
  if (!board.may_swap() || board.cells() > kSolvedCells) return std::nullopt;
  if (!solver_) solver_.emplace(options_.solver);
  const auto start = std::chrono::steady_clock::now();
  interrupts_->search_begins(false);
  const std::optional<bool> swap = hex::prove_swap(
      board, *solver_,
      {.seconds = swap_proof_seconds(limits.seconds), .stop = &interrupts_->stop()});
  interrupts_->search_ends();
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  limits = limits_after(limits, taken.count());
  return swap;
}

absl::StatusOr<std::optional<Move>> GtpSession::think(Color color) {
  Board board = game_.board();
  board.set_to_move(color);
  if (board.winner() || !board.empty().any()) return fail("the game has ended");
  if (board.swap_rule() == SwapRule::kOn && board.moves_played() == 0 && color == Color::kBlack) {
    return std::optional<Move>(fair_opening(board));
  }
  std::function<void(const SearchReport&)> live;
  if (options_.live_graphics) {
    live = [this, board](const SearchReport& report) { output_(gtp_graphics(board, report)); };
  }
  SearchLimits limits = move_limits(color);
  const std::optional<bool> swap = prove_swap(board, limits);
  const SearchReport report = search(board, color, limits, false, options_.live_interval, live);
  if (report.moves.empty() || !board.is_legal(report.moves[0].move)) {
    return make_error(absl::StatusCode::kInternal, ErrorScope::kProcess,
                      "the engine found no legal move");
  }
  const MoveReport& best = report.moves[0];
  if (board.may_swap() && best.move != kSwapPieces && should_swap(swap, best.win_rate)) {
    return std::optional<Move>(kSwapPieces);
  }
  if (options_.resign_below > 0 &&
      (best.proven_win == false || best.win_rate < options_.resign_below)) {
    return std::optional<Move>();
  }
  return std::optional<Move>(best.move);
}

GtpSession::Answer GtpSession::genmove(const Arguments& arguments) {
  const auto color = arguments.size() == 2 ? parse_gtp_color(arguments[1]) : std::nullopt;
  if (!color) return fail("genmove COLOR");
  const auto start = std::chrono::steady_clock::now();
  absl::StatusOr<std::optional<Move>> move = think(*color);
  if (!move.ok()) return move.status();
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  clock(*color).spend(taken.count());
  if (!move->has_value()) {
    resigned_ = *color;
    return "resign";
  }
  const std::string text = game_.board().name(**move);
  game_.play(*color, **move);
  moved_ = true;
  return text;
}

void GtpSession::ponder() {
  const Board& board = game_.board();
  if (!std::exchange(moved_, false) || !options_.ponder) return;
  if (board.winner() || !board.empty().any()) return;
  // The search runs as an analysis, so any line ends it. Its report does not replace the report of
  // the last command.
  SearchReport asked = std::move(last_report_);
  static_cast<void>(search(board, board.to_move(), {}, true, 1, nullptr));
  last_report_ = std::move(asked);
}

GtpSession::Answer GtpSession::reg_genmove(const Arguments& arguments) {
  const auto color = arguments.size() == 2 ? parse_gtp_color(arguments[1]) : std::nullopt;
  if (!color) return fail("reg_genmove COLOR");
  absl::StatusOr<std::optional<Move>> move = think(*color);
  if (!move.ok()) return move.status();
  return move->has_value() ? game_.board().name(**move) : "resign";
}

GtpSession::Answer GtpSession::showboard(const Arguments&) {
  return "\n" + board_text(game_.board());
}

GtpSession::Answer GtpSession::final_score(const Arguments&) {
  const auto winner = resigned_ ? std::optional(opponent(*resigned_)) : game_.board().winner();
  if (!winner) return "cannot score";
  return *winner == Color::kBlack ? "B+" : "W+";
}

GtpSession::Answer GtpSession::all_legal_moves(const Arguments&) {
  const Board& board = game_.board();
  std::string text;
  for (int id = 0; id < kMoveIds; ++id) {
    if (!board.is_legal(static_cast<Move>(id))) continue;
    if (!text.empty()) text += ' ';
    text += board.name(static_cast<Move>(id));
  }
  return text;
}

GtpSession::Answer GtpSession::time_settings(const Arguments& arguments) {
  TimeSettings settings;
  if (arguments.size() != 4 || !parse_number(arguments[1], 0, 1e9, settings.main) ||
      !parse_number(arguments[2], 0, 1e9, settings.period) ||
      !parse_number(arguments[3], 0, 1e9, settings.stones) ||
      settings.stones != std::floor(settings.stones)) {
    return fail("time_settings MAIN_SECONDS PERIOD_SECONDS STONES");
  }
  time_settings_ = settings;
  set_clocks();
  return "";
}

GtpSession::Answer GtpSession::time_left(const Arguments& arguments) {
  if (arguments.size() == 1) {
    return "black " + clock(Color::kBlack).text() + " white " + clock(Color::kWhite).text();
  }
  const auto color = parse_gtp_color(arguments[1]);
  if (!color || arguments.size() > 4) return fail("time_left [COLOR [SECONDS [STONES]]]");
  if (arguments.size() == 2) return clock(*color).text();
  double seconds = 0;
  double stones = 0;
  if (!parse_number(arguments[2], 0, 1e9, seconds)) return fail("SECONDS is not a number");
  if (arguments.size() == 4 &&
      (!parse_number(arguments[3], 0, 1e9, stones) || stones != std::floor(stones))) {
    return fail("STONES is not a number of moves");
  }
  clock(*color).set_left(seconds, stones);
  return "";
}

GtpSession::Answer GtpSession::set_random_seed(const Arguments& arguments) {
  uint64_t seed = 0;
  if (arguments.size() != 2 || !absl::SimpleAtoi(arguments[1], &seed)) {
    return fail("set_random_seed NUMBER");
  }
  engine_.set_seed(seed);
  return "";
}

GtpSession::Answer GtpSession::clear_cache(const Arguments&) {
  engine_.clear();
  return "";
}

GtpSession::Answer GtpSession::load_sgf_file(const Arguments& arguments) {
  int moves = kMoveIds * 2;
  if (!options_.files) return fail("files are not allowed");
  if (arguments.size() < 2 || arguments.size() > 3 ||
      (arguments.size() == 3 && (!absl::SimpleAtoi(arguments[2], &moves) || moves < 0))) {
    return fail("loadsgf FILE [MOVES]");
  }
  absl::StatusOr<SgfGame> loaded = load_sgf(arguments[1]);
  if (!loaded.ok()) return loaded.status();
  new_game(loaded->start.cols(), loaded->start.rows());
  game_ = to_record(*loaded, static_cast<size_t>(moves));
  if (static_cast<size_t>(moves) >= loaded->moves.size()) resigned_ = loaded->resigned;
  return "";
}

GtpSession::Answer GtpSession::save_sgf_file(const Arguments& arguments) {
  if (!options_.files) return fail("files are not allowed");
  if (arguments.size() != 2) return fail("savesgf FILE");
  SgfGame game = to_sgf(game_);
  game.resigned = resigned_;
  if (absl::Status status = save_sgf(arguments[1], game); !status.ok()) return status;
  return "";
}

// Executes the commands of a file. Each command is answered like a line of the input. The answer of
// exec follows at the end.
GtpSession::Answer GtpSession::exec(const Arguments& arguments) {
  if (!options_.files) return fail("files are not allowed");
  if (arguments.size() != 2) return fail("exec FILE");
  if (exec_depth_ >= kMaxExecDepth) return fail("exec is nested too deeply");
  struct stat info;
  if (stat(arguments[1].c_str(), &info) != 0 || !S_ISREG(info.st_mode) ||
      static_cast<size_t>(info.st_size) > kMaxScript) {
    return fail("cannot read the file: exec needs a regular file of up to 1 MiB");
  }
  std::ifstream file(arguments[1]);
  ++exec_depth_;
  for (std::string line; !quit_ && std::getline(file, line);) execute(line);
  --exec_depth_;
  return "";
}

// lz-analyze [COLOR] [CENTISECONDS]: writes `=` immediately, then a report line after each
// interval.
GtpSession::Answer GtpSession::analyze(const Arguments& arguments) {
  Color color = game_.board().to_move();
  double centiseconds = 100;
  for (size_t i = 1; i < arguments.size(); ++i) {
    if (const auto given = parse_gtp_color(arguments[i])) {
      color = *given;
    } else if (arguments[i] == "interval") {
      continue;
    } else if (!parse_number(arguments[i], 1, 1e6, centiseconds)) {
      return fail(arguments[0] + " [COLOR] [CENTISECONDS]");
    }
  }
  const Board& board = game_.board();
  if (board.winner() || !board.empty().any()) return fail("the game has ended");
  const bool kata = arguments[0] == "kata-analyze";
  output_("=" + current_id_ + "\n");
  streaming_ = true;
  const auto show = [&](const SearchReport& report) {
    output_(gtp_info(board, report, kata ? GtpInfo::kKata : GtpInfo::kLeela) + "\n");
  };
  const SearchReport report =
      search(board, color, {.seconds = options_.analyze_seconds}, true, centiseconds / 100, show);
  if (!report.moves.empty()) show(report);
  return "";
}

GtpSession::Answer GtpSession::analyze_commands(const Arguments&) {
  // HexGui puts the answer of a command of type `move` on its board as a move that the program has
  // played, and cannot show an empty answer of type `string`.
  return "pspairs/Visits and win rates/hex-visits\n"
         "plist/Must play/hex-must-play %m\n"
         "pspairs/Dead and captured cells/hex-inferior\n"
         "string/Bridges/hex-bridges %c\n"
         "string/Solve/dfpn-solve-state %m\n"
         "string/Best move/reg_genmove %m\n"
         "none/Clear cache/clear_cache\n"
         "param/Game parameters/param_game\n"
         "param/Search parameters/param_search";
}

GtpSession::Answer GtpSession::solve_state(const Arguments& arguments) {
  const auto color = arguments.size() == 2 ? parse_gtp_color(arguments[1]) : std::nullopt;
  if (!color) return fail("dfpn-solve-state COLOR");
  Board board = game_.board();
  board.set_to_move(*color);
  if (!solver_) solver_.emplace(options_.solver);
  interrupts_->search_begins(false);
  const Solution solution = solver_->solve(board, {.seconds = options_.solve_seconds,
                                                   .nodes = options_.solve_nodes,
                                                   .stop = &interrupts_->stop()});
  interrupts_->search_ends();
  if (!solution.winner) return fail("not solved within the limit");
  return std::string(color_name(*solution.winner));
}

GtpSession::Answer GtpSession::show_bridges(const Arguments& arguments) {
  const auto color = arguments.size() == 2 ? parse_gtp_color(arguments[1]) : std::nullopt;
  if (!color) return fail("hex-bridges COLOR");
  const Board& board = game_.board();
  std::string text;
  for (const Bridge& bridge : bridges(board, *color)) {
    if (!text.empty()) text += '\n';
    text += board.name(bridge.from) + "-" +
            (bridge.to == kNoMove ? "edge" : board.name(bridge.to)) + " by " +
            board.name(bridge.carrier[0]) + " " + board.name(bridge.carrier[1]);
  }
  return text.empty() ? "none" : text;
}

GtpSession::Answer GtpSession::show_inferior(const Arguments&) {
  const Board& board = game_.board();
  const FillIn<10> fill = fill_in(board);
  std::string text;
  const auto add = [&](const Bits<10>& cells, std::string_view label) {
    cells.for_each([&](int cell) {
      if (!text.empty()) text += ' ';
      text += board.name(static_cast<Move>(cell)) + " " + std::string(label);
    });
  };
  add(fill.dead, "dead");
  add(fill.captured[0], "black");
  add(fill.captured[1], "white");
  return text;
}

GtpSession::Answer GtpSession::show_must_play(const Arguments& arguments) {
  const auto color = arguments.size() == 2 ? parse_gtp_color(arguments[1]) : std::nullopt;
  if (!color) return fail("hex-must-play COLOR");
  const Board& board = game_.board();
  std::string text;
  must_play(board, *color).cells.for_each([&](int cell) {
    if (!text.empty()) text += ' ';
    text += board.name(static_cast<Move>(cell));
  });
  return text;
}

GtpSession::Answer GtpSession::show_visits(const Arguments&) {
  std::string text;
  for (const MoveReport& move : last_report_.moves) {
    if (move.move == kSwapPieces) continue;
    if (!text.empty()) text += ' ';
    text += absl::StrFormat("%s %d@%.0f%%", game_.board().name(move.move), move.visits,
                            100 * move.win_rate);
  }
  return text;
}

GtpSession::Answer GtpSession::param_game(const Arguments& arguments) {
  if (arguments.size() == 1) {
    return absl::StrFormat("[bool] allow_swap %d\n[string] resign_below %g",
                           options_.swap == SwapRule::kOn ? 1 : 0, options_.resign_below);
  }
  bool on = false;
  if (arguments.size() == 3 && arguments[1] == "allow_swap" && parse_switch(arguments[2], on)) {
    options_.swap = on ? SwapRule::kOn : SwapRule::kOff;
    // Apply the rule to the running game, too, if all its moves are legal under the new rule.
    Board start(options_.cols, options_.rows, options_.swap);
    const GameRecord old = game_;
    if (old.start().moves_played() == 0) {
      GameRecord replayed(start);
      bool possible = true;
      for (const Step& step : old.steps())
        possible = possible && replayed.play(step.color, step.move);
      if (possible) game_ = replayed;
    }
    return "";
  }
  if (arguments.size() == 3 && arguments[1] == "resign_below" &&
      parse_number(arguments[2], 0, 1, options_.resign_below)) {
    return "";
  }
  return fail("param_game [allow_swap 0|1] [resign_below 0..1]");
}

GtpSession::Answer GtpSession::param_search(const Arguments& arguments) {
  if (arguments.size() == 1) {
    return absl::StrFormat(
        "[string] seconds %g\n[string] iterations %d\n[bool] live_graphics %d\n"
        "[string] live_interval %g\n[string] solve_seconds %g",
        options_.limits.seconds, options_.limits.iterations, options_.live_graphics ? 1 : 0,
        options_.live_interval, options_.solve_seconds);
  }
  if (arguments.size() == 3) {
    const std::string& key = arguments[1];
    const std::string& value = arguments[2];
    uint64_t iterations = 0;
    if (key == "seconds" && parse_number(value, 0, 1e6, options_.limits.seconds)) return "";
    if (key == "iterations" && absl::SimpleAtoi(value, &iterations)) {
      options_.limits.iterations = iterations;
      return "";
    }
    if (key == "live_graphics" && parse_switch(value, options_.live_graphics)) return "";
    if (key == "live_interval" && parse_number(value, 0.01, 1e6, options_.live_interval)) return "";
    if (key == "solve_seconds" && parse_number(value, 0.001, 1e6, options_.solve_seconds))
      return "";
  }
  return fail("param_search [seconds|iterations|live_graphics|live_interval|solve_seconds VALUE]");
}

}  // namespace cariama::hex
