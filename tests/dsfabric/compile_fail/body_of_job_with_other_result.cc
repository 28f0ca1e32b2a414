// error: cariama: the body of run_job() returns nothing or an absl::Status
#include "dsfabric/run_job.h"

int example(int argc, char** argv) {
#ifdef CARIAMA_MUST_NOT_COMPILE
  return cariama::run_job({}, argc, argv, [](cariama::ThreadContext&) { return 1; });
#else
  return cariama::run_job({}, argc, argv, [](cariama::ThreadContext&) {});
#endif
}
