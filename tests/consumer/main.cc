// Uses the component dtutils of the installed package: opens the shm transport and registers
// memory.
#include <cariama.h>

#include <cstdio>
#include <vector>

int main() {
  const auto device = cariama::open_device({.transport = cariama::Transport::kShm});
  if (!device.ok()) {
    std::fprintf(stderr, "open_device: %s\n", device.status().ToString().c_str());
    return 1;
  }
  const auto domain = (*device)->create_domain();
  if (!domain.ok()) return 2;
  std::vector<std::byte> buffer(4096);
  const auto region =
      (*domain)->register_memory({buffer.data(), buffer.size()}, cariama::Access::kAll);
  if (!region.ok() || (*region)->locator().length != buffer.size()) return 3;
  std::printf("consumer: %s\n", (*device)->description().c_str());
  return 0;
}
