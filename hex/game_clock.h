// GameClock: the time that a player has left, and the time for the next move. Source: the Go Text
// Protocol, version 2, section 4.2 (absolute time and Canadian byo-yomi).
#ifndef CARIAMA_HEX_GAME_CLOCK_H_
#define CARIAMA_HEX_GAME_CLOCK_H_

#include <optional>
#include <string>

namespace cariama::hex {

// The settings of a game. A player first uses the main time. Then each period of `period` seconds
// must suffice for `stones` moves.
struct TimeSettings {
  double main = 0;    // seconds
  double period = 0;  // seconds; 0: no byo-yomi
  double stones = 0;  // moves of a period; 0 with period > 0: no limit, as in GTP

  [[nodiscard]] bool limited() const { return period == 0 || stones != 0; }
  [[nodiscard]] bool has_periods() const { return period > 0 && stones > 0; }
};

// Not thread-safe.
class GameClock {
 public:
  // Creates a clock without a limit.
  GameClock() = default;
  explicit GameClock(const TimeSettings& settings);

  // Sets the remaining time: `seconds` of the main time (stones == 0), or of the running period, in
  // which `stones` moves remain. A clock without a limit gets this limit.
  void set_left(double seconds, double stones);
  // Records a move that took `seconds`. Time beyond the main time is taken from the first period.
  // The last move of a period begins the next one.
  void spend(double seconds);

  // Returns the time for the next move in seconds, or nullopt without a limit. `empties`: number of
  // empty cells. At least 10 ms. A reserve remains for delays of the controller: half a second of
  // the main time, and of each move in byo-yomi a twentieth of its time, from 20 to 250 ms.
  [[nodiscard]] std::optional<double> move_seconds(int empties) const;

  // Returns "unlimited", "12.5" (remaining seconds of the main time), or "12.5/3" (of the running
  // period, and its remaining moves).
  [[nodiscard]] std::string text() const;

 private:
  bool limited_ = false;
  TimeSettings settings_;
  double left_ = 0;    // seconds
  double stones_ = 0;  // moves left in the running period; 0: main time
};

}  // namespace cariama::hex

#endif  // CARIAMA_HEX_GAME_CLOCK_H_
