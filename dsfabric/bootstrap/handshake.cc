#include "dsfabric/bootstrap/handshake.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "dsfabric/bootstrap/sockets.h"
#include "dtutils/error.h"

namespace cariama::internal {
namespace {

constexpr std::string_view kMagic = "CRH1";
constexpr size_t kProofBytes = sizeof(JobSecret);
constexpr char kAccepted = 1;
constexpr char kOtherSecret = 2;
constexpr char kTaken = 3;
constexpr std::string_view kSameSecret =
    "give every process of the job, and no other, the same CARIAMA_JOB_SECRET";

void append_u32(uint32_t value, std::string& out) {
  for (int i = 0; i < 4; ++i) out.push_back(static_cast<char>(value >> (8 * i) & 0xff));
}

uint32_t u32_at(std::string_view bytes, size_t offset) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) {
    value |= uint32_t{static_cast<uint8_t>(bytes[offset + i])} << (8 * i);
  }
  return value;
}

JobSecret proof(const JobSecret& secret, std::string_view role, const Hello& client,
                const Hello& server) {
  std::string text(role);
  text += encode(client);
  text += encode(server);
  return keyed_hash(bytes_of(secret), text);
}

JobSecret secret_from(std::string_view bytes) {
  JobSecret secret;
  std::memcpy(secret.data(), bytes.data(), secret.size());
  return secret;
}

// Checks that both hellos state the same job size.
absl::Status check_sizes(const Hello& own, const Hello& theirs, const std::string& peer_name) {
  if (own.size == theirs.size) return absl::OkStatus();
  return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kPeer,
                    absl::StrCat(peer_name, " belongs to a job of ", theirs.size,
                                 " processes, this job has ", own.size),
                    "give every process the same number of processes");
}

}  // namespace

JobSecret random_secret() {
  JobSecret secret;
  size_t filled = 0;
  while (filled < secret.size()) {
    const ssize_t count = getrandom(secret.data() + filled, secret.size() - filled, 0);
    if (count > 0) {
      filled += static_cast<size_t>(count);
    } else if (errno != EINTR) {
      std::perror("cariama: getrandom");  // never continue without a secret
      std::abort();
    }
  }
  return secret;
}

JobSecret keyed_hash(std::string_view key, std::string_view text) {
  // exit() would free the state of libcrypto while service threads use it. The first use of
  // libcrypto in the process decides; that of the program may be earlier.
  [[maybe_unused]] static const int kept = OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, nullptr);
  JobSecret hash;
  unsigned length = 0;
  // A null key would make HMAC() reuse the previous key.
  if (HMAC(EVP_sha256(), key.empty() ? "" : key.data(), static_cast<int>(key.size()),
           reinterpret_cast<const unsigned char*>(text.data()), text.size(), hash.data(),
           &length) == nullptr ||
      length != hash.size()) {
    std::fputs("cariama: libcrypto has no HMAC-SHA256\n", stderr);
    std::abort();
  }
  return hash;
}

std::string job_name(const JobSecret& secret, std::string_view purpose) {
  const JobSecret hash = keyed_hash(bytes_of(secret), purpose);
  return absl::BytesToHexString(std::string(bytes_of(hash)));
}

bool equal_secrets(const JobSecret& a, const JobSecret& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::string encode(const Hello& hello) {
  std::string out(kMagic);
  out.push_back(static_cast<char>(hello.service));
  out.append(3, '\0');
  append_u32(hello.rank, out);
  append_u32(hello.size, out);
  out.append(bytes_of(hello.nonce));
  return out;
}

absl::StatusOr<Hello> decode_hello(std::string_view bytes) {
  const auto service = static_cast<HandshakeService>(bytes[4]);
  if (bytes.substr(0, 4) != kMagic || bytes.substr(5, 3) != std::string_view("\0\0\0", 3) ||
      (service != HandshakeService::kStore && service != HandshakeService::kBroker)) {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kPeer,
                      "the other end did not send a hello of this protocol");
  }
  return Hello{.service = service,
               .rank = u32_at(bytes, 8),
               .size = u32_at(bytes, 12),
               .nonce = secret_from(bytes.substr(16, kProofBytes))};
}

ServerHandshake::ServerHandshake(HandshakeService service, int rank, int size,
                                 const JobSecret& secret, std::function<bool(int)> taken)
    : secret_(secret),
      own_{.service = service,
           .rank = static_cast<uint32_t>(rank),
           .size = static_cast<uint32_t>(size),
           .nonce = random_secret()},
      taken_(std::move(taken)) {}

