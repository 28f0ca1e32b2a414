// Treats arbitrary bytes as a call and runs it: the header, then the stubs of functions with
// arguments of all kinds. The first byte of the input chooses a function, so that most inputs reach
// one.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

#include "dsfabric/call_encoding.h"
#include "tests/fuzz/fuzz_calls.h"
#include "tests/fuzz/fuzz_input.h"

namespace cariama {
namespace {

struct Person {
  std::string name;
  std::vector<std::string> words;
  std::map<uint32_t, std::optional<double>> marks;
  template <typename Archive>
  void serialize(Archive& archive) {
    archive(name, words, marks);
  }
};

struct Plain {
  uint64_t a;
  uint8_t b;
};

uint64_t sum = 0;  // the functions add what they read, so that the reads are not removed

template <typename... Args, typename F>
FunctionId id_of(const F&) {
  return FunctionCall<F, std::tuple<Args...>, Args...>::id();
}

const std::vector<FunctionId>& functions() {
  static const std::vector<FunctionId> all = [] {
    require(FunctionTable::build().ok());
    const auto nothing = [] { ++sum; };
    const auto captures = [many = std::array<uint64_t, 4>{}] {
      for (const uint64_t one : many) sum += one;
    };
    struct alignas(64) Aligned {
      uint64_t value;
      void operator()() const { sum += value; }
    };
    const auto words = [](const std::string& text, std::vector<std::string> list) {
      for (const char one : text) sum += static_cast<uint8_t>(one);
      for (const std::string& one : list) sum += one.size();
    };
    const auto person = [](const Person& one) {
      sum += one.name.size() + one.words.size() + one.marks.size();
    };
    const auto mixed = [](bool flag, std::vector<bool> flags, std::vector<Plain> plain,
                          std::variant<uint8_t, std::string> either,
                          std::unique_ptr<std::string> owned) {
      sum += flag ? 1 : 0;
      for (const bool one : flags) sum += one ? 1 : 0;
      for (const Plain& one : plain) sum += one.a + one.b;
      if (const auto* text = std::get_if<std::string>(&either)) sum += text->size();
      if (owned != nullptr) sum += owned->size();
    };
    const auto views = [](std::string_view text, std::span<const Plain> plain) {
      for (const char one : text) sum += static_cast<uint8_t>(one);
      for (const Plain& one : plain) sum += one.a + one.b;
    };
    const auto buffer = [key = uint64_t{0}](void* bytes, uint64_t size) {
      sum += key;
      for (uint64_t i = 0; i < size; ++i) sum += static_cast<const uint8_t*>(bytes)[i];
    };
    const auto result = [](std::vector<uint32_t> values) { return values; };
    return std::vector<FunctionId>{
        id_of(nothing),
        id_of(captures),
        FunctionCall<Aligned, std::tuple<>>::id(),
        id_of<std::string, std::vector<std::string>>(words),
        id_of<Person>(person),
        id_of<bool, std::vector<bool>, std::vector<Plain>, std::variant<uint8_t, std::string>,
              std::unique_ptr<std::string>>(mixed),
        BufferCall<std::decay_t<decltype(buffer)>>::id(),
        id_of<std::vector<uint32_t>>(result),
        id_of<std::string, std::vector<Plain>>(views)};
  }();
  return all;
}

}  // namespace
}  // namespace cariama

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cariama;  // NOLINT(google-build-using-namespace)
  if (size == 0) return 0;
  const std::vector<FunctionId>& all = functions();
  // A message lies in memory of 8-byte words. The message ends where the memory ends, so that the
  // sanitizer reports a read beyond its end.
  const size_t words = (size - 1) / 8;
  const auto memory = std::make_unique<uint64_t[]>(words);
  std::memcpy(memory.get(), data + 1, words * 8);
  const size_t choice = data[0] % (all.size() + 1);
  const auto bytes = std::as_writable_bytes(std::span(memory.get(), words));
  if (words != 0) {
    const auto header = bytes.first(sizeof(CallHeader));
    call_only(all, header);
    if (choice < all.size()) std::memcpy(header.data(), &all[choice].value, 4);
  }
  auto parsed = parse_call(bytes);
  if (!parsed.ok()) return 0;
  require(parsed->total <= bytes.size() && parsed->total % 8 == 0);
  IncomingCall call;
  call.closure = parsed->closure;
  std::string result;
  if (parsed->has_notify) call.result = &result;
  const uint64_t rejected = FunctionTable::rejected();
  run_call(parsed->header, call);
  require((call.outcome == CallOutcome::kUnknown) == (FunctionTable::rejected() != rejected));
  require(call.outcome != CallOutcome::kThrew);  // none of the functions throws
  return 0;
}
