// A transport and a way for calls to arrive: what tests of channels in jobs are parametrised by.
//
//   INSTANTIATE_TEST_SUITE_P(On, Calls, ::testing::Values(Way{"shm", Arrival::kAuto}), way_name);
//   LocalJob job(job_on(GetParam(), 2));
//   RDMAMessenger messenger(*fabric.this_thread(), 1, small_channel(GetParam()));
#ifndef CARIAMA_TESTS_RIUTILS_TESTING_WAY_H_
#define CARIAMA_TESTS_RIUTILS_TESTING_WAY_H_

#include <cstdint>
#include <ostream>
#include <string>

#include "gtest/gtest.h"
#include "riutils/messenger_options.h"
#include "tests/dsfabric/testing/local_job.h"

namespace cariama::testing {

struct Way {
  const char* transport;  // of transport_case()
  Arrival arrival;
};
inline void PrintTo(const Way& way, std::ostream* out) {
  *out << way.transport << "_" << arrival_name(way.arrival);
}
inline std::string way_name(const ::testing::TestParamInfo<Way>& info) {
  return std::string(info.param.transport) + "_" + std::string(arrival_name(info.param.arrival));
}

inline LocalJobOptions job_on(const Way& way, uint32_t processes = 2, uint32_t threads = 1,
                              uint64_t seed = 1) {
  LocalJobOptions options;
  options.processes = processes;
  options.transport = transport_case(way.transport);
  options.seed = seed;
  options.fabric.threads = threads;
  return options;
}

// So small that every test fills its chunks.
inline MessengerOptions small_channel(const Way& way) {
  MessengerOptions options;
  options.chunk_bytes = 4096;
  options.max_chunks = 4;
  options.arrival = way.arrival;
  return options;
}

}  // namespace cariama::testing

#endif  // CARIAMA_TESTS_RIUTILS_TESTING_WAY_H_