size_t ServerHandshake::wanted() const {
  switch (state_) {
    case State::kHello:
      return Hello::kBytes - received_.size();
    case State::kProof:
      return kProofBytes - received_.size();
    default:
      return 0;
  }
}

ServerHandshake::State ServerHandshake::refuse(absl::Status why) {
  refusal_ = std::move(why);
  return state_ = State::kRefused;
}

ServerHandshake::State ServerHandshake::take(std::string_view bytes, std::string& out) {
  received_.append(bytes);
  if (wanted() != 0 || state_ == State::kAccepted || state_ == State::kRefused) return state_;
  const std::string message = std::exchange(received_, {});
  if (state_ == State::kHello) {
    absl::StatusOr<Hello> hello = decode_hello(message);
    if (!hello.ok()) return refuse(hello.status());
    client_ = *hello;
    // The client checks the sizes too, and needs this hello for that: send it in any case.
    out += encode(own_);
    const std::string peer_name = absl::StrCat("a process that calls itself rank ", client_.rank);
    if (absl::Status sizes = check_sizes(own_, client_, peer_name); !sizes.ok())
      return refuse(sizes);
    if (client_.service != own_.service || client_.rank >= own_.size) {
      return refuse(make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kPeer,
                               peer_name + " asks for a service or a rank that is not here"));
    }
    return state_ = State::kProof;
  }
  if (!equal_secrets(secret_from(message), proof(secret_, "client", client_, own_))) {
    out.push_back(kOtherSecret);
    out.append(kProofBytes, '\0');
    return refuse(make_error(
        absl::StatusCode::kPermissionDenied, ErrorScope::kPeer,
        absl::StrCat("a process that calls itself rank ", client_.rank, " has another secret"),
        kSameSecret));
  }
  if (taken_ && taken_(peer())) {
    out.push_back(kTaken);
    out.append(kProofBytes, '\0');
    return refuse(make_error(absl::StatusCode::kAlreadyExists, ErrorScope::kPeer,
                             absl::StrCat("a second process calls itself rank ", client_.rank)));
  }
  out.push_back(kAccepted);
  out.append(bytes_of(proof(secret_, "server", client_, own_)));
  return state_ = State::kAccepted;
}

absl::Status prove_to_server(int socket, HandshakeService service, int rank, int size,
                             int server_rank, const JobSecret& secret, const std::string& peer_name,
                             Deadline deadline) {
  const Hello own{.service = service,
                  .rank = static_cast<uint32_t>(rank),
                  .size = static_cast<uint32_t>(size),
                  .nonce = random_secret()};
  if (absl::Status sent = send_exactly(socket, encode(own), peer_name, deadline); !sent.ok()) {
    return sent;
  }
  std::string answer(Hello::kBytes, '\0');
  if (absl::Status came =
          receive_exactly(socket, answer.data(), answer.size(), peer_name, deadline);
      !came.ok()) {
    return came;
  }
  absl::StatusOr<Hello> server = decode_hello(answer);
  if (!server.ok()) {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kPeer,
                      "another program answers at the address of " + peer_name,
                      "choose a port that nothing else uses");
  }
  if (absl::Status sizes = check_sizes(own, *server, peer_name); !sizes.ok()) return sizes;
  if (server->service != service || server->rank != static_cast<uint32_t>(server_rank)) {
    return make_error(
        absl::StatusCode::kFailedPrecondition, ErrorScope::kPeer,
        absl::StrCat("rank ", server->rank, " answers at the address of ", peer_name));
  }
  if (absl::Status sent = send_exactly(socket, bytes_of(proof(secret, "client", own, *server)),
                                       peer_name, deadline);
      !sent.ok()) {
    return sent;
  }
  std::string verdict(1 + kProofBytes, '\0');
  if (absl::Status came =
          receive_exactly(socket, verdict.data(), verdict.size(), peer_name, deadline);
      !came.ok()) {
    return came;
  }
  const JobSecret theirs = secret_from(std::string_view(verdict).substr(1));
  if (verdict[0] == kAccepted && equal_secrets(theirs, proof(secret, "server", own, *server))) {
    return absl::OkStatus();
  }
  if (verdict[0] == kTaken) {
    return make_error(absl::StatusCode::kAlreadyExists, ErrorScope::kProcess,
                      absl::StrCat("another process has joined as rank ", rank, " already"),
                      "give each process its own rank, once");
  }
  return make_error(absl::StatusCode::kPermissionDenied, ErrorScope::kPeer,
                    verdict[0] == kOtherSecret
                        ? peer_name + " refuses this process: it has another secret"
                        : peer_name + " does not know the secret of this job",
                    kSameSecret);
}

}  // namespace cariama::internal
