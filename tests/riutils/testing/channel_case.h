// Test parameter of channels in jobs: a transport and an arrival mode.
//
//   INSTANTIATE_TEST_SUITE_P(On, Calls, ::testing::Values(ChannelCase{"shm", Arrival::kAuto}),
//                            channel_case_name);
//   LocalJob job(job_on(GetParam(), 2));
//   RDMAMessenger messenger(*fabric.this_thread(), 1, small_channel(GetParam()));
#ifndef CARIAMA_TESTS_RIUTILS_TESTING_CHANNEL_CASE_H_
#define CARIAMA_TESTS_RIUTILS_TESTING_CHANNEL_CASE_H_

#include <cstdint>
#include <ostream>
#include <string>

#include "gtest/gtest.h"
#include "riutils/messenger_options.h"
#include "tests/dsfabric/testing/local_job.h"

namespace cariama::testing {

struct ChannelCase {
  const char* transport;  // name for transport_case()
  Arrival arrival;
};
inline void PrintTo(const ChannelCase& channel, std::ostream* out) {
  *out << channel.transport << "_" << arrival_name(channel.arrival);
}
inline std::string channel_case_name(const ::testing::TestParamInfo<ChannelCase>& info) {
  return std::string(info.param.transport) + "_" + std::string(arrival_name(info.param.arrival));
}

inline LocalJobOptions job_on(const ChannelCase& channel, uint32_t processes = 2,
                              uint32_t threads = 1, uint64_t seed = 1) {
  LocalJobOptions options;
  options.processes = processes;
  options.transport = transport_case(channel.transport);
  options.seed = seed;
  options.fabric.threads = threads;
  return options;
}

// Returns options of a channel with chunks so small that every test fills them.
inline MessengerOptions small_channel(const ChannelCase& channel) {
  MessengerOptions options;
  options.chunk_bytes = 4096;
  options.chunks_per_request = 2;
  options.max_chunks = 4;
  options.arrival = channel.arrival;
  return options;
}

}  // namespace cariama::testing

#endif  // CARIAMA_TESTS_RIUTILS_TESTING_CHANNEL_CASE_H_
