#include "hex/match.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>

#include "absl/strings/str_format.h"
#include "dtutils/error.h"
#include "hex/gtp_client.h"
#include "mcts/random.h"

namespace cariama::hex {
namespace {

using Clock = std::chrono::steady_clock;

// The engine of one player during a match.
class Seat {
 public:
  Seat(const Player& player, const MatchOptions& options) : player_(player), options_(options) {}

  // Starts the engine if it does not run, and prepares it for a new game.
  absl::Status begin() {
    if (client_ == nullptr) {
      absl::StatusOr<std::unique_ptr<GtpClient>> client = GtpClient::start(player_.command);
      if (!client.ok()) return client.status();
      client_ = *std::move(client);
    }
    // Try the form of HexGui first. Programs for square boards accept only one number.
    const std::string cols = std::to_string(options_.cols);
    absl::Status sized = set_up("boardsize " + cols + " " + std::to_string(options_.rows));
    if (!sized.ok() && client_ != nullptr && options_.cols == options_.rows) {
      sized = set_up("boardsize " + cols);
    }
    if (!sized.ok()) return refused(sized);
    if (absl::Status status = set_up("clear_board"); !status.ok()) return refused(status);
    for (const std::string& command : player_.setup) {
      if (absl::Status status = set_up(command); !status.ok()) return refused(status);
    }
    seconds_ = 0;
    return absl::OkStatus();
  }

  absl::Status play(Color color, const std::string& move) {
    return tell("play " + color_text(color) + " " + move);
  }

  absl::StatusOr<std::string> genmove(Color color) {
    if (options_.game_seconds > 0) {
      const double left = std::max(0.0, options_.game_seconds - seconds_);
      if (absl::Status status = tell(absl::StrFormat("time_left %s %.2f", color_text(color), left));
          !status.ok()) {
        return status;
      }
    }
    const Clock::time_point start = Clock::now();
    absl::StatusOr<std::string> move = ask("genmove " + color_text(color), options_.move_seconds);
    seconds_ += std::chrono::duration<double>(Clock::now() - start).count();
    return move;
  }

  [[nodiscard]] double seconds() const { return seconds_; }

 private:
  [[nodiscard]] std::string color_text(Color color) const {
    return (color == Color::kBlack) != player_.first_is_white ? "b" : "w";
  }

  absl::StatusOr<std::string> ask(const std::string& command, double seconds) {
    if (client_ == nullptr) {
      return make_error(absl::StatusCode::kUnavailable, ErrorScope::kPeer, "the engine has ended");
    }
    absl::StatusOr<std::string> answer = client_->ask(command, seconds);
    // After other errors the next output could belong to this command: end the engine.
    if (!answer.ok() && answer.status().code() != absl::StatusCode::kInvalidArgument) {
      client_.reset();
    }
    return answer;
  }
  absl::Status tell(const std::string& command) {
    return ask(command, options_.move_seconds).status();
  }
  absl::Status set_up(const std::string& command) {
    return ask(command, options_.setup_seconds).status();
  }

  absl::Status refused(const absl::Status& status) const {
    return make_error(absl::StatusCode::kUnavailable, ErrorScope::kPeer,
                      player_.name + " cannot begin a game: " + std::string(status.message()),
                      "check its command and setup by hand: " + player_.command);
  }

