// Exceptions that reach a joiner in another process.
//
// Within a process the exception itself arrives. Between processes its type and text travel: the
// standard library's exception classes that are made from a text arrive as what they were, and so
// do registered ones; any other arrives as remote_error, which names the type and the text.
#ifndef CARIAMA_TASKS_EXCEPTIONS_H_
#define CARIAMA_TASKS_EXCEPTIONS_H_

#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>
#include <typeinfo>

#include "tasks/export.h"

namespace cariama {

// Stands for an exception of another process. what() is "TYPE: TEXT".
class CARIAMA_TASKS_EXPORT remote_error : public std::runtime_error {
 public:
  remote_error(std::string type, std::string text)
      : std::runtime_error(type + ": " + text), type_(std::move(type)), text_(std::move(text)) {}
  ~remote_error() override;

  [[nodiscard]] const std::string& type() const { return type_; }  // demangled
  [[nodiscard]] const std::string& text() const { return text_; }  // its what(), "" if it had none

 private:
  std::string type_;
  std::string text_;
};

namespace tasks {

struct ExceptionText {
  std::string type;  // mangled; "" for what is not an object of a class
  std::string text;
};
[[nodiscard]] ExceptionText describe(const std::exception_ptr& exception);
[[noreturn]] void throw_described(const std::string& type, const std::string& text);

using ThrowFunction = void (*)(const std::string& text);
CARIAMA_TASKS_EXPORT void register_exception(const std::type_info& type, ThrowFunction thrower);

}  // namespace tasks

// From now on a remote E is thrown as E(text). In every process, before tasks run. Not thread-safe.
template <typename E>
void register_exception() {
  tasks::register_exception(typeid(E), [](const std::string& text) { throw E(text); });
}

}  // namespace cariama

#endif  // CARIAMA_TASKS_EXCEPTIONS_H_
