#include "dtutils/registration/policy.h"

#include <pthread.h>

#include <string>

#include "dtutils/error.h"
#include "dtutils/internal/byte_size.h"
#include "dtutils/registration/helper_thread.h"

namespace cariama {
namespace {

constexpr size_t kPipelinePiece = internal::kMiB;

// leave-pinned, lru, on-demand, and the pipelines.
class FixedPolicy final : public RegistrationPolicy {
 public:
  FixedPolicy(std::string_view name, bool keep, size_t piece_bytes)
      : name_(name), keep_(keep), piece_bytes_(piece_bytes) {}
  [[nodiscard]] std::string_view name() const override { return name_; }
  [[nodiscard]] bool ended(const RegionUse& /*use*/) override { return keep_; }
  [[nodiscard]] bool evicts() const override { return name_ != "leave-pinned"; }
  [[nodiscard]] size_t piece_bytes(size_t /*message_bytes*/) const override { return piece_bytes_; }

 private:
  const std::string name_;
  const bool keep_;
  const size_t piece_bytes_;
};

class OraclePolicy final : public RegistrationPolicy {
 public:
  OraclePolicy(std::string_view name, int64_t horizon_ns) : name_(name), horizon_(horizon_ns) {}
  [[nodiscard]] std::string_view name() const override { return name_; }
  void attach(RegionControl* control) override { control_ = control; }
  [[nodiscard]] bool ended(const RegionUse& use) override {
    return use.next_use != INT64_MAX && use.next_use - control_->now() <= horizon_;
  }

 private:
  const std::string name_;
  const int64_t horizon_;
  RegionControl* control_ = nullptr;
};

// The bounds of this thread's stack.
struct StackBounds {
  uintptr_t low = 0;
  uintptr_t high = 0;
};
StackBounds find_stack() {
  StackBounds bounds;
  pthread_attr_t attributes;
  if (pthread_getattr_np(pthread_self(), &attributes) == 0) {
    void* low = nullptr;
    size_t size = 0;
    if (pthread_attr_getstack(&attributes, &low, &size) == 0) {
      bounds = {reinterpret_cast<uintptr_t>(low), reinterpret_cast<uintptr_t>(low) + size};
    }
    pthread_attr_destroy(&attributes);
  }
  return bounds;
}

}  // namespace

// The frames may be those of any compiler's code, and their words anything: AddressSanitizer would
// report words of redzones.
__attribute__((no_sanitize("address", "thread"))) void capture_call_stack(CallStack& stack,
                                                                          const void* innermost) {
  static thread_local const StackBounds bounds = find_stack();
  auto frame = reinterpret_cast<uintptr_t>(innermost);
  size_t depth = 0;
  // A program that runs its threads on stacks of its own (fibers) is outside of the bounds.
  while (depth < stack.size() && frame % sizeof(uintptr_t) == 0 && frame >= bounds.low &&
         frame + 2 * sizeof(uintptr_t) <= bounds.high) {
    // x86-64 and AArch64: the caller's frame pointer, then the return address.
    const auto* const words = reinterpret_cast<const uintptr_t*>(frame);
    if (words[1] == 0) break;
    stack[depth++] = words[1];
    if (words[0] <= frame) break;  // frames of callers lie above
    frame = words[0];
  }
  while (depth < stack.size()) stack[depth++] = 0;
}

absl::StatusOr<std::shared_ptr<RegistrationPolicy>> make_registration_policy(
    std::string_view name) {
  const auto fixed = [name](bool keep, size_t piece) -> std::shared_ptr<RegistrationPolicy> {
    return std::make_shared<FixedPolicy>(name, keep, piece);
  };
  const auto oracle = [name](int64_t milliseconds) -> std::shared_ptr<RegistrationPolicy> {
    return std::make_shared<OraclePolicy>(name, milliseconds * 1'000'000);
  };
  if (name == "leave-pinned" || name == "lru") return fixed(true, 0);
  if (name == "on-demand") return fixed(false, 0);
  if (name == "pipeline") return fixed(false, kPipelinePiece);
  if (name == "pipeline-pinned") return fixed(true, kPipelinePiece);
  if (name == "oracle-0") return oracle(0);
  if (name == "oracle-1ms") return oracle(1);
  if (name == "oracle-10ms") return oracle(10);
  if (name == "helper" || name == "helper-improved") {
    return std::shared_ptr<RegistrationPolicy>(std::make_shared<HelperPolicy>(
        name == "helper" ? HelperOptions{} : HelperOptions::improved()));
  }
  return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                    "there is no registration policy \"" + std::string(name) + "\"",
                    "use leave-pinned, on-demand, pipeline, pipeline-pinned, lru, oracle-0, "
                    "oracle-1ms, oracle-10ms, helper or helper-improved");
}

}  // namespace cariama
