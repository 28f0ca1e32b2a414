// error: cariama: global memory holds trivially copyable values
#include <string>

#include "dsfabric/global_memory.h"

#ifdef CARIAMA_MUST_NOT_COMPILE
cariama::global_ptr<std::string> pointer;
#else
cariama::global_ptr<long> pointer;
#endif
