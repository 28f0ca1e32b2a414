// A registration cache whose registrations a test counts, and a policy that a test controls.
#ifndef CARIAMA_TESTS_DTUTILS_REGISTRATION_CACHE_FIXTURE_H_
#define CARIAMA_TESTS_DTUTILS_REGISTRATION_CACHE_FIXTURE_H_

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "dtutils/registration/policy.h"
#include "dtutils/registration/registration_cache.h"
#include "tests/dtutils/registration/pinning_domain.h"

namespace cariama::testing {

struct CacheFixture {
  explicit CacheFixture(RegistrationOptions options = {}) {
    if (options.max_bytes == 0) options.max_bytes = size_t{1} << 30;
    cache = RegistrationCache::create(pinner, std::move(options)).value();
    counts = pinner->counts;
  }
  // Registers and ends the use immediately. Returns true for a hit.
  bool touch(const void* address, size_t bytes) const {
    auto acquired = cache->acquire(address, bytes);
    EXPECT_TRUE(acquired.ok()) << acquired.status();
    return acquired.ok() && acquired->was_hit();
  }
  std::shared_ptr<CountingPinner> pinner = std::make_shared<CountingPinner>();
  std::shared_ptr<CountingPinner::Counts> counts;
  std::unique_ptr<RegistrationCache> cache;
};

inline RegistrationOptions with_policy(std::string_view name) {
  RegistrationOptions options;
  options.policy = make_registration_policy(name).value();
  return options;
}

inline RegistrationOptions with_policy(std::shared_ptr<RegistrationPolicy> policy,
                                       uint64_t max_bytes) {
  RegistrationOptions options;
  options.policy = std::move(policy);
  options.max_bytes = max_bytes;
  return options;
}

// Runs a function in a child. Returns true if it returned true.
template <typename Function>
bool in_child(Function&& function) {
  const pid_t child = fork();
  if (child == 0) _exit(function() ? 0 : 1);
  int status = 0;
  return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

inline constexpr ExpectedUse kAnyTime{0, INT64_MAX};

// Registers regions ahead when the test says so.
class ManualPolicy final : public RegistrationPolicy {
 public:
  [[nodiscard]] std::string_view name() const override { return "manual"; }
  void attach(RegionControl* control) override { this->control = control; }
  [[nodiscard]] bool records_uses() const override { return true; }
  [[nodiscard]] bool ended(const RegionUse& use) override {
    last = use.region;
    stacks.push_back(use.stack);
    return keep;
  }
  void forgotten(RegionName /*region*/) override { ++forgotten_regions; }
  [[nodiscard]] bool evicts() const override { return evicts_idle; }

  bool evicts_idle = false;
  RegionControl* control = nullptr;
  RegionName last{};
  std::vector<CallStack> stacks;  // of all uses
  bool keep = false;
  int forgotten_regions = 0;
};

}  // namespace cariama::testing

#endif  // CARIAMA_TESTS_DTUTILS_REGISTRATION_CACHE_FIXTURE_H_
