#include "hex/analysis.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "absl/strings/str_format.h"

namespace cariama::hex {
namespace {

constexpr size_t kLines = 5;  // number of listed moves

struct Shade {
  int red, green, blue;
};

// Returns the colour for a win rate: red over yellow to green. A smaller share of the visits gives
// a darker colour, but never black.
Shade shade(double win_rate, double share) {
  const double rate = std::clamp(win_rate, 0.0, 1.0);
  const double light = 0.35 + 0.65 * std::sqrt(std::clamp(share, 0.0, 1.0));
  return {static_cast<int>(light * 230 * std::min(1.0, 2 * (1 - rate))),
          static_cast<int>(light * 200 * std::min(1.0, 2 * rate)), static_cast<int>(light * 40)};
}

// The search results by cell; nullptr for cells without a result.
struct ReportedCells {
  std::array<const MoveReport*, kMaxCells> of{};
  uint64_t most = 1;
  Move best = kNoMove;

  explicit ReportedCells(const SearchReport& report) {
    if (!report.moves.empty()) best = report.moves[0].move;
    for (const MoveReport& move : report.moves) {
      if (move.move >= kMaxCells) continue;
      of[move.move] = &move;
      most = std::max(most, move.visits);
    }
  }
  [[nodiscard]] double share(const MoveReport& move) const {
    return static_cast<double>(move.visits) / static_cast<double>(most);
  }
};

std::string percent(const MoveReport& move) {
  if (move.proven_win) return *move.proven_win ? "win" : "loss";
  return absl::StrFormat("%.1f%%", 100 * std::clamp(move.win_rate, 0.0, 1.0));
}

std::string column_names(int cols, int width) {
  std::string text;
  for (int col = 0; col < cols; ++col) {
    std::string name = cell_name(static_cast<Move>(col), cols);
    name.pop_back();  // removes the number of the row
    text += name + std::string(static_cast<size_t>(width) - name.size(), ' ');
  }
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return text;
}

std::string side_line(const Board& board) {
  return "Black: top-bottom, White: left-right, " + std::string(color_name(board.to_move())) +
         " to move";
}

}  // namespace

std::string board_text(const Board& board) {
  std::string text = "   " + column_names(board.cols(), 2) + "\n";
  for (int row = 0; row < board.rows(); ++row) {
    text += std::string(static_cast<size_t>(row), ' ') + absl::StrFormat("%2d ", row + 1);
    for (int col = 0; col < board.cols(); ++col) {
      const auto stone = board.at(static_cast<Move>(row * board.cols() + col));
      text += !stone ? ". " : *stone == Color::kBlack ? "B " : "W ";
    }
    text += std::to_string(row + 1) + "\n";
  }
  return text + side_line(board);
}

std::string report_line(const Board& board, const MoveReport& move) {
  std::string text =
      absl::StrFormat("%-4s %6s %10d visits ", board.name(move.move), percent(move), move.visits);
  for (const Move next : move.line) text += " " + board.name(next);
  return text;
}

std::string heat_map(const Board& board, const SearchReport& report, const HeatMap& options) {
  // A cell takes four characters: three of text and a space. Each row is shifted by two characters.
  const ReportedCells cells(report);
  std::string text = "    " + column_names(board.cols(), 4) + "\n";
  for (int row = 0; row < board.rows(); ++row) {
    text += std::string(static_cast<size_t>(2 * row), ' ') + absl::StrFormat("%2d  ", row + 1);
    for (int col = 0; col < board.cols(); ++col) {
      const Move cell = static_cast<Move>(row * board.cols() + col);
      const auto stone = board.at(cell);
      const MoveReport* move = cells.of[cell];
      std::string label = " . ";
      if (stone) {
        label = *stone == Color::kBlack ? " B " : " W ";
        if (options.colors) {
          label = (*stone == Color::kBlack ? "\x1b[1;37;40m" : "\x1b[1;30;47m") + label + "\x1b[0m";
        }
      } else if (move != nullptr) {
        const double share = cells.share(*move);
        const int visits = std::min(99, static_cast<int>(100 * share));
        label = cell == cells.best ? " **" : absl::StrFormat(" %2d", visits);
        if (options.colors) {
          const Shade color = shade(move->win_rate, share);
          label = absl::StrFormat("\x1b[30;48;2;%d;%d;%dm%s\x1b[0m", color.red, color.green,
                                  color.blue, label);
        }
      }
      text += label + " ";
    }
    text += std::to_string(row + 1) + "\n";
  }
  text += side_line(board);
  text += absl::StrFormat("; %d iterations in %.1f s", report.iterations, report.seconds);
  for (size_t i = 0; i < report.moves.size() && i < kLines; ++i) {
    text += "\n" + report_line(board, report.moves[i]);
  }
  return text + "\n";
}

std::string heat_map_svg(const Board& board, const SearchReport& report) {
  const ReportedCells cells(report);
  constexpr double kRadius = 28;  // from the centre of a cell to its corners
  const double width = kRadius * std::sqrt(3.0);
  const double left = 2 * kRadius;
  const double top = 2 * kRadius;
  const double total_width = 2 * left + width * (board.cols() + 0.5 * (board.rows() - 1));
  const double total_height = 2 * top + 1.5 * kRadius * (board.rows() - 1) + kRadius;
  const auto x_of = [&](double col, double row) { return left + width * (col + 0.5 + 0.5 * row); };
  const auto y_of = [&](double row) { return top + kRadius / 2 + 1.5 * kRadius * row; };
  const auto text_at = [](double x, double y, int size, std::string_view fill,
                          const std::string& text) {
    return absl::StrFormat("<text x=\"%.1f\" y=\"%.1f\" font-size=\"%d\" fill=\"%s\">%s</text>\n",
                           x, y, size, std::string(fill), text);
  };

  std::string svg = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" "
      "font-family=\"sans-serif\" text-anchor=\"middle\">\n"
      "<rect width=\"100%%\" height=\"100%%\" fill=\"#f4efe6\"/>\n",
      total_width, total_height);
  // The edges: black above and below, white at the sides.
  const double last_row = board.rows() - 1;
  const double last_col = board.cols() - 1;
  const auto edge = [&](double col1, double row1, double col2, double row2, double dx, double dy,
                        std::string_view color) {
    svg += absl::StrFormat(
        "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" stroke-width=\"8\" "
        "stroke-linecap=\"round\"/>\n",
        x_of(col1, row1) + dx, y_of(row1) + dy, x_of(col2, row2) + dx, y_of(row2) + dy,
        std::string(color));
  };
  edge(0, 0, last_col, 0, 0, -1.15 * kRadius, "#222222");
  edge(0, last_row, last_col, last_row, 0, 1.15 * kRadius, "#222222");
  edge(0, 0, 0, last_row, -1.1 * kRadius, 0, "#ffffff");
  edge(last_col, 0, last_col, last_row, 1.1 * kRadius, 0, "#ffffff");

