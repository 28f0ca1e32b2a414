// Everything of Cariama. Programs that need one layer include that layer's headers instead.
#ifndef CARIAMA_H_
#define CARIAMA_H_

#include "dsfabric/binding.h"                              // IWYU pragma: export
#include "dsfabric/bootstrap.h"                            // IWYU pragma: export
#include "dsfabric/buffer_pull.h"                          // IWYU pragma: export
#include "dsfabric/buffer_registrar.h"                     // IWYU pragma: export
#include "dsfabric/call_encoding.h"                        // IWYU pragma: export
#include "dsfabric/call_options.h"                         // IWYU pragma: export
#include "dsfabric/call_result.h"                          // IWYU pragma: export
#include "dsfabric/call_source.h"                          // IWYU pragma: export
#include "dsfabric/collectives.h"                          // IWYU pragma: export
#include "dsfabric/distributed_lock.h"                     // IWYU pragma: export
#include "dsfabric/export.h"                               // IWYU pragma: export
#include "dsfabric/fabric.h"                               // IWYU pragma: export
#include "dsfabric/function_table.h"                       // IWYU pragma: export
#include "dsfabric/future.h"                               // IWYU pragma: export
#include "dsfabric/global_memory.h"                        // IWYU pragma: export
#include "dsfabric/global_vector.h"                        // IWYU pragma: export
#include "dsfabric/launcher.h"                             // IWYU pragma: export
#include "dsfabric/process.h"                              // IWYU pragma: export
#include "dsfabric/quiescence.h"                           // IWYU pragma: export
#include "dsfabric/remote_memory.h"                        // IWYU pragma: export
#include "dsfabric/remote_object.h"                        // IWYU pragma: export
#include "dsfabric/send_call.h"                            // IWYU pragma: export
#include "dsfabric/serializer.h"                           // IWYU pragma: export
#include "dsfabric/topology.h"                             // IWYU pragma: export
#include "dsfabric/user_buffer.h"                          // IWYU pragma: export
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
#include "dtutils/file_descriptor.h"                       // IWYU pragma: export
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
#include "riutils/aggregator.h"                            // IWYU pragma: export
#include "riutils/broadcast.h"                             // IWYU pragma: export
#include "riutils/call.h"                                  // IWYU pragma: export
#include "riutils/call_interface.h"                        // IWYU pragma: export
#include "riutils/channel_sender.h"                        // IWYU pragma: export
#include "riutils/chunk_ring.h"                            // IWYU pragma: export
#include "riutils/export.h"                                // IWYU pragma: export
#include "riutils/messenger.h"                             // IWYU pragma: export
#include "riutils/messenger_global.h"                      // IWYU pragma: export
#include "riutils/messenger_options.h"                     // IWYU pragma: export

#endif  // CARIAMA_H_
