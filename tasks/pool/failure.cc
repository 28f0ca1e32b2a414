#include "tasks/pool/failure.h"

#include <algorithm>
#include <cstring>

#include "tasks/exceptions.h"

namespace cariama::tasks {

PackedFailure pack_failure(const std::string& type, const std::string& text,
                           std::span<std::byte> payload) {
  std::string whole = type + '\0' + text;
  FailureForm form = FailureForm::kNamed;
  if (whole.size() > payload.size()) {
    const uint64_t hash = hash_of_type(type);
    if (registered_type(hash) == type) {
      form = FailureForm::kHashed;
      whole.assign(reinterpret_cast<const char*>(&hash), sizeof hash);
      whole += text;
    } else {
      std::string name = type;
      if (name.size() > payload.size() / 2) {
        name = demangled(type);  // a mangled name that was cut cannot be read
        name.resize(std::min(name.size(), payload.size() / 2));
      }
      whole = name + '\0' + text;
    }
  }
  const size_t bytes = std::min(whole.size(), payload.size());
  std::memcpy(payload.data(), whole.data(), bytes);
  return {form, bytes};
}

void throw_packed(FailureForm form, std::span<const std::byte> payload) {
  const std::string whole(reinterpret_cast<const char*>(payload.data()), payload.size());
  if (form == FailureForm::kHashed && whole.size() >= sizeof(uint64_t)) {
    uint64_t hash = 0;
    std::memcpy(&hash, whole.data(), sizeof hash);
    throw_described(registered_type(hash), whole.substr(sizeof hash));
  }
  const size_t type = std::min(whole.find('\0'), whole.size());
  throw_described(whole.substr(0, type), type == whole.size() ? "" : whole.substr(type + 1));
}

}  // namespace cariama::tasks
