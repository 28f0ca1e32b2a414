// FlatEngine: a simple engine that runs uniform playouts after each move and has no tree. For tests
// of the code that uses engines.
#ifndef CARIAMA_TESTS_HEX_TESTING_FLAT_ENGINE_H_
#define CARIAMA_TESTS_HEX_TESTING_FLAT_ENGINE_H_

#include <string>

#include "hex/engine.h"
#include "hex/playout.h"

namespace cariama::hex::testing {

class FlatEngine : public Engine {
 public:
  explicit FlatEngine(uint64_t seed = 1) : playouts_(seed) {}

  [[nodiscard]] std::string name() const override { return "Flat"; }
  [[nodiscard]] std::string version() const override { return "1"; }

  // Without limits it searches until `stop` is set. An iteration is a playout.
  [[nodiscard]] SearchReport search(const Board& board, const SearchLimits& limits,
                                    const std::atomic<bool>& stop,
                                    const std::function<void(const SearchReport&)>& progress,
                                    double interval) override;
  void clear() override { ++cleared; }
  void set_seed(uint64_t seed) override { playouts_ = UniformPlayouts(seed); }

  int cleared = 0;
  int searches = 0;
  SearchLimits limits;  // of the last search

 private:
  UniformPlayouts playouts_;
};

}  // namespace cariama::hex::testing

#endif  // CARIAMA_TESTS_HEX_TESTING_FLAT_ENGINE_H_
