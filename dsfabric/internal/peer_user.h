// Whose process is at the other end of a TCP connection within this host.
#ifndef CARIAMA_DSFABRIC_INTERNAL_PEER_USER_H_
#define CARIAMA_DSFABRIC_INTERNAL_PEER_USER_H_

#include <cstdint>
#include <optional>

namespace cariama::internal {

// The user who owns the socket at the other end, as the kernel's table of connections has it; or
// nullopt: the table has none that is established. Reads the table: O(connections of the host).
[[nodiscard]] std::optional<uint32_t> user_at_other_end(int socket);

// Whether that is the user of this process.
[[nodiscard]] bool other_end_is_ours(int socket);

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_INTERNAL_PEER_USER_H_
