// A strict JSON parser (RFC 8259). With it tests prove that the output of programs is valid JSON.
#ifndef CARIAMA_TESTS_DTUTILS_TESTING_JSON_H_
#define CARIAMA_TESTS_DTUTILS_TESTING_JSON_H_

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace cariama::testing {

struct Json {
  using Array = std::vector<Json>;
  using Object = std::map<std::string, Json>;
  // A number is stored as text, so that 64-bit values stay exact.
  struct Number {
    std::string text;
  };
  std::variant<std::nullptr_t, bool, Number, std::string, Array, Object> value;

  [[nodiscard]] const Array& array() const { return std::get<Array>(value); }
  [[nodiscard]] const Object& object() const { return std::get<Object>(value); }
  [[nodiscard]] const std::string& string() const { return std::get<std::string>(value); }
  [[nodiscard]] double number() const { return std::stod(std::get<Number>(value).text); }
  [[nodiscard]] const std::string& number_text() const { return std::get<Number>(value).text; }
  // Returns a member of an object. Throws, and so fails the test, if there is no such member.
  [[nodiscard]] const Json& at(const std::string& key) const { return object().at(key); }
  [[nodiscard]] bool has(const std::string& key) const { return object().count(key) != 0; }
};

// Parses `text`. Returns nullopt if it is not exactly one JSON text, or if an object has duplicate
// keys.
[[nodiscard]] std::optional<Json> parse_json(std::string_view text);

}  // namespace cariama::testing

#endif  // CARIAMA_TESTS_DTUTILS_TESTING_JSON_H_
