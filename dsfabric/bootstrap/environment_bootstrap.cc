// Joins a job whose processes a user or a script has started with RANK, WORLD_SIZE, MASTER_ADDR and
// MASTER_PORT set, as torchrun sets them.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dsfabric/bootstrap/store_bootstrap.h"
#include "dsfabric/bootstrap/tcp_store.h"
#include "dtutils/error.h"

namespace cariama::internal {
namespace {

constexpr const char* kSecretVariable = "CARIAMA_JOB_SECRET";

absl::Status missing(const absl::Status& status) {
  return make_error(status.code(), ErrorScope::kProcess, std::string(status.message()),
                    "set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in every process");
}

// A shorter secret can be guessed by trying.
constexpr size_t kLeastSecretBytes = 16;

// Removes the variable, so that neither child processes nor /proc/self/environ have its text.
void remove_variable(const char* name) {
  if (char* const text = std::getenv(name); text != nullptr) {
    explicit_bzero(text, std::strlen(text));
  }
  unsetenv(name);
}

std::string host_part(const SocketAddress& address) {
  const std::string text = address.text();
  const std::string host = text.substr(0, text.rfind(':'));
  return host.front() == '[' ? host.substr(1, host.size() - 2) : host;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Bootstrap>> join_environment(Exchange::Deadline deadline) {
  absl::StatusOr<int> size = environment_number("WORLD_SIZE", 1, 1 << 24);
  if (!size.ok()) return missing(size.status());
  absl::StatusOr<int> rank = environment_number("RANK", 0, *size - 1);
  if (!rank.ok()) return missing(rank.status());
  // Only validated: the fabric identifies hosts without it.
  if (environment_variable("LOCAL_RANK")) {
    absl::StatusOr<int> local = environment_number("LOCAL_RANK", 0, *size - 1);
    if (!local.ok()) return local.status();
  }
  if (*size == 1) {
    remove_variable(kSecretVariable);
    return join_single(BootstrapKind::kEnvironment);
  }
  absl::StatusOr<int> port = environment_number("MASTER_PORT", 1, 65535);
  if (!port.ok()) return missing(port.status());
  const std::optional<std::string> host = environment_variable("MASTER_ADDR");
  if (!host) {
    return missing(make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kProcess,
                              "MASTER_ADDR is not set"));
  }
  absl::StatusOr<std::vector<SocketAddress>> addresses =
      resolve(*host, static_cast<uint16_t>(*port));
  if (!addresses.ok()) return addresses.status();

  const std::optional<std::string> secret = environment_variable(kSecretVariable);
  if (!secret && !std::all_of(addresses->begin(), addresses->end(),
                              [](const auto& address) { return address.stays_on_host(); })) {
    return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kProcess,
                      absl::StrCat("MASTER_ADDR=", *host, " can be reached from other hosts, and ",
                                   kSecretVariable, " is not set"),
                      absl::StrCat("set ", kSecretVariable,
                                   " to the same secret text in every process, or "
                                   "MASTER_ADDR to 127.0.0.1"));
  }
  if (secret && secret->size() < kLeastSecretBytes) {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kProcess,
                      absl::StrCat(kSecretVariable, " has ", secret->size(),
                                   " characters, at least ", kLeastSecretBytes, " are required"),
                      "make one with: openssl rand -hex 32");
  }
  const JobSecret key = keyed_hash(secret.value_or(""), "cariama job");
  // Without a secret, every process of this host can compute the key. So admit only processes of
  // this user.
  const Admission admission = secret ? Admission::kAnybody : Admission::kOwnUser;

  std::unique_ptr<TcpStore> store;
  FileDescriptor socket;
  std::string own = host_part(addresses->front());
  if (*rank == 0) {
    absl::StatusOr<std::unique_ptr<TcpStore>> started =
        TcpStore::start(addresses->front(), *size, key, admission);
    if (!started.ok()) {
      return make_error(started.status().code(), ErrorScope::kProcess,
                        std::string(started.status().message()),
                        "MASTER_ADDR and MASTER_PORT are those of the host of rank 0");
    }
    store = *std::move(started);
    socket = FileDescriptor(store->take_own_socket());
  } else {
    absl::StatusOr<FileDescriptor> connected =
        connect_to_store(*addresses, *rank, *size, key, deadline, admission);
    if (!connected.ok()) return connected.status();
    socket = *std::move(connected);
    own = host_part(bound_address(socket.get()));
  }
  // A job on loopback has no other hosts.
  if (addresses->front().stays_on_host()) own.clear();
  auto joined = TcpBootstrap::join(BootstrapKind::kEnvironment, std::move(store), std::move(socket),
                                   *rank, *size, key, std::move(own), deadline);
  if (joined.ok()) remove_variable(kSecretVariable);
  return joined;
}

}  // namespace cariama::internal
