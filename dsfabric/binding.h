// The set of cores to which a process or a thread of a job is bound (cariama-run --bind).
#ifndef CARIAMA_DSFABRIC_BINDING_H_
#define CARIAMA_DSFABRIC_BINDING_H_

#include <cstdint>

namespace cariama {

enum class Binding : uint8_t {
  kNone,  // no binding: the thread may use every core that the launching process may use
  kCore,  // cores of its own: one for each thread
  kNuma,  // the cores of one NUMA node
};

}  // namespace cariama

#endif  // CARIAMA_DSFABRIC_BINDING_H_
