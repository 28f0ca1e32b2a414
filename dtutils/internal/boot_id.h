// The boot id of the host.
#ifndef CARIAMA_DTUTILS_INTERNAL_BOOT_ID_H_
#define CARIAMA_DTUTILS_INTERNAL_BOOT_ID_H_

#include <fstream>
#include <string>

namespace cariama::internal {

// Returns a text that differs between hosts and between boots, or "" if the system has none. Throws
// if there is no memory to read it: an empty text would look like another host.
[[nodiscard]] inline std::string boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  file.exceptions(std::ios::badbit);
  std::string id;
  std::getline(file, id);
  return id;
}

}  // namespace cariama::internal

#endif  // CARIAMA_DTUTILS_INTERNAL_BOOT_ID_H_
