// cariama-hex: plays, analyses and solves Hex, with the threads of several processes.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "dsfabric/fabric.h"
#include "dsfabric/launcher.h"
#include "dtutils/error.h"
#include "dtutils/internal/json.h"
#include "dtutils/version.h"
#include "hex/analysis.h"
#include "hex/gtp_stream.h"
#include "hex/match.h"
#include "hex/search_engine.h"
#include "hex/sgf.h"
#include "hex/solver.h"
#include "hex/web/search_queue.h"
#include "hex/web/web_server.h"
#include "hex/web/web_text.h"
#include "mcts/host.h"
#include "mcts/program.h"
#include "mcts/progress.h"
#include "tools/program.h"

namespace cariama::hex {
namespace {

constexpr const char* kHelp =
    "cariama-hex: the game of Hex.\n"
    "\n"
    "  cariama-hex gtp     [options]            speaks GTP on stdin and stdout, for HexGui and "
    "others\n"
    "  cariama-hex analyze [options] [MOVE...]  searches the position after the moves\n"
    "  cariama-hex serve   [options]            a page to play and to watch the search, for a "
    "browser\n"
    "  cariama-hex solve   [options] [MOVE...]  proves the winner (up to about 7x7)\n"
    "  cariama-hex match   [options] COMMAND1 COMMAND2\n"
    "                                           referees two GTP engines, each a shell command\n"
    "  cariama-hex bench   [options]            playouts and tree iterations per second\n"
    "\n"
    "  --size N, --size COLSxROWS  the board (default 11)\n"
    "  -n P                 gtp, analyze, serve, bench: number of processes (default 1)\n"
    "  -t T                 gtp, analyze, serve, bench: number of threads in each process\n"
    "                       (default 1)\n"
    "  --lease S            a process that gives no sign of life for S seconds counts as dead, "
    "and\n"
    "                       the search continues without it (default 30; 0: never)\n"
    "  --seconds S          time for a move (gtp: 5; analyze: 5; solve: 30; bench: 2); 0: no "
    "limit.\n"
    "                       analyze and solve then end with Ctrl-C at the latest; bench needs\n"
    "                       --iterations\n"
    "  --iterations N       iterations for a move; 0: no limit\n"
    "  --seed N             seed of the random numbers (default 1)\n"
    "  --memory MIB         memory for the tree, per process (default 1024)\n"
    "  --placement P        placement of nodes: locality, hash or random\n"
    "  --without LIST       parts of the engine to switch off, separated by commas: bridges,\n"
    "                       fill-in, must-play, priors, amaf, reuse, solver\n"
    "  --paper              the tree of the Seriema paper: random owners, a call for each step\n"
    "  --only-remote        --paper: calls only for nodes that another process owns\n"
    "  --overflow           aggregators of the paper's ovfl kind, instead of trad\n"
    "  --swap               gtp: with the swap rule\n"
    "  --ponder             gtp: searches during the opponent's move, too\n"
    "  --sgf FILE           analyze, solve: starts from the last position in FILE, before MOVE...\n"
    "  --svg FILE           analyze: writes a picture of the result\n"
    "  --plain              analyze: no colours\n"
    "  --port N             serve: the port (default 8017); 0: any free port\n"
    "  --bind ADDRESS       serve: the address to listen at (default 127.0.0.1). At other "
    "addresses\n"
    "                       than 127.0.0.1 and ::1, everyone who reaches it may use the program\n"
    "  --pairs N            match: number of pairs of games (default 10)\n"
    "  --setup CMD          match: GTP command to both engines at the start of each game\n"
    "  --setup2 CMD         match: GTP command to COMMAND2 only, which then gets none of --setup,\n"
    "                       --seconds and --iterations: for engines with other limit commands\n"
    "  --setup-seconds S    match: an engine that takes longer for a command before the first "
    "move\n"
    "                       ends the match (default 30)\n"
    "  --white-first2       match: COMMAND2 calls the first player white, as Morat does\n"
    "  --records FOLDER     match: writes SGF records of the games there\n"
    "  --json               prints results as JSON, one object per line\n"
    "  --help               this text\n"
    "  --version            prints the version of Cariama\n"
    "\n"
    "MOVE: b4 or swap-pieces, Black first. Exit code: 0; 1 if it failed; 2 for wrong usage.\n";

struct Arguments {
  std::string command;
  std::vector<std::string> rest;
  int cols = 11;
  int rows = 11;
  std::optional<double> seconds;
  uint64_t iterations = 0;
  bool swap = false;
  bool ponder = false;
  bool json = false;
  bool plain = false;
  std::string sgf;
  std::string svg;
  WebServerOptions web;
  int pairs = 10;
  std::vector<std::string> setup;
  std::vector<std::string> setup2;
  double setup_seconds = MatchOptions{}.setup_seconds;
  bool white_first2 = false;
  std::string records;
  mcts::ProgramOptions program{.lease = std::chrono::seconds(30)};
  SearchEngineOptions engine;
};

// Prints the error, and returns the exit code for wrong usage.
int usage(const std::string& what) {
  std::fprintf(stderr, "cariama-hex: %s (see cariama-hex --help)\n", what.c_str());
  return 2;
}
int failed(const absl::Status& status) {
  std::fprintf(stderr, "cariama-hex: %s\n", std::string(status.message()).c_str());
  return 1;
}

// Reads the command line. Returns a text that describes the first error, or "".
std::string read(std::vector<std::string> words, Arguments& arguments) {
  size_t next = 0;
  std::string error;
  const auto value = [&](const std::string& option) -> std::string {
    if (next < words.size()) return words[next++];
    error = option + " needs a value";
    return {};
  };
  const auto number = [&]<typename Number>(const std::string& option, Number& into, double least,
                                           double most) {
    constexpr bool kWhole = std::is_integral_v<Number>;
    const std::string text = value(option);
    double parsed = 0;
    if (!error.empty()) return;
    if (!absl::SimpleAtod(text, &parsed) || !(parsed >= least && parsed <= most) ||
        (kWhole && parsed != std::floor(parsed))) {
      error = absl::StrCat(option, " needs a ", kWhole ? "whole " : "", "number from ", least,
                           " to ", most, ", not '", text, "'");
      return;
    }
    into = static_cast<Number>(parsed);
  };
  constexpr double kMostSeconds = 1e6;
  constexpr double kMostCount = 9e15;  // a double represents whole numbers up to here exactly
  constexpr double kMostMiB = 1 << 24;
  while (next < words.size() && error.empty()) {
    const std::string word = words[next++];
    if (word == "--size") {
      const std::string text = value(word);
      const std::vector<std::string> parts = absl::StrSplit(text, 'x');
      if (parts.size() > 2 || !absl::SimpleAtoi(parts[0], &arguments.cols) ||
          !absl::SimpleAtoi(parts.back(), &arguments.rows) ||
          !is_board_size(arguments.cols, arguments.rows)) {
        error = absl::StrCat("--size needs a side from 3 to 25, or COLSxROWS, not '", text, "'");
      }
    } else if (word == "--lease") {
      double seconds = 0;
      number(word, seconds, 0, kMostSeconds);
      if (error.empty() && seconds != 0 && seconds < 0.4) {
        error = absl::StrCat("--lease needs 0 or seconds from 0.4, not ", seconds);
      }
      if (error.empty()) {
        arguments.program.lease = std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
      }
    } else if (word == "--seconds") {
      double seconds = 0;
      number(word, seconds, 0, kMostSeconds);
      arguments.seconds = seconds;
    } else if (word == "--iterations") {
      number(word, arguments.iterations, 0, kMostCount);
    } else if (word == "--seed") {
      number(word, arguments.engine.search.seed, 0, kMostCount);
    } else if (word == "--memory") {
      uint64_t mib = 0;
      number(word, mib, 16, kMostMiB);
      arguments.engine.search.memory_bytes = mib << 20;
    } else if (word == "--placement") {
      const std::string text = value(word);
      bool known = false;
      for (const mcts::Placement placement :
           {mcts::Placement::kLocality, mcts::Placement::kHash, mcts::Placement::kRandom}) {
        if (text != placement_name(placement)) continue;
        arguments.engine.search.placement = placement;
        known = true;
      }
      if (!known && error.empty()) error = "--placement needs locality, hash or random";
    } else if (word == "--without") {
      const std::vector<std::string> parts = absl::StrSplit(value(word), ',');
      for (const std::string& what : parts) {
        if (what == "bridges") {
          arguments.engine.knowledge.bridges = false;
        } else if (what == "fill-in") {
          arguments.engine.knowledge.fill_in = false;
        } else if (what == "must-play") {
          arguments.engine.knowledge.must_play = false;
        } else if (what == "priors") {
          arguments.engine.without_priors();
        } else if (what == "amaf") {
          arguments.engine.without_amaf();
        } else if (what == "solver") {
          arguments.engine.solve_nodes = 0;
        } else if (what == "reuse") {
          arguments.engine.search.reuse_tree = false;
        } else {
          error = absl::StrCat("--without: unknown part '", what, "'");
        }
      }
    } else if (word == "--paper") {
      arguments.engine.paper = true;
      arguments.engine.solve_nodes = 0;
    } else if (word == "--only-remote") {
      arguments.engine.search.paper.only_remote = true;
    } else if (word == "--overflow") {
      arguments.program.aggregation = Aggregation::kOverflow;
    } else if (word == "--swap") {
      arguments.swap = true;
    } else if (word == "--ponder") {
      arguments.ponder = true;
    } else if (word == "--sgf") {
      arguments.sgf = value(word);
    } else if (word == "--svg") {
      arguments.svg = value(word);
    } else if (word == "--plain") {
      arguments.plain = true;
    } else if (word == "--port") {
      number(word, arguments.web.port, 0, 65535);
    } else if (word == "--bind") {
      arguments.web.address = value(word);
      if (error.empty() && !is_ip_address(arguments.web.address)) {
        error =
            absl::StrCat("--bind needs an address in digits, not '", arguments.web.address, "'");
      }
    } else if (word == "--pairs") {
      number(word, arguments.pairs, 1, 100'000);
    } else if (word == "--setup") {
      arguments.setup.push_back(value(word));
    } else if (word == "--setup2") {
      arguments.setup2.push_back(value(word));
    } else if (word == "--setup-seconds") {
      number(word, arguments.setup_seconds, 0.001, kMostSeconds);
    } else if (word == "--white-first2") {
      arguments.white_first2 = true;
    } else if (word == "--records") {
      arguments.records = value(word);
    } else if (word == "--json") {
      arguments.json = true;
    } else if (word.size() > 1 && word[0] == '-') {
      error = absl::StrCat("unknown option ", word);
    } else if (arguments.command.empty()) {
      arguments.command = word;
    } else {
      arguments.rest.push_back(word);
    }
  }
  return error;
}

// Returns the position of --size or --sgf after the moves of the command line.
absl::StatusOr<Board> position(const Arguments& arguments) {
  Board board(arguments.cols, arguments.rows, SwapRule::kOn);
  if (!arguments.sgf.empty()) {
    absl::StatusOr<SgfGame> game = load_sgf(arguments.sgf);
    if (!game.ok()) return game.status();
    board = to_record(*game).board();
  }
  for (const std::string& text : arguments.rest) {
    const std::optional<Move> move = board.parse(text);
    if (!move || !board.is_legal(*move)) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", text, "' is not a legal move in that position"));
    }
    board.play(*move);
  }
  return board;
}

std::atomic<bool> interrupted{false};
void interrupt(int) { interrupted.store(true); }

std::string quoted(const Board& board, Move move) { return json_string(board.name(move)); }

// Returns the statistics of one process as a JSON object.
std::string process_row(uint32_t rank, const mcts::Statistics& one) {
  const std::pair<const char*, uint64_t> counts[] = {
      {"visits", one.visits},
      {"completions", one.completions},
      {"handed_over", one.handed_over},
      {"cancelled", one.cancelled},
      {"playouts", one.playouts},
      {"nodes", one.nodes},
      {"nodes_created", one.nodes_created},
      {"nodes_created_remotely", one.nodes_created_remotely},
      {"remote_selections", one.remote_selections},
      {"deferred_selections", one.deferred_selections},
      {"messages", one.messages},
      {"bytes", one.bytes},
      {"channels", one.channels},
      {"channels_behind", one.channels_behind},
      {"collections", one.collections},
  };
  std::string row = absl::StrCat("{\"name\": \"process\", \"rank\": ", rank);
  for (const auto& [name, value] : counts) absl::StrAppend(&row, ", \"", name, "\": ", value);
  return absl::StrCat(row, ", \"idle_seconds\": ", one.idle_seconds, "}");
}

void print_analysis(const Arguments& arguments, const Board& board, const SearchEngine& engine,
                    const SearchReport& report, uint32_t threads) {
  const MoveReport& best = report.moves[0];
  const bool colors = !arguments.plain && ::isatty(STDOUT_FILENO) != 0;
  if (!arguments.json) {
    std::printf("%s\n", heat_map(board, report, {.colors = colors}).c_str());
    std::printf("%s plays %s, after %llu iterations in %.2f s\n",
                std::string(color_name(report.color)).c_str(), board.name(best.move).c_str(),
                static_cast<unsigned long long>(report.iterations), report.seconds);
    std::fputs(mcts::processes_text(engine.statistics(), report.seconds, threads).c_str(), stdout);
    if (!report.late.empty()) {
      std::printf("without the last iterations of rank %s, which did not answer in time\n",
                  absl::StrJoin(report.late, ", ").c_str());
    }
    return;
  }
  for (uint32_t rank = 0; rank < engine.statistics().size(); ++rank) {
    std::printf("%s\n", process_row(rank, engine.statistics()[rank]).c_str());
  }
  std::printf(
      "{\"name\": \"move\", \"value\": %s, \"win_rate\": %.4f, \"visits\": %llu, "
      "\"proven\": %s, \"iterations\": %llu, \"seconds\": %.3f, \"late\": [%s]}\n",
      quoted(board, best.move).c_str(), best.win_rate, static_cast<unsigned long long>(best.visits),
      !best.proven_win   ? "null"
      : *best.proven_win ? "true"
                         : "false",
      static_cast<unsigned long long>(report.iterations), report.seconds,
      absl::StrJoin(report.late, ", ").c_str());
}

int analyze(const Arguments& arguments, mcts::Host& host) {
  const absl::StatusOr<Board> board = position(arguments);
  if (!board.ok()) return failed(board.status());
  if (board->winner()) return usage("the game has ended in that position");
  SearchEngine engine(host, arguments.engine);
  const SearchLimits limits{arguments.seconds.value_or(arguments.iterations != 0 ? 0 : 5),
                            arguments.iterations};
  const auto live = [&](const SearchReport& report) {
    std::string text =
        absl::StrFormat("%6.1f s  %s\n", report.seconds, report_line(*board, report.moves[0]));
    if (host.size() > 1) {
      text += mcts::processes_text(engine.statistics(), report.seconds, host.threads());
    }
    std::fputs(text.c_str(), stderr);
  };
  const SearchReport report = engine.search(*board, limits, interrupted, live, 0.5);
  print_analysis(arguments, *board, engine, report, host.threads());
  if (arguments.svg.empty()) return 0;
  std::ofstream file(arguments.svg, std::ios::binary);
  file << heat_map_svg(*board, report);
  if (file.flush()) return 0;
  return failed(make_errno_error(errno, ErrorScope::kProcess, "cannot write " + arguments.svg));
}

int bench(const Arguments& arguments, mcts::Host& host) {
  const double seconds = arguments.seconds.value_or(2);
  const Board board(arguments.cols, arguments.rows);
  SearchEngineOptions options = arguments.engine;
  options.search.stop_when_safe = false;
  options.solve_nodes = 0;
  SearchEngine engine(host, options);
  const std::atomic<bool> never{false};
  const SearchReport report =
      engine.search(board, {seconds, arguments.iterations}, never, nullptr, 0);
  uint64_t playouts = 0;
  double idle = 0;
  for (const mcts::Statistics& one : engine.statistics()) {
    playouts += one.playouts;
    idle += one.idle_seconds;
  }
  const double workers = host.size() * host.threads();
  const auto row = [&](const char* name, double value, const char* unit) {
    if (arguments.json) {
      std::printf(
          "{\"name\": \"%s\", \"value\": %.1f, \"unit\": \"%s\", \"size\": \"%dx%d\", "
          "\"processes\": %u, \"threads\": %u, \"seconds\": %.3f}\n",
          name, value, unit, board.cols(), board.rows(), host.size(), host.threads(),
          report.seconds);
    } else {
      std::printf("%-24s %14.1f %s\n", name, value, unit);
    }
  };
  row("playouts_per_second", static_cast<double>(playouts) / report.seconds, "1/s");
  row("tree_iterations_per_second", static_cast<double>(report.iterations) / report.seconds, "1/s");
  row("idle_share", 100 * idle / (report.seconds * workers), "%");
  return 0;
}

int gtp(const Arguments& arguments, mcts::Host& host) {
  ::signal(SIGPIPE, SIG_IGN);
  SearchEngine engine(host, arguments.engine);
  GtpOptions options;
  options.cols = arguments.cols;
  options.rows = arguments.rows;
  options.swap = arguments.swap ? SwapRule::kOn : SwapRule::kOff;
  options.ponder = arguments.ponder;
  options.limits = {arguments.seconds.value_or(arguments.iterations != 0 ? 0 : 5),
                    arguments.iterations};
  const absl::Status served = run_gtp(engine, STDIN_FILENO, STDOUT_FILENO, options);
  return served.ok() ? 0 : failed(served);
}

// Returns the load of each process in the last search, which took `seconds`.
std::vector<ProcessLoad> loads(const mcts::Host& host, const SearchEngine& engine, double seconds) {
  std::vector<ProcessLoad> loads;
  const double time = std::max(seconds, 1e-6);
  for (uint32_t rank = 0; rank < engine.statistics().size(); ++rank) {
    const mcts::Statistics& one = engine.statistics()[rank];
    loads.push_back({host.alive(rank), static_cast<double>(one.completions) / time,
                     std::clamp(one.idle_seconds / (time * host.threads()), 0.0, 1.0),
                     static_cast<double>(one.messages) / time});
  }
  return loads;
}

int serve(const Arguments& arguments, mcts::Host& host) {
  ::signal(SIGPIPE, SIG_IGN);
  SearchEngineOptions options = arguments.engine;
  // The queue divides a search into slices. None of them may end early.
  options.search.stop_when_safe = false;
  SearchEngine engine(host, options);
  SearchQueue queue(engine, [&](double seconds) { return loads(host, engine, seconds); });
  const auto server = WebServer::start(queue, arguments.web);
  if (!server.ok()) return failed(server.status());
  if (!is_loopback_address(arguments.web.address)) {
    std::fprintf(stderr,
                 "cariama-hex: warning: everyone who reaches %s may use this program; without "
                 "--bind only this machine may\n",
                 arguments.web.address.c_str());
  }
  std::printf("%s\n", (*server)->url().c_str());
  if (const absl::Status written = flush_output(); !written.ok()) return failed(written);
  queue.run(interrupted);
  return 0;
}

int solve(const Arguments& arguments) {
  const absl::StatusOr<Board> board = position(arguments);
  if (!board.ok()) return failed(board.status());
  Solver solver;
  ::signal(SIGINT, interrupt);
  const Solution solution =
      solver.solve(*board, {.seconds = arguments.seconds.value_or(30), .stop = &interrupted});
  if (arguments.json) {
    std::printf("{\"name\": \"winner\", \"value\": %s, \"move\": %s, \"nodes\": %llu}\n",
                solution.winner ? json_string(color_name(*solution.winner)).c_str() : "null",
                solution.move == kNoMove ? "null" : quoted(*board, solution.move).c_str(),
                static_cast<unsigned long long>(solution.nodes));
  } else {
    std::printf("%s\n%s%s%s\n", board_text(*board).c_str(),
                solution.winner ? std::string(color_name(*solution.winner)).c_str() : "not solved",
                solution.winner ? " wins" : "",
                solution.move == kNoMove ? ""
                : solution.winner        ? (", " + board->name(solution.move)).c_str()
                                         : ("; best guess: " + board->name(solution.move)).c_str());
  }
  return solution.winner ? 0 : 1;
}

// Returns a rating as JSON, which has no infinity: the rating of a player without a win or without
// a loss is null.
std::string rating_json(double rating) {
  return std::isfinite(rating) ? absl::StrFormat("%.0f", rating) : "null";
}

int match(const Arguments& arguments) {
  if (arguments.rest.size() != 2) return usage("match needs two engine commands");
  MatchOptions options;
  options.cols = arguments.cols;
  options.rows = arguments.rows;
  options.pairs = arguments.pairs;
  options.seed = arguments.engine.search.seed;
  options.sgf_folder = arguments.records;
  options.setup_seconds = arguments.setup_seconds;
  options.stop = &interrupted;
  ::signal(SIGINT, interrupt);
  ::signal(SIGPIPE, SIG_IGN);
  std::vector<std::string> setup = arguments.setup;
  if (arguments.seconds) setup.push_back(absl::StrCat("param_search seconds ", *arguments.seconds));
  if (arguments.iterations != 0) {
    setup.push_back(absl::StrCat("param_search iterations ", arguments.iterations));
  }
  const std::array<Player, 2> players = {
      Player{"first", arguments.rest[0], setup},
      Player{"second", arguments.rest[1], arguments.setup2.empty() ? setup : arguments.setup2,
             arguments.white_first2}};
  const auto result = play_match(players, options, [&](const GameResult& game) {
    std::fprintf(stderr, "game %d: %s wins as %s by %s\n", game.number,
                 players[static_cast<size_t>(game.winner)].name.c_str(),
                 game.winner == game.black_player ? "black" : "white", game.reason.c_str());
  });
  if (!result.ok()) return failed(result.status());
  const Elo rating = result->games() > 0 ? elo(result->wins[0], result->games()) : Elo{};
  if (arguments.json) {
    std::printf(
        "{\"name\": \"match\", \"games\": %d, \"wins\": %d, \"losses\": %d, \"failures\": %d, "
        "\"elo\": %s, \"elo_low\": %s, \"elo_high\": %s}\n",
        result->games(), result->wins[0], result->wins[1], result->failures,
        rating_json(rating.difference).c_str(), rating_json(rating.low).c_str(),
        rating_json(rating.high).c_str());
  } else {
    std::printf("first %d : %d second, %.0f Elo (%.0f .. %.0f), %d failures\n", result->wins[0],
                result->wins[1], rating.difference, rating.low, rating.high, result->failures);
  }
  return 0;
}

int run(int argc, char** argv) {
  mcts::Program program(argc, argv);
  Arguments arguments;
  for (const std::string& word : program.arguments()) {
    if (word == "--help" || word == "-h") {
      std::fputs(kHelp, stdout);
      return 0;
    }
    if (word == "--version") {
      std::printf("cariama-hex %s\n", std::string(version()).c_str());
      return 0;
    }
  }
  const std::string error =
      program.error().empty() ? read(program.arguments(), arguments) : program.error();
  if (!error.empty()) return usage(error);
  const bool solves = arguments.command == "solve";
  if (solves || arguments.command == "match") {
    // mcts::Program has removed -n and -t from its arguments.
    if (program.arguments().size() + 1 != static_cast<size_t>(argc)) {
      return usage(arguments.command + " has no options -n and -t: it runs one thread");
    }
    return solves ? solve(arguments) : match(arguments);
  }
  const auto job = arguments.command == "gtp"       ? gtp
                   : arguments.command == "analyze" ? analyze
                   : arguments.command == "serve"   ? serve
                   : arguments.command == "bench"   ? bench
                                                    : nullptr;
  if (job == nullptr)
    return usage("the command must be gtp, analyze, serve, solve, match or bench");
  if (job != analyze && !arguments.rest.empty()) {
    return usage(arguments.command + " has no argument '" + arguments.rest[0] + "'");
  }
  if (job == bench && arguments.seconds == 0.0 && arguments.iterations == 0) {
    return usage("bench needs --seconds above 0, or --iterations");
  }
  // A signal ends the search, and the result is printed, or the server ends.
  if (job == analyze || job == serve) arguments.program.interrupt = interrupt;
  return program.run([&](mcts::Host& host) { return job(arguments, host); }, arguments.program);
}

}  // namespace
}  // namespace cariama::hex

int main(int argc, char** argv) {
  return cariama::run_program("cariama-hex", [&] { return cariama::hex::run(argc, argv); });
}
