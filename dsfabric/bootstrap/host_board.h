// The board of the helper threads (dtutils/registration/helper_board.h) that the processes of a job
// on one host share.
//
// Each process offers the file of a board before the set-up data is exchanged, because no process
// knows yet which processes are on its host. The processes of a host then map the board of the
// lowest rank that offers one. A board lives as long as a process maps it, so the death of the
// process that offered it does not affect the others.
#ifndef CARIAMA_DSFABRIC_BOOTSTRAP_HOST_BOARD_H_
#define CARIAMA_DSFABRIC_BOOTSTRAP_HOST_BOARD_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "dtutils/internal/file_descriptor.h"
#include "dtutils/registration/helper_board.h"

namespace cariama::internal {

class HostBoard {
 public:
  // Creates the file of a board, if the system permits it.
  HostBoard();

  // The facts about a process of this host that the others need.
  struct Offer {
    uint32_t pid = 0;
    int32_t descriptor = -1;  // of the file of the board in that process; -1: none
    uint32_t busy_threads = 0;
    std::vector<uint64_t> cpus{};  // on which the process may run, one bit for each
  };
  // Returns the offer of this process, whose threads keep `busy_threads` cores busy.
  [[nodiscard]] Offer offer(uint32_t busy_threads) const;

  // Adds the offers of the processes of this host, this process included, in the order of ranks,
  // before place() is called.
  void add(const Offer& offer, bool is_this_process);
  // Maps the board, after the last add(). Without a board, which a diagnostic reports, each helper
  // runs.
  void open();
  // In place of add() and open(), for a simulated process: it uses no board, so that it has neither
  // a descriptor nor a mapping.
  void forgo() { file_.reset(); }

  // Returns the place of the helper of this process's device number `device`, for the registration
  // cache of that device. The idle cores are the CPUs of all processes of this host, within the
  // limit of the control group, less their busy threads. Reads files of procfs and sysfs.
  [[nodiscard]] HelperPlace place(uint32_t device) const;

 private:
  FileDescriptor file_;
  const int file_error_;  // errno, if file_ could not be created
  Offer chosen_;          // the board of all
  bool is_mine_ = false;  // this process offers it
  uint32_t processes_ = 0;
  uint32_t number_ = 0;  // of this process, among those of the host
  uint64_t busy_threads_ = 0;
  std::vector<uint64_t> cpus_;  // of all
  std::shared_ptr<HelperBoard> board_;
};

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_BOOTSTRAP_HOST_BOARD_H_
