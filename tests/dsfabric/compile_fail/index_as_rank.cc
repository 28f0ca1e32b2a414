// error: cariama: a ThreadIndex is not a Rank; it numbers the threads of one process
#include "dsfabric/ids.h"

cariama::Rank example(cariama::ThreadIndex index) {
#ifdef CARIAMA_MUST_NOT_COMPILE
  return cariama::Rank(index);
#else
  return cariama::Rank(index.value());
#endif
}
