#include "dsfabric/function_table.h"

#include <link.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "dtutils/error.h"
#include "dtutils/internal/build_id.h"

namespace cariama {
namespace {

using internal::BuildId;

// The list of registrations, built by their constructors. Constant-initialised, so that it is valid
// before any of these constructors runs.
constinit internal::FunctionRegistration* first_registration = nullptr;

struct State {
  std::mutex mutex;
  bool built = false;
  std::vector<FunctionStub> stubs;  // FunctionTable::stubs_ points into it
  ProgramFingerprint fingerprint;
  std::atomic<uint64_t> rejected{0};
};

State& state() {
  // Never destroyed: calls may arrive until the process ends.
  static State* const immortal = new State;
  return *immortal;
}

// A loaded program or library.
struct Image {
  std::string name;
  uintptr_t base = 0;
  std::vector<std::pair<uintptr_t, uintptr_t>> segments;  // [begin, end) in memory
  std::optional<BuildId> build_id;

  [[nodiscard]] bool contains(uintptr_t address) const {
    return std::any_of(segments.begin(), segments.end(), [&](const auto& segment) {
      return address >= segment.first && address < segment.second;
    });
  }
};

std::vector<Image> loaded_images() {
  std::vector<Image> images;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* data) {
        Image image;
        image.name = info->dlpi_name[0] != '\0' ? info->dlpi_name : "the program";
        image.base = info->dlpi_addr;
        for (size_t i = 0; i < info->dlpi_phnum; ++i) {
          const ElfW(Phdr)& header = info->dlpi_phdr[i];
          const uintptr_t begin = info->dlpi_addr + header.p_vaddr;
          if (header.p_type == PT_LOAD) image.segments.emplace_back(begin, begin + header.p_memsz);
        }
        image.build_id = internal::build_id_of(*info);
        static_cast<std::vector<Image>*>(data)->push_back(std::move(image));
        return 0;
      },
      &images);
  return images;
}

// FNV-1a. The hash detects accidental differences only; a process that knows the job's secret could
// forge any fingerprint.
class Hash {
 public:
  void add(const void* data, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i) {
      value_ = (value_ ^ static_cast<const uint8_t*>(data)[i]) * 0x100000001b3;
    }
  }
  template <typename T>
  void add(const T& value) {
    add(&value, sizeof value);
  }
  [[nodiscard]] uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0xcbf29ce484222325;
};

std::string hex(const BuildId& id) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (uint8_t byte : id) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

}  // namespace

namespace internal {

FunctionRegistration::FunctionRegistration(FunctionStub stub)
    : stub(stub), next(first_registration) {
  first_registration = this;
}

}  // namespace internal

FunctionTable::Stubs FunctionTable::stubs_;

absl::Status FunctionTable::build() {
  State& table = state();
  const std::lock_guard lock(table.mutex);
  if (table.built) return absl::OkStatus();

  struct Entry {
    const Image* image;
    uint64_t offset;
    internal::FunctionRegistration* registration;
  };
  const std::vector<Image> images = loaded_images();
  const auto image_of = [&](FunctionStub stub) {
    const uintptr_t address = reinterpret_cast<uintptr_t>(stub);
    return std::find_if(images.begin(), images.end(),
                        [&](const Image& image) { return image.contains(address); });
  };
  std::vector<Entry> entries;
  for (auto* one = first_registration; one != nullptr; one = one->next) {
    const auto image = image_of(one->stub);
    if (image == images.end()) continue;  // in a library that was unloaded: cannot be called
    if (!image->build_id.has_value()) {
      return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kProcess,
                        image->name + " has remote functions but no build-id",
                        "link it with -Wl,--build-id");
    }
    entries.push_back({&*image, reinterpret_cast<uintptr_t>(one->stub) - image->base, one});
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::tie(a.image->build_id, a.offset) < std::tie(b.image->build_id, b.offset);
  });

  Hash hash;
  table.stubs.assign(1, nullptr);
  for (const Entry& entry : entries) {
    hash.add(*entry.image->build_id);
    hash.add(entry.offset);
    entry.registration->id.store(static_cast<uint32_t>(table.stubs.size()),
                                 std::memory_order_relaxed);
    table.stubs.push_back(entry.registration->stub);
  }
  table.fingerprint.functions = static_cast<uint32_t>(entries.size());
  table.fingerprint.table_hash = hash.value();
  if (!images.empty()) table.fingerprint.build_id = images.front().build_id.value_or(BuildId{});
  stubs_ = {table.stubs.data(), static_cast<uint32_t>(table.stubs.size())};
  table.built = true;
  return absl::OkStatus();
}

FunctionStub FunctionTable::reject() {
  state().rejected.fetch_add(1, std::memory_order_relaxed);
  return nullptr;
}

uint64_t FunctionTable::rejected() { return state().rejected.load(std::memory_order_relaxed); }

ProgramFingerprint FunctionTable::fingerprint() {
  const std::lock_guard lock(state().mutex);
  return state().fingerprint;
}

absl::Status FunctionTable::check(const ProgramFingerprint& theirs, const std::string& peer) {
  const ProgramFingerprint ours = fingerprint();
  if (ours == theirs) return absl::OkStatus();
  const std::string remedy = "start the same executable, with the same libraries, in every process";
  if (ours.build_id != theirs.build_id) {
    return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kPeer,
                      peer + " runs another program (build-id " + hex(theirs.build_id) +
                          ", that of this process is " + hex(ours.build_id) + ")",
                      remedy);
  }
  return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kPeer,
                    peer + " runs this program with other libraries (" +
                        std::to_string(theirs.functions) + " functions, this process has " +
                        std::to_string(ours.functions) + ")",
                    remedy);
}

}  // namespace cariama
