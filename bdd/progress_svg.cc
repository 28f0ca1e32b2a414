// The picture of a search: states and nodes per level over time.
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bdd/reachability.h"

namespace cariama::bdd {
namespace {

constexpr double kWidth = 760;
constexpr double kHeight = 400;
constexpr double kLeft = 70;
constexpr double kRight = 70;
constexpr double kTop = 50;
constexpr double kBottom = 50;
constexpr int kSteps = 4;  // of each axis

// Returns the smallest 1, 2 or 5 times a power of ten of which kSteps reach `most`. Requires: most
// > 0.
double round_step(double most) {
  const double power = std::pow(10, std::floor(std::log10(most / kSteps)));
  for (const double factor : {1, 2, 5}) {
    if (factor * power * kSteps >= most) return factor * power;
  }
  return 10 * power;
}

std::string svg_text(double x, double y, const std::string& anchor, const std::string& text,
                     const std::string& more = "") {
  return absl::StrFormat("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\"%s>%s</text>\n", x, y,
                         anchor, more, text);
}

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '&') {
      result += "&amp;";
    } else if (c == '<') {
      result += "&lt;";
    } else {
      result.push_back(c);
    }
  }
  return result;
}

}  // namespace

std::string progress_svg(const std::string& title, const std::vector<ReachProgress>& history) {
  double seconds = 1e-3;
  double decades = 1;
  double most_nodes = kSteps;
  for (const ReachProgress& one : history) {
    seconds = std::max(seconds, one.seconds);
    decades = std::max(decades, one.states.log10());
    most_nodes = std::max(most_nodes, static_cast<double>(one.nodes));
  }
  // The ends of the axes.
  seconds = kSteps * round_step(seconds);
  decades = kSteps * std::ceil(decades / kSteps);
  most_nodes = kSteps * round_step(most_nodes);
  const auto x_of = [&](double at) { return kLeft + at / seconds * (kWidth - kLeft - kRight); };
  const auto y_of = [&](double share) {
    return kHeight - kBottom - share * (kHeight - kTop - kBottom);
  };
  std::string svg = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" "
      "font-family=\"sans-serif\" "
      "font-size=\"12\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
      kWidth, kHeight);
  svg += svg_text(kWidth / 2, 24, "middle", escaped(title), " font-size=\"15\"");
  for (int i = 0; i <= kSteps; ++i) {
    const double share = static_cast<double>(i) / kSteps;
    const double y = y_of(share);
    absl::StrAppendFormat(
        &svg, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/>\n", kLeft, y,
        kWidth - kRight, y);
    svg += svg_text(kLeft - 8, y + 4, "end", absl::StrFormat("1e%.0f", share * decades),
                    " fill=\"#1f5fa8\"");
    svg += svg_text(kWidth - kRight + 8, y + 4, "start",
                    absl::StrFormat("%.0f", share * most_nodes), " fill=\"#b0501d\"");
    svg += svg_text(x_of(share * seconds), kHeight - kBottom + 18, "middle",
                    absl::StrFormat("%.3g", share * seconds));
  }
  svg += svg_text(kWidth / 2, kHeight - 10, "middle", "seconds; a point is a level");
  svg += svg_text(kLeft, kTop - 10, "start", "states", " fill=\"#1f5fa8\"");
  svg += svg_text(kWidth - kRight, kTop - 10, "end", "nodes", " fill=\"#b0501d\"");
  const auto curve = [&](const char* color, auto share_of) {
    std::string points;
    for (const ReachProgress& one : history) {
      const double x = x_of(one.seconds);
      const double y = y_of(share_of(one));
      absl::StrAppendFormat(&points, "%.1f,%.1f ", x, y);
      absl::StrAppendFormat(&svg, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"2.5\" fill=\"%s\"/>\n", x, y,
                            color);
    }
    absl::StrAppend(&svg, "<polyline fill=\"none\" stroke-width=\"1.5\" stroke=\"", color,
                    "\" points=\"", points, "\"/>\n");
  };
  curve("#1f5fa8",
        [&](const ReachProgress& one) { return std::max(0.0, one.states.log10()) / decades; });
  curve("#b0501d",
        [&](const ReachProgress& one) { return static_cast<double>(one.nodes) / most_nodes; });
  return svg + "</svg>\n";
}

}  // namespace cariama::bdd
