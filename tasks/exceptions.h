// How an exception of a task reaches a joiner in another process.
//
// If child and joiner are in the same process, the joiner gets the exception object itself.
// Otherwise only the exception's type name and its what() text travel. The joiner then throws an
// object of the same type if that type is a standard exception class that can be constructed from a
// text, std::bad_alloc, task_cancelled, or a type passed to register_exception(). For any other
// type the joiner throws remote_error, which holds the type name and the text.
#ifndef CARIAMA_TASKS_EXCEPTIONS_H_
#define CARIAMA_TASKS_EXCEPTIONS_H_

#include <cstdint>
#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>
#include <typeinfo>

#include "tasks/export.h"

namespace cariama {

// Represents an exception of another process whose type is not registered. what() is "TYPE: TEXT".
class CARIAMA_TASKS_EXPORT remote_error : public std::runtime_error {
 public:
  remote_error(std::string type, std::string text)
      : std::runtime_error(type + ": " + text), type_(std::move(type)), text_(std::move(text)) {}
  ~remote_error() override;

  [[nodiscard]] const std::string& type() const { return type_; }  // demangled
  // The what() of the original exception, or "" if its type is not derived from std::exception.
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  std::string type_;
  std::string text_;
};

namespace tasks {

struct ExceptionText {
  // The mangled type name; of a remote_error its type(), demangled; "" if the C++ runtime knows no
  // type.
  std::string type;
  std::string text;
};
// Returns type and text of `exception`. For a remote_error these are the type and text it holds.
[[nodiscard]] ExceptionText describe(const std::exception_ptr& exception);
// Throws an exception of the registered type with mangled name `type`, or else a remote_error.
[[noreturn]] void throw_described(const std::string& type, const std::string& text);
// Returns the readable form of a mangled type name, or `name` itself if it is none.
[[nodiscard]] std::string demangled(const std::string& name);
// A type name in 8 bytes. Equal in all processes.
[[nodiscard]] uint64_t hash_of_type(std::string_view type);
// Returns the mangled name of the registered type that has this hash, or "".
[[nodiscard]] std::string registered_type(uint64_t hash);

using ThrowFunction = void (*)(const std::string& text);
CARIAMA_TASKS_EXPORT void register_exception(const std::type_info& type, ThrowFunction thrower);

}  // namespace tasks

// Registers E: a joiner in another process then throws E(text). Call it in every process, before
// tasks run. Not thread-safe.
template <typename E>
void register_exception() {
  tasks::register_exception(typeid(E), [](const std::string& text) { throw E(text); });
}

}  // namespace cariama

#endif  // CARIAMA_TASKS_EXCEPTIONS_H_
