#include "dtutils/registration/policy.h"

#include <dlfcn.h>
#include <link.h>
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

// Returns true if the address is in an executable segment of the program or of a library.
bool in_executable_segment(uintptr_t address) {
  struct Search {
    uintptr_t address;
    bool found = false;
  } search{address};
  const auto visit = [](dl_phdr_info* object, size_t /*size*/, void* data) {
    auto& wanted = *static_cast<Search*>(data);
    for (size_t i = 0; i < object->dlpi_phnum && !wanted.found; ++i) {
      const auto& segment = object->dlpi_phdr[i];
      wanted.found = segment.p_type == PT_LOAD && (segment.p_flags & PF_X) != 0 &&
                     wanted.address - (object->dlpi_addr + segment.p_vaddr) < segment.p_memsz;
    }
    return wanted.found ? 1 : 0;
  };
  dl_iterate_phdr(visit, &search);
  return search.found;
}

// What a thread knows about its stack, and about the words that it has found there.
class StackOfThread {
 public:
  [[nodiscard]] bool contains(uintptr_t frame) const {
    return frame % sizeof(uintptr_t) == 0 && frame >= bounds_.low &&
           frame + 2 * sizeof(uintptr_t) <= bounds_.high;
  }
  // Returns true if the word is an address of code.
  [[nodiscard]] bool is_code(uintptr_t word) {
    const uintptr_t checked = checked_[word / 4 % checked_.size()];
    if (checked == word) [[likely]]
      return word != 0;
    return checked != ~word && check(word);
  }

 private:
  [[gnu::noinline, gnu::cold]] bool check(uintptr_t word) {
#if defined(DLFO_STRUCT_HAS_EH_DBASE)
    // Without a lock. Most words that are not code are in no object: addresses of the heap and of
    // the stack, and numbers. They may differ at each use, so that no table would contain them.
    dl_find_object object{};
    if (_dl_find_object(reinterpret_cast<void*>(word), &object) != 0) return false;
#endif
    const bool code = in_executable_segment(word);
    checked_[word / 4 % checked_.size()] = code ? word : ~word;
    return code;
  }

  const StackBounds bounds_ = find_stack();
  // Words by their value: as they are if they are code, inverted if they are data of an object.
  std::array<uintptr_t, 128> checked_{};
};

// Returns a return address without the signature that AArch64 may add to it (pointer
// authentication).
constexpr uintptr_t unsigned_address(uintptr_t word) {
#if defined(__aarch64__)
  return word & ((uintptr_t{1} << 48) - 1);
#else
  return word;
#endif
}

}  // namespace

// The frames may be those of any compiler's code, and their words anything: AddressSanitizer would
// report words of redzones.
__attribute__((no_sanitize("address", "thread"))) void capture_call_stack(CallStack& stack,
                                                                          const void* innermost) {
  static thread_local StackOfThread of_thread;
  StackOfThread& own = of_thread;  // one look-up of the thread's memory
  // x86-64 and AArch64: a frame is the caller's frame pointer, then the return address.
  const auto* words = static_cast<const uintptr_t*>(innermost);
  size_t depth = 0;
  stack[depth++] = unsigned_address(words[1]);
  while (depth < stack.size()) {
    const uintptr_t frame = words[0];
    // Frames of callers lie above. The innermost frame may be on another stack.
    if (frame <= reinterpret_cast<uintptr_t>(words) || !own.contains(frame)) break;
    words = reinterpret_cast<const uintptr_t*>(frame);
    const uintptr_t address = unsigned_address(words[1]);
    if (!own.is_code(address)) break;
    stack[depth++] = address;
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
