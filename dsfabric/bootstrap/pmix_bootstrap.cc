// Joins a job that a PMIx launcher started: mpirun, srun --mpi=pmix, prun.
//
// PMIx provides rank and size, and transports the address of rank 0's store and the job's secret,
// with one put, one fence and one get. All other exchange goes through that store, as for the other
// bootstraps. The reason: PMIx servers differ in how they treat a key that has not been put yet,
// that is put again, or whose process has ended.
#include <pmix.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dsfabric/bootstrap/pmix_values.h"
#include "dsfabric/bootstrap/store_bootstrap.h"
#include "dsfabric/bootstrap/tcp_store.h"
#include "dtutils/error.h"

namespace cariama::internal {
namespace {

constexpr const char* kStoreKey = "cariama.store";

absl::Status pmix_error(const char* what, pmix_status_t status, std::string_view remedy = {}) {
  return make_error(absl::StatusCode::kUnavailable, ErrorScope::kProcess,
                    absl::StrCat(what, ": ", PMIx_Error_string(status)), remedy);
}

// Returns a number that describes the whole job.
absl::StatusOr<uint32_t> job_number(const pmix_proc_t& self, const char* key) {
  pmix_proc_t job;
  PMIX_PROC_CONSTRUCT(&job);
  PMIX_LOAD_PROCID(&job, self.nspace, PMIX_RANK_WILDCARD);
  pmix_value_t* value = nullptr;
  const pmix_status_t status = PMIx_Get(&job, key, nullptr, 0, &value);
  if (status != PMIX_SUCCESS) return pmix_error(key, status);
  const bool number = value->type == PMIX_UINT32;
  const uint32_t result = value->data.uint32;
  PMIX_VALUE_RELEASE(value);
  if (!number) return pmix_error(key, PMIX_ERR_TYPE_MISMATCH);
  return result;
}

// PMIx_Fence with a deadline. PMIx may complete it after this function has returned, so the
// completion state is shared.
absl::Status fence_all(const pmix_proc_t& self, Exchange::Deadline deadline) {
  struct Fence {
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false;
    pmix_status_t status = PMIX_SUCCESS;
  };
  auto fence = std::make_shared<Fence>();
  pmix_proc_t job;
  PMIX_PROC_CONSTRUCT(&job);
  PMIX_LOAD_PROCID(&job, self.nspace, PMIX_RANK_WILDCARD);
  pmix_info_t collect;
  PMIX_INFO_CONSTRUCT(&collect);
  bool yes = true;
  PMIX_INFO_LOAD(&collect, PMIX_COLLECT_DATA, &yes, PMIX_BOOL);
  auto* const theirs = new std::shared_ptr<Fence>(fence);
  const auto on_done = [](pmix_status_t status, void* data) {
    const std::unique_ptr<std::shared_ptr<Fence>> owned(static_cast<std::shared_ptr<Fence>*>(data));
    const std::lock_guard lock((*owned)->mutex);
    (*owned)->status = status;
    (*owned)->done = true;
    (*owned)->changed.notify_all();
  };
  const pmix_status_t begun = PMIx_Fence_nb(&job, 1, &collect, 1, on_done, theirs);
  if (begun != PMIX_SUCCESS) {
    delete theirs;
    return pmix_error("PMIx_Fence", begun);
  }
  std::unique_lock lock(fence->mutex);
  if (!fence->changed.wait_until(lock, deadline, [&] { return fence->done; })) {
    return make_error(absl::StatusCode::kDeadlineExceeded, ErrorScope::kPeer,
                      "not every process of the job joined in time",
                      "let every process that the launcher starts create its fabric");
  }
  return fence->status == PMIX_SUCCESS ? absl::OkStatus() : pmix_error("PMIx_Fence", fence->status);
}

// Publishes rank 0's message to the other ranks: "ADDRESS KEY" or, if it has no store, "!REASON".
absl::Status publish(const std::string& text) {
  pmix_value_t value;
  PMIX_VALUE_CONSTRUCT(&value);
  std::string copy = text;
  value.type = PMIX_STRING;
  value.data.string = copy.data();
  pmix_status_t status = PMIx_Put(PMIX_GLOBAL, kStoreKey, &value);
  if (status == PMIX_SUCCESS) status = PMIx_Commit();
  return status == PMIX_SUCCESS ? absl::OkStatus() : pmix_error("PMIx_Put", status);
}

absl::StatusOr<std::string> published(const pmix_proc_t& self) {
  pmix_proc_t first;
  PMIX_PROC_CONSTRUCT(&first);
  PMIX_LOAD_PROCID(&first, self.nspace, 0);
  pmix_value_t* value = nullptr;
  const pmix_status_t status = PMIx_Get(&first, kStoreKey, nullptr, 0, &value);
  if (status != PMIX_SUCCESS) return pmix_error("PMIx_Get from rank 0", status);
  std::string text =
      value->type == PMIX_STRING && value->data.string != nullptr ? value->data.string : "";
  PMIX_VALUE_RELEASE(value);
  return text;
}

// Returns the address that rank 0's store listens at: loopback if the whole job is on this host.
absl::StatusOr<SocketAddress> store_address(bool spans_hosts) {
  if (!spans_hosts) return SocketAddress::parse("127.0.0.1:0");
  const std::optional<std::string> named = environment_variable("CARIAMA_LISTEN");
  if (!named) {
    return make_error(
        absl::StatusCode::kFailedPrecondition, ErrorScope::kProcess,
        "the job spans hosts, and CARIAMA_LISTEN does not say where to listen for them",
        "set it to an address, an interface or the network that the hosts share "
        "(mpirun -x CARIAMA_LISTEN=10.77.0.0/24)");
  }
  return own_address(*named);
}

absl::StatusOr<std::unique_ptr<Bootstrap>> join_as(const pmix_proc_t& self,
                                                   Exchange::Deadline deadline) {
  absl::StatusOr<uint32_t> job_size = job_number(self, PMIX_JOB_SIZE);
  if (!job_size.ok()) return job_size.status();
  absl::StatusOr<uint32_t> local_size = job_number(self, PMIX_LOCAL_SIZE);
  if (!local_size.ok()) return local_size.status();
  absl::Status place = check_place_in_job(self.rank, *job_size);
  if (!place.ok()) return place;
  const int size = static_cast<int>(*job_size);
  const int rank = static_cast<int>(self.rank);

  std::unique_ptr<TcpStore> store;
  absl::Status failed;
  if (rank == 0) {
    const JobSecret key = random_secret();
    absl::StatusOr<SocketAddress> address = store_address(*local_size != *job_size);
    absl::StatusOr<std::unique_ptr<TcpStore>> started =
        address.ok() ? TcpStore::start(*address, size, key)
                     : absl::StatusOr<std::unique_ptr<TcpStore>>(address.status());
    std::string text;
    if (started.ok()) {
      store = *std::move(started);
      text = encode_published_store({store->address(), key});
    } else {
      failed = started.status();
      text = encode_no_store({failed.message().data(), failed.message().size()});
    }
    if (absl::Status put = publish(text); !put.ok()) return put;
  }
  if (absl::Status fenced = fence_all(self, deadline); !fenced.ok()) return fenced;
  if (!failed.ok()) return failed;
  absl::StatusOr<std::string> text = published(self);
  if (!text.ok()) return text.status();
  absl::StatusOr<PublishedStore> first = decode_published_store(*text);
  if (!first.ok()) return first.status();
  const JobSecret& key = first->key;

  FileDescriptor socket;
  if (rank == 0) {
    socket = FileDescriptor(store->take_own_socket());
  } else {
    absl::StatusOr<FileDescriptor> connected =
        connect_to_store({first->address}, rank, size, key, deadline);
    if (!connected.ok()) return connected.status();
    socket = *std::move(connected);
  }
  absl::StatusOr<std::unique_ptr<TcpBootstrap>> joined = TcpBootstrap::join(
      BootstrapKind::kPmix, std::move(store), std::move(socket), rank, size, key, {}, deadline);
  if (!joined.ok()) return joined.status();
  (*joined)->at_end([] {
    const pmix_status_t ended = PMIx_Finalize(nullptr, 0);
    return ended == PMIX_SUCCESS ? absl::OkStatus() : pmix_error("PMIx_Finalize", ended);
  });
  return *std::move(joined);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Bootstrap>> join_pmix(Exchange::Deadline deadline) {
  const auto not_launched = [](const std::string& why) {
    return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kProcess, why,
                      "start the program with mpirun, prun or srun --mpi=pmix, or cariama-run");
  };
  // Without this check, PMIx_Init would start threads and search for a server before it fails.
  if (!environment_variable("PMIX_NAMESPACE"))
    return not_launched("no PMIx launcher started this process");
  pmix_proc_t self;
  const pmix_status_t begun = PMIx_Init(&self, nullptr, 0);
  if (begun != PMIX_SUCCESS) {
    return not_launched(absl::StrCat("PMIx_Init: ", PMIx_Error_string(begun)));
  }
  // On failure the process stays a PMIx client, so its launcher ends the job when this process
  // ends.
  return join_as(self, deadline);
}

}  // namespace cariama::internal
