// Everything of Cariama. Programs that need one layer include that layer's headers instead.
#ifndef CARIAMA_H_
#define CARIAMA_H_

#include "dtutils/completion.h"  // IWYU pragma: export
#include "dtutils/device.h"      // IWYU pragma: export
#include "dtutils/error.h"       // IWYU pragma: export
#include "dtutils/export.h"      // IWYU pragma: export
#include "dtutils/json.h"        // IWYU pragma: export
#include "dtutils/memory.h"      // IWYU pragma: export
#include "dtutils/queue_pair.h"  // IWYU pragma: export
#include "dtutils/statistics.h"  // IWYU pragma: export
#include "dtutils/trace.h"       // IWYU pragma: export

#endif  // CARIAMA_H_
