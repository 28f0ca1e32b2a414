// Owning handles of libibverbs objects.
#ifndef CARIAMA_DTUTILS_VERBS_HANDLES_H_
#define CARIAMA_DTUTILS_VERBS_HANDLES_H_

#include <infiniband/verbs.h>

#include <memory>

namespace cariama::verbs {

// The destroy functions fail only while an object created from this one exists. Every owner here
// keeps alive the objects from which it was created, so the results can be ignored.
template <auto kDestroy>
struct Destroyer {
  template <typename T>
  void operator()(T* object) const {
    static_cast<void>(kDestroy(object));
  }
};

using ContextHandle = std::unique_ptr<ibv_context, Destroyer<ibv_close_device>>;
using DomainHandle = std::unique_ptr<ibv_pd, Destroyer<ibv_dealloc_pd>>;
using RegionHandle = std::unique_ptr<ibv_mr, Destroyer<ibv_dereg_mr>>;
using ChannelHandle = std::unique_ptr<ibv_comp_channel, Destroyer<ibv_destroy_comp_channel>>;
using CompletionQueueHandle = std::unique_ptr<ibv_cq, Destroyer<ibv_destroy_cq>>;
using SharedReceiveQueueHandle = std::unique_ptr<ibv_srq, Destroyer<ibv_destroy_srq>>;
using QueuePairHandle = std::unique_ptr<ibv_qp, Destroyer<ibv_destroy_qp>>;

}  // namespace cariama::verbs

#endif  // CARIAMA_DTUTILS_VERBS_HANDLES_H_
