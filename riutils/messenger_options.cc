#include "riutils/messenger_options.h"

#include <string>

#include "dtutils/error.h"

namespace cariama {

std::string_view arrival_name(Arrival arrival) {
  switch (arrival) {
    case Arrival::kAuto:
      return "auto";
    case Arrival::kMapped:
      return "mapped";
    case Arrival::kPolled:
      return "polled";
    case Arrival::kEvent:
      return "event";
  }
  return "unknown";
}

absl::StatusOr<MessengerOptions> messenger_preset(std::string_view name) {
  if (name == "default") return MessengerOptions{};
  if (name == "paper") return MessengerOptions::paper();
  return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                    "there is no messenger preset \"" + std::string(name) + "\"",
                    "use default or paper");
}

}  // namespace cariama