  for (int cell = 0; cell < board.cells(); ++cell) {
    const int col = cell % board.cols();
    const int row = cell / board.cols();
    const double x = x_of(col, row);
    const double y = y_of(row);
    const MoveReport* move = cells.of[cell];
    const auto stone = board.at(static_cast<Move>(cell));
    std::string fill = "#e2d8c3";
    if (!stone && move != nullptr) {
      const Shade color = shade(move->win_rate, cells.share(*move));
      fill = absl::StrFormat("#%02x%02x%02x", color.red, color.green, color.blue);
    }
    std::string points;
    for (int corner = 0; corner < 6; ++corner) {
      const double angle = (60.0 * corner - 90) * 3.14159265358979 / 180;
      points += absl::StrFormat("%.1f,%.1f ", x + kRadius * std::cos(angle),
                                y + kRadius * std::sin(angle));
    }
    const bool best = static_cast<Move>(cell) == cells.best;
    svg +=
        absl::StrFormat("<polygon points=\"%s\" fill=\"%s\" stroke=\"%s\" stroke-width=\"%d\"/>\n",
                        points, fill, best ? "#1040d0" : "#8a8172", best ? 4 : 1);
    if (stone) {
      const bool black = *stone == Color::kBlack;
      svg += absl::StrFormat(
          "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%.1f\" fill=\"%s\" stroke=\"#222222\"/>\n", x, y,
          0.62 * kRadius, black ? "#222222" : "#ffffff");
    } else if (move != nullptr) {
      svg += text_at(x, y - 2, 12, "#000000", percent(*move));
      svg += text_at(x, y + 12, 10, "#000000", std::to_string(move->visits));
    } else {
      svg += text_at(x, y + 4, 10, "#8a8172", board.name(static_cast<Move>(cell)));
    }
  }
  svg += text_at(total_width / 2, total_height - 6, 14, "#222222",
                 absl::StrFormat("%s; %d iterations in %.1f s", side_line(board), report.iterations,
                                 report.seconds));
  return svg + "</svg>\n";
}

}  // namespace cariama::hex
