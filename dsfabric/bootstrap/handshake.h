// The handshake by which two processes of a job prove to each other that they know its secret.
// Until the handshake has succeeded, neither end trusts any data of the other end.
//
//   client -> server   hello: magic "CRH1" | service u8 | zero u8[3] | rank u32 | size u32 |
//                      nonce[32]
//   server -> client   hello, likewise
//   client -> server   proof: HMAC-SHA256(secret, "client" | both hellos)
//   server -> client   verdict u8 (1: accepted, 2: another secret, 3: that rank is here already) |
//                      HMAC-SHA256(secret, "server" | both hellos), zeros if not accepted
//
// Both proofs cover both nonces, so a proof cannot be replayed; the role, so it cannot be reflected
// to its sender; and service, ranks and size, so it is not valid elsewhere. Integers are
// little-endian. The handshake authenticates the ends of the connection at its start. The data that
// follows is neither encrypted nor signed.
#ifndef CARIAMA_DSFABRIC_BOOTSTRAP_HANDSHAKE_H_
#define CARIAMA_DSFABRIC_BOOTSTRAP_HANDSHAKE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dsfabric/bootstrap.h"
#include "dtutils/wait.h"

namespace cariama::internal {

// Returns 256 random bits. Ends the process if the system cannot provide them.
[[nodiscard]] JobSecret random_secret();
// HMAC-SHA256.
[[nodiscard]] JobSecret keyed_hash(std::string_view key, std::string_view text);
[[nodiscard]] inline std::string_view bytes_of(const JobSecret& secret) {
  return {reinterpret_cast<const char*>(secret.data()), secret.size()};
}
// Returns a name of the job for `purpose`: 64 hexadecimal digits that its processes agree on. Other
// users can read such names, for example in /proc/net/unix. They do not reveal the secret.
[[nodiscard]] std::string job_name(const JobSecret& secret, std::string_view purpose);
// Compares in constant time, so that the time does not reveal where the secrets differ.
[[nodiscard]] bool equal_secrets(const JobSecret& a, const JobSecret& b);

// The service that the client asks for.
enum class HandshakeService : uint8_t { kStore = 1, kBroker = 2 };

struct Hello {
  static constexpr size_t kBytes = 48;
  HandshakeService service = HandshakeService::kStore;
  uint32_t rank = 0;  // of the sender
  uint32_t size = 0;  // of the job, as the sender knows it
  JobSecret nonce{};
  friend bool operator==(const Hello&, const Hello&) = default;
};
[[nodiscard]] std::string encode(const Hello& hello);
// Error: INVALID_ARGUMENT. Requires: kBytes bytes.
[[nodiscard]] absl::StatusOr<Hello> decode_hello(std::string_view bytes);

// The server's side, without its socket.
class ServerHandshake {
 public:
  enum class State : uint8_t { kHello, kProof, kAccepted, kRefused };

  // `taken`, if given, returns true for a rank that must be refused although it has proved that it
  // knows the secret.
  ServerHandshake(HandshakeService service, int rank, int size, const JobSecret& secret,
                  std::function<bool(int rank)> taken = {});

  // Takes the next bytes of the stream, at most wanted(), and appends the bytes to be sent to
  // `out`.
  State take(std::string_view bytes, std::string& out);
  // Returns the number of bytes missing until the next step. Bytes behind them belong to the
  // service's own protocol.
  [[nodiscard]] size_t wanted() const;
  [[nodiscard]] State state() const { return state_; }
  // The client's rank; valid once accepted.
  [[nodiscard]] int peer() const { return static_cast<int>(client_.rank); }
  // The reason of the refusal; valid once refused.
  [[nodiscard]] const absl::Status& refusal() const { return refusal_; }

 private:
  State refuse(absl::Status why);

  const JobSecret secret_;
  const Hello own_;
  const std::function<bool(int)> taken_;
  Hello client_;
  State state_ = State::kHello;
  std::string received_;
  absl::Status refusal_;
};

// Runs the client's side of the handshake over a connected non-blocking socket. Error texts call
// the server `peer_name`. Errors: PERMISSION_DENIED (the server knows another secret),
// INVALID_ARGUMENT (another program answers), FAILED_PRECONDITION (another rank, or a job of
// another size), ALREADY_EXISTS (a process of this rank has joined before), UNAVAILABLE,
// DEADLINE_EXCEEDED.
[[nodiscard]] absl::Status prove_to_server(int socket, HandshakeService service, int rank, int size,
                                           int server_rank, const JobSecret& secret,
                                           const std::string& peer_name, Deadline deadline);

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_BOOTSTRAP_HANDSHAKE_H_
