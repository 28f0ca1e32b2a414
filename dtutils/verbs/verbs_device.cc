#include "dtutils/verbs/verbs_device.h"

#include <utility>

#include "dtutils/verbs/context.h"
#include "dtutils/verbs/domain.h"

namespace cariama {
namespace {

class VerbsDevice final : public Device {
 public:
  explicit VerbsDevice(std::shared_ptr<const verbs::Context> context)
      : context_(std::move(context)) {}

  [[nodiscard]] Transport transport() const override { return Transport::kVerbs; }
  [[nodiscard]] std::string description() const override { return context_->description; }
  [[nodiscard]] const DeviceLimits& limits() const override { return context_->limits; }
  [[nodiscard]] int numa_node() const override { return context_->numa_node; }
  [[nodiscard]] absl::StatusOr<std::shared_ptr<ProtectionDomain>> create_domain() override {
    return verbs::VerbsDomain::create(context_);
  }

 private:
  const std::shared_ptr<const verbs::Context> context_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<Device>> open_verbs_device(const DeviceOptions& options) {
  auto context = verbs::open_context(options);
  if (!context.ok()) return context.status();
  return std::make_shared<VerbsDevice>(*std::move(context));
}

}  // namespace cariama
