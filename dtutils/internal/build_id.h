// The build ids of loaded programs and libraries.
#ifndef CARIAMA_DTUTILS_INTERNAL_BUILD_ID_H_
#define CARIAMA_DTUTILS_INTERNAL_BUILD_ID_H_

#include <elf.h>
#include <link.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>

namespace cariama::internal {

using BuildId = std::array<uint8_t, 20>;

// Returns the build id in a note segment, or nullopt if it has none. Ids of other lengths are
// shortened or zero-filled to 20 bytes.
[[nodiscard]] inline std::optional<BuildId> build_id_of_notes(const std::byte* notes,
                                                              size_t bytes) {
  size_t at = 0;
  while (at + sizeof(ElfW(Nhdr)) <= bytes) {
    ElfW(Nhdr) header;
    std::memcpy(&header, notes + at, sizeof header);
    const size_t name = at + sizeof header;
    const size_t description = name + (header.n_namesz + 3u) / 4 * 4;
    const size_t end = description + (header.n_descsz + 3u) / 4 * 4;
    if (end > bytes || end <= at) return std::nullopt;
    if (header.n_type == NT_GNU_BUILD_ID && header.n_namesz == 4 &&
        std::memcmp(notes + name, "GNU", 4) == 0) {
      BuildId id{};
      std::memcpy(id.data(), notes + description, std::min<size_t>(id.size(), header.n_descsz));
      return id;
    }
    at = end;
  }
  return std::nullopt;
}

// Returns the build id of a loaded object, as the linker wrote it, or nullopt if it has none.
[[nodiscard]] inline std::optional<BuildId> build_id_of(const dl_phdr_info& object) {
  for (size_t i = 0; i < object.dlpi_phnum; ++i) {
    const ElfW(Phdr)& header = object.dlpi_phdr[i];
    if (header.p_type != PT_NOTE) continue;
    const auto* const notes = reinterpret_cast<const std::byte*>(object.dlpi_addr + header.p_vaddr);
    if (const auto id = build_id_of_notes(notes, header.p_memsz)) return id;
  }
  return std::nullopt;
}

}  // namespace cariama::internal

#endif  // CARIAMA_DTUTILS_INTERNAL_BUILD_ID_H_
