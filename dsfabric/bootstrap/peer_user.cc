#include "dsfabric/bootstrap/peer_user.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>

namespace cariama::internal {
namespace {

// Formats an address as the kernel's tables do: the address as words in memory order, and the port.
// "" for other address families.
std::string in_table(const sockaddr_storage& address) {
  char text[48] = "";
  if (address.ss_family == AF_INET) {
    sockaddr_in in{};
    std::memcpy(&in, &address, sizeof in);
    std::snprintf(text, sizeof text, "%08X:%04X", in.sin_addr.s_addr, ntohs(in.sin_port));
  } else if (address.ss_family == AF_INET6) {
    sockaddr_in6 in{};
    std::memcpy(&in, &address, sizeof in);
    uint32_t words[4];
    std::memcpy(words, &in.sin6_addr, sizeof words);
    std::snprintf(text, sizeof text, "%08X%08X%08X%08X:%04X", words[0], words[1], words[2],
                  words[3], ntohs(in.sin6_port));
  }
  return text;
}

}  // namespace

std::optional<uint32_t> user_at_other_end(int socket) {
  sockaddr_storage near{};
  sockaddr_storage far{};
  socklen_t near_length = sizeof near;
  socklen_t far_length = sizeof far;
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&near), &near_length) != 0 ||
      getpeername(socket, reinterpret_cast<sockaddr*>(&far), &far_length) != 0) {
    return std::nullopt;
  }
  const std::string ours = in_table(near);
  const std::string theirs = in_table(far);
  std::ifstream table(near.ss_family == AF_INET6 ? "/proc/self/net/tcp6" : "/proc/self/net/tcp");
  table.ignore(std::numeric_limits<std::streamsize>::max(), '\n');  // the heading
  for (std::string line; std::getline(table, line);) {
    // "0: LOCAL REMOTE STATE QUEUES TIMER RETRANSMITS UID ...". A closed socket has no owner, and
    // is listed as root's; so only established sockets count.
    std::istringstream fields(line);
    std::string number, local, remote, state, queues, timer, retransmits;
    uint32_t user = 0;
    if (fields >> number >> local >> remote >> state >> queues >> timer >> retransmits >> user &&
        local == theirs && remote == ours && state == "01") {
      return user;
    }
  }
  return std::nullopt;
}

bool other_end_is_ours(int socket) { return user_at_other_end(socket) == geteuid(); }

}  // namespace cariama::internal
