// How two processes of a job prove to each other that they know its secret, before either believes
// anything else that the other sends.
//
//   client -> server   hello: magic "CRH1" | service u8 | zero u8[3] | rank u32 | size u32 |
//                      nonce[32]
//   server -> client   hello, likewise
//   client -> server   proof: HMAC-SHA256(secret, "client" | both hellos)
//   server -> client   verdict u8 (1: accepted, 2: another secret, 3: that rank is here already) |
//                      HMAC-SHA256(secret, "server" | both hellos), zeros if not accepted
//
// Both nonces are in both proofs, so no proof serves twice; the role is in it, so none can be sent
// back to who made it; service, ranks and size are in it, so none serves elsewhere. Integers are
// little-endian. It proves who opened the connection; what follows on it is neither encrypted nor
// signed.
#ifndef CARIAMA_DSFABRIC_INTERNAL_HANDSHAKE_H_
#define CARIAMA_DSFABRIC_INTERNAL_HANDSHAKE_H_

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

// 256 bits that nobody can guess. Ends the process if the system has none.
[[nodiscard]] JobSecret random_secret();
// HMAC-SHA256.
[[nodiscard]] JobSecret keyed_hash(std::string_view key, std::string_view text);
[[nodiscard]] inline std::string_view bytes_of(const JobSecret& secret) {
  return {reinterpret_cast<const char*>(secret.data()), secret.size()};
}
// In a time that does not tell where they differ.
[[nodiscard]] bool equal_secrets(const JobSecret& a, const JobSecret& b);

// What is asked for at the other end.
enum class HandshakeService : uint8_t { kStore = 1, kBroker = 2 };

struct Hello {
  static constexpr size_t kBytes = 48;
  HandshakeService service = HandshakeService::kStore;
  uint32_t rank = 0;  // who sends it
  uint32_t size = 0;  // of the job, as the sender knows it
  JobSecret nonce{};
  friend bool operator==(const Hello&, const Hello&) = default;
};
[[nodiscard]] std::string encode(const Hello& hello);
// Error: INVALID_ARGUMENT. Precondition: kBytes bytes.
[[nodiscard]] absl::StatusOr<Hello> decode_hello(std::string_view bytes);

// The server's half, without its socket.
class ServerHandshake {
 public:
  enum class State : uint8_t { kHello, kProof, kAccepted, kRefused };

  // `taken`, if given, says whether a rank that has proved itself must be refused all the same.
  ServerHandshake(HandshakeService service, int rank, int size, const JobSecret& secret,
                  std::function<bool(int rank)> taken = {});

  // Takes the next bytes of the stream, at most wanted(), and appends to `out` what has to be sent.
  State take(std::string_view bytes, std::string& out);
  // Bytes that are missing until the next step; those behind them belong to what follows.
  [[nodiscard]] size_t wanted() const;
  [[nodiscard]] State state() const { return state_; }
  // Who it is; once accepted.
  [[nodiscard]] int peer() const { return static_cast<int>(client_.rank); }
  // Why not; once refused.
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

// The client's half, over a connected non-blocking socket. `whom` names the server. Errors:
// PERMISSION_DENIED (it knows another secret), INVALID_ARGUMENT (something else answers there),
// FAILED_PRECONDITION (another rank or a job of another size), ALREADY_EXISTS (a process of our
// rank is there), UNAVAILABLE, DEADLINE_EXCEEDED.
[[nodiscard]] absl::Status prove_to_server(int socket, HandshakeService service, int rank, int size,
                                           int server_rank, const JobSecret& secret,
                                           const std::string& whom, Deadline deadline);

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_INTERNAL_HANDSHAKE_H_
