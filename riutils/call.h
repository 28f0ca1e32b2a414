// Umbrella header of remote invocation for user programs: send-based calls, one-sided messengers
// and aggregators, broadcasts.
#ifndef CARIAMA_RIUTILS_CALL_H_
#define CARIAMA_RIUTILS_CALL_H_

#include "dsfabric/fabric.h"            // IWYU pragma: export
#include "dsfabric/process.h"           // IWYU pragma: export
#include "dsfabric/send_call.h"         // IWYU pragma: export
#include "riutils/aggregator.h"         // IWYU pragma: export
#include "riutils/broadcast.h"          // IWYU pragma: export
#include "riutils/messenger.h"          // IWYU pragma: export
#include "riutils/messenger_global.h"   // IWYU pragma: export
#include "riutils/routed_aggregator.h"  // IWYU pragma: export

#endif  // CARIAMA_RIUTILS_CALL_H_
