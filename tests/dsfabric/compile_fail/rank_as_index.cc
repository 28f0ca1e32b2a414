// error: cariama: a Rank is not a ThreadIndex; it numbers the processes of the job
#include "dsfabric/ids.h"

cariama::ThreadIndex example(cariama::Rank rank) {
#ifdef CARIAMA_MUST_NOT_COMPILE
  return cariama::ThreadIndex(rank);
#else
  return cariama::ThreadIndex(rank.value());
#endif
}