  const Player& player_;
  const MatchOptions& options_;
  std::unique_ptr<GtpClient> client_;
  double seconds_ = 0;
};

// The result of a game.
struct Ending {
  Color winner = Color::kBlack;
  std::string reason;
  bool failed = false;
};

// Plays a game from the end of its opening to its end. Adds the moves to the record.
Ending play_out(GameRecord& record, const MatchOptions& options, std::array<Seat*, 2> seat_of) {
  for (;;) {
    const Color color = record.board().to_move();
    const Color other = opponent(color);
    Seat& mover = *seat_of[static_cast<int>(color)];
    const auto lost = [&](std::string reason, bool failed = true) {
      return Ending{other, std::move(reason), failed};
    };
    const absl::StatusOr<std::string> answer = mover.genmove(color);
    if (options.game_seconds > 0 && mover.seconds() > options.game_seconds) return lost("time");
    if (!answer.ok()) return lost(std::string(answer.status().message()));
    std::string text = *answer;
    for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
    if (text == "resign") return lost("resignation", false);
    const auto move = record.board().parse(text);
    if (!move || !record.play(color, *move)) {
      return lost("illegal move: " + text.substr(0, 40));
    }
    if (record.board().winner()) return {color, "connection", false};
    const absl::Status told = seat_of[static_cast<int>(other)]->play(color, text);
    if (!told.ok()) {
      return {color, "refused a legal move: " + std::string(told.message()), true};
    }
  }
}

}  // namespace

std::vector<std::vector<Move>> make_openings(int cols, int rows, int count, uint64_t seed) {
  std::vector<std::vector<Move>> openings;
  for (int row = 0; row < rows; ++row) {
    for (const int col : {0, cols - 1}) {
      openings.push_back({static_cast<Move>(row * cols + col)});
    }
  }
  mcts::Random random(seed);
  for (size_t i = openings.size(); i > 1; --i) {
    std::swap(openings[i - 1], openings[random.below(static_cast<uint32_t>(i))]);
  }
  if (openings.size() > static_cast<size_t>(count)) openings.resize(static_cast<size_t>(count));
  return openings;
}

absl::StatusOr<MatchResult> play_match(const std::array<Player, 2>& players,
                                       const MatchOptions& options,
                                       const std::function<void(const GameResult&)>& done) {
  const auto bad = [](std::string_view what) {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation, what);
  };
  if (!is_board_size(options.cols, options.rows)) return bad("the size must be 3x3 to 25x25");
  if (options.pairs < 1) return bad("a match needs at least one pair of games");
  std::vector<std::vector<Move>> openings = options.openings;
  if (openings.empty()) {
    openings = make_openings(options.cols, options.rows, options.pairs, options.seed);
  }
  for (const std::vector<Move>& opening : openings) {
    GameRecord record(Board(options.cols, options.rows));
    for (const Move move : opening) {
      if (!record.play(record.board().to_move(), move)) return bad("an opening is illegal");
    }
    if (record.board().winner()) return bad("an opening ends the game");
  }
  Seat seats[2] = {Seat(players[0], options), Seat(players[1], options)};
  MatchResult result;
  for (int number = 1; number <= 2 * options.pairs; ++number) {
    if (options.stop != nullptr && options.stop->load(std::memory_order_relaxed)) break;
    const int black = (number - 1) % 2;
    GameRecord record(Board(options.cols, options.rows));
    for (Seat& seat : seats) {
      if (absl::Status status = seat.begin(); !status.ok()) return status;
    }
    const auto& opening = openings[static_cast<size_t>(number - 1) / 2 % openings.size()];
    const std::array<Seat*, 2> seat_of = {&seats[black], &seats[1 - black]};
    std::optional<Ending> ending;
    for (const Move move : opening) {
      const Color color = record.board().to_move();
      const std::string text = record.board().name(move);
      record.play(color, move);
      for (const Color side : {Color::kBlack, Color::kWhite}) {
        const absl::Status told = seat_of[static_cast<int>(side)]->play(color, text);
        if (!told.ok() && !ending) {
          ending = {opponent(side), "refused the opening: " + std::string(told.message()), true};
        }
      }
    }
    if (!ending) ending = play_out(record, options, seat_of);

    GameResult game;
    game.number = number;
    game.black_player = black;
    game.winner = ending->winner == Color::kBlack ? black : 1 - black;
    game.reason = ending->reason;
    game.seconds = {seats[0].seconds(), seats[1].seconds()};
    game.record = to_sgf(record);
    game.record.black_name = players[black].name;
    game.record.white_name = players[1 - black].name;
    game.record.result = ending->winner == Color::kBlack ? "B+" : "W+";
    if (ending->reason == "resignation") {
      game.record.resigned = opponent(ending->winner);
      game.record.result += "Resign";
    } else if (ending->failed) {
      game.record.result += ending->reason == "time" ? "Time" : "Forfeit";
    }
    game.record.comment = ending->reason;
    ++result.wins[game.winner];
    result.failures += ending->failed;
    if (!options.sgf_folder.empty()) {
      const std::string path = options.sgf_folder + absl::StrFormat("/game-%04d.sgf", number);
      if (absl::Status status = save_sgf(path, game.record); !status.ok()) return status;
    }
    if (done) done(game);
  }
  return result;
}

Elo elo(int wins, int games) {
  const auto rating = [](double share) { return 400 * std::log10(share / (1 - share)); };
  constexpr double kZ = 1.959964;  // 95 %
  const double n = games;
  const double p = wins / n;
  const double center = (p + kZ * kZ / (2 * n)) / (1 + kZ * kZ / n);
  const double half = kZ / (1 + kZ * kZ / n) * std::sqrt(p * (1 - p) / n + kZ * kZ / (4 * n * n));
  Elo result;
  result.difference = rating(p);
  result.low = wins == 0 ? rating(0) : rating(center - half);
  result.high = wins == games ? rating(1) : rating(center + half);
  return result;
}

}  // namespace cariama::hex
