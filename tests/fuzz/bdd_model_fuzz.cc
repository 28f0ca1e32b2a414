// Feeds the reader of model files with arbitrary bytes. A model that it accepts must be the same
// after it was written and read again, and must load into a manager.
#include <string_view>

#include "bdd/bdd.h"
#include "bdd/model_file.h"
#include "tests/fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cariama;
  using namespace cariama::bdd;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const absl::StatusOr<ModelFile> model = parse_model(bytes);
  if (!model.ok()) {
    require(model.status().message().substr(0, 5) == "byte ");
    return 0;
  }
  require(format_model(*model) == bytes);
  // A state of many bits would only make the cubes of its variables long.
  uint32_t bits = 0;
  for (const uint32_t one : model->bits) bits += one;
  if (bits > 256) return 0;
  ManagerOptions options;
  options.table_bytes = uint64_t{1} << 16;
  options.max_table_bytes = uint64_t{1} << 20;
  options.cache_bytes = uint64_t{1} << 16;
  auto manager = Manager::create(options);
  require(manager.ok());
  try {
    const Model loaded = load_model(**manager, *model);
    (void)(*manager)->image(loaded.initial, loaded.transitions);
  } catch (const TableFull&) {
  }
  return 0;
}
