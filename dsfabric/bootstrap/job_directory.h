// The names and hosts of the processes of a job.
#ifndef CARIAMA_DSFABRIC_BOOTSTRAP_JOB_DIRECTORY_H_
#define CARIAMA_DSFABRIC_BOOTSTRAP_JOB_DIRECTORY_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "dsfabric/export.h"

namespace cariama::internal {

// Thread-safe once all processes have been added. Memory: 8 bytes per process of the job, and the
// names of the hosts.
class JobDirectory {
 public:
  explicit JobDirectory(uint32_t size) { processes_.reserve(size); }

  // Adds the next process in the order of ranks. Processes of one host have equal `host_identity`.
  void add(uint32_t pid, std::string_view host, const std::string& host_identity) {
    const auto [at, is_new] = numbers_.emplace(host_identity, static_cast<uint32_t>(hosts_.size()));
    if (is_new) hosts_.emplace_back(host);
    processes_.push_back({at->second, pid});
  }
  // Called after the last add().
  void complete() { numbers_.clear(); }

  [[nodiscard]] static std::string label(uint32_t rank, std::string_view host, uint32_t pid) {
    return "rank " + std::to_string(rank) + " (on " + std::string(host) + ", pid " +
           std::to_string(pid) + ")";
  }
  // Returns "rank 3 (on node1, pid 4711)".
  [[nodiscard]] std::string label(uint32_t rank) const {
    return label(rank, host(rank), processes_[rank].pid);
  }
  [[nodiscard]] const std::string& host(uint32_t rank) const {
    return hosts_[processes_[rank].host];
  }
  // Returns the number of the process's host, counted from 0 in the order of ranks.
  [[nodiscard]] uint32_t host_number(uint32_t rank) const { return processes_[rank].host; }

 private:
  struct Process {
    uint32_t host;
    uint32_t pid;
  };
  std::vector<Process> processes_;                     // by rank
  std::vector<std::string> hosts_;                     // by number
  std::unordered_map<std::string, uint32_t> numbers_;  // by identity; empty once complete
};

// The directory of a job whose processes are simulated in one process of the operating system: the
// fabric of rank 0 makes it and shares it with the others. Thread-safe.
class CARIAMA_DSFABRIC_EXPORT SharedJobDirectory {
 public:
  // Returns nullptr until share() was called.
  [[nodiscard]] std::shared_ptr<const JobDirectory> get() const {
    const std::lock_guard lock(mutex_);
    return directory_;
  }
  void share(std::shared_ptr<const JobDirectory> directory) {
    const std::lock_guard lock(mutex_);
    directory_ = std::move(directory);
  }

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<const JobDirectory> directory_;
};

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_BOOTSTRAP_JOB_DIRECTORY_H_
