// The environment variables by which the processes of a job find each other without a launcher.
#ifndef CARIAMA_TESTS_DSFABRIC_TESTING_JOB_ENVIRONMENT_H_
#define CARIAMA_TESTS_DSFABRIC_TESTING_JOB_ENVIRONMENT_H_

#include <sys/socket.h>

#include <cstdlib>
#include <map>
#include <string>

#include "dsfabric/bootstrap/sockets.h"
#include "dtutils/internal/file_descriptor.h"

namespace cariama::testing {

// A free port of 127.0.0.1. As long as this object exists, the kernel gives the port to no process
// that asks for any port; a store may listen on it, because both sockets have SO_REUSEADDR. Until a
// store listens, a connection to the port is refused.
class FreePort {
 public:
  FreePort() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int on = 1;
    const internal::SocketAddress any = *internal::SocketAddress::parse("127.0.0.1:0");
    if (setsockopt(socket_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        bind(socket_.get(), any.get(), any.length()) != 0) {
      std::abort();
    }
  }
  [[nodiscard]] int number() const {
    const std::string text = internal::bound_address(socket_.get()).text();
    return std::stoi(text.substr(text.rfind(':') + 1));
  }

 private:
  const FileDescriptor socket_;
};

// Sets variables of this process, and unsets those of other launchers.
inline void set_environment(const std::map<std::string, std::string>& variables) {
  for (const char* name :
       {"CARIAMA_BOOTSTRAP", "CARIAMA_LAUNCH_SOCKET", "CARIAMA_RANK", "CARIAMA_SIZE",
        "CARIAMA_THREADS", "CARIAMA_JOB_SECRET", "CARIAMA_LISTEN", "PMIX_RANK", "PMIX_NAMESPACE",
        "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK", "SLURM_STEP_NUM_TASKS"}) {
    unsetenv(name);
  }
  for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
}

inline std::map<std::string, std::string> job_of(int rank, int size, int port) {
  return {{"RANK", std::to_string(rank)},
          {"WORLD_SIZE", std::to_string(size)},
          {"MASTER_ADDR", "127.0.0.1"},
          {"MASTER_PORT", std::to_string(port)}};
}
inline std::map<std::string, std::string> job_of(int rank, int size, const FreePort& port) {
  return job_of(rank, size, port.number());
}

}  // namespace cariama::testing

#endif  // CARIAMA_TESTS_DSFABRIC_TESTING_JOB_ENVIRONMENT_H_
