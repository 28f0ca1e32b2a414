// Everything of Cariama. Programs that need one layer include that layer's headers instead.
#ifndef CARIAMA_H_
#define CARIAMA_H_

#include "dtutils/allocators/circular_allocator.h"         // IWYU pragma: export
#include "dtutils/allocators/general_allocator.h"          // IWYU pragma: export
#include "dtutils/allocators/linear_circular_allocator.h"  // IWYU pragma: export
#include "dtutils/allocators/memory_budget.h"              // IWYU pragma: export
#include "dtutils/allocators/rdma_allocator.h"             // IWYU pragma: export
#include "dtutils/allocators/superpages.h"                 // IWYU pragma: export
#include "dtutils/completion.h"                            // IWYU pragma: export
#include "dtutils/device.h"                                // IWYU pragma: export
#include "dtutils/diagnostics.h"                           // IWYU pragma: export
#include "dtutils/error.h"                                 // IWYU pragma: export
#include "dtutils/exchange_client.h"                       // IWYU pragma: export
#include "dtutils/exchange_connect.h"                      // IWYU pragma: export
#include "dtutils/exchange_server.h"                       // IWYU pragma: export
#include "dtutils/export.h"                                // IWYU pragma: export
#include "dtutils/json.h"                                  // IWYU pragma: export
#include "dtutils/memory.h"                                // IWYU pragma: export
#include "dtutils/process_group.h"                         // IWYU pragma: export
#include "dtutils/queue_pair.h"                            // IWYU pragma: export
#include "dtutils/signaling.h"                             // IWYU pragma: export
#include "dtutils/sleep_protocol.h"                        // IWYU pragma: export
#include "dtutils/statistics.h"                            // IWYU pragma: export
#include "dtutils/synchronizer.h"                          // IWYU pragma: export
#include "dtutils/system_info.h"                           // IWYU pragma: export
#include "dtutils/trace.h"                                 // IWYU pragma: export
#include "dtutils/transmitter.h"                           // IWYU pragma: export
#include "dtutils/wait.h"                                  // IWYU pragma: export

#endif  // CARIAMA_H_
