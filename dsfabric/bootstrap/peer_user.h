// Finds the user of the process at the other end of a TCP connection within this host.
#ifndef CARIAMA_DSFABRIC_BOOTSTRAP_PEER_USER_H_
#define CARIAMA_DSFABRIC_BOOTSTRAP_PEER_USER_H_

#include <cstdint>
#include <optional>

namespace cariama::internal {

// Returns the user id of the owner of the socket at the other end, from the kernel's table of
// connections, or nullopt if the table has no such established connection. Reads the whole table:
// O(connections of the host).
[[nodiscard]] std::optional<uint32_t> user_at_other_end(int socket);

// Returns true if the user at the other end of the socket is the user of this process.
[[nodiscard]] bool other_end_is_ours(int socket);

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_BOOTSTRAP_PEER_USER_H_
