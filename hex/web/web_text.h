// The texts of the HTTP interface (web_server.h): JSON of games and of searches, and the checks of
// the headers Host and Origin. Thread-safe.
#ifndef CARIAMA_HEX_WEB_WEB_TEXT_H_
#define CARIAMA_HEX_WEB_WEB_TEXT_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "hex/sgf.h"
#include "hex/web/search_queue.h"

namespace cariama::hex {

// Returns true if `address` is an IPv4 or IPv6 address in digits, without brackets.
[[nodiscard]] bool is_ip_address(const std::string& address);
// As is_ip_address(), for the addresses 127.*.*.* and ::1.
[[nodiscard]] bool is_loopback_address(const std::string& address);

// Returns true if a server that listens at `address` accepts the value of the header Host, with or
// without a port. It accepts "localhost" and addresses in digits, at a loopback address only
// loopback addresses. It refuses all other names, to prevent DNS rebinding, in which the owner of a
// foreign page makes a name of the foreign domain resolve to this machine.
[[nodiscard]] bool is_accepted_host(std::string_view host, const std::string& address);
// Returns true if `origin`, the value of the header Origin, is that of a page of this server, which
// the client calls `host`.
[[nodiscard]] bool is_accepted_origin(std::string_view origin, std::string_view host);

// Reads a game from SGF, as parse_sgf(). `swap` switches the swap rule on if the game begins with
// an empty square board; in a game that contains a swap the rule is in force without the option.
[[nodiscard]] absl::StatusOr<SgfGame> parse_web_game(std::string_view sgf, bool swap);

// Returns the game, and the last position of its main line, as a JSON object.
[[nodiscard]] std::string game_json(const SgfGame& game);
// Returns the state of a search as a JSON object in one line. Moves without a visit are left out.
[[nodiscard]] std::string view_json(const Board& board, const SearchView& view);

}  // namespace cariama::hex

#endif  // CARIAMA_HEX_WEB_WEB_TEXT_H_
