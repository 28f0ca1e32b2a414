#include "tasks/exceptions.h"

#include <cxxabi.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <new>

#include "tasks/cancellation.h"

namespace cariama {

remote_error::~remote_error() = default;

namespace tasks {
namespace {

template <typename E>
void throw_as(const std::string& text) {
  throw E(text);
}
void throw_bad_alloc(const std::string&) { throw std::bad_alloc(); }

// Functions that throw an exception from its text, by mangled type name, which is the same in every
// process.
std::map<std::string, ThrowFunction>& throwers() {
  static std::map<std::string, ThrowFunction> table = {
      {typeid(std::logic_error).name(), throw_as<std::logic_error>},
      {typeid(std::invalid_argument).name(), throw_as<std::invalid_argument>},
      {typeid(std::domain_error).name(), throw_as<std::domain_error>},
      {typeid(std::length_error).name(), throw_as<std::length_error>},
      {typeid(std::out_of_range).name(), throw_as<std::out_of_range>},
      {typeid(std::runtime_error).name(), throw_as<std::runtime_error>},
      {typeid(std::range_error).name(), throw_as<std::range_error>},
      {typeid(std::overflow_error).name(), throw_as<std::overflow_error>},
      {typeid(std::underflow_error).name(), throw_as<std::underflow_error>},
      {typeid(std::bad_alloc).name(), throw_bad_alloc},
      {typeid(task_cancelled).name(), throw_as<task_cancelled>},
  };
  return table;
}

}  // namespace

std::string demangled(const std::string& name) {
  if (name.empty()) return "an exception of unknown type";
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(
      abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status), std::free);
  return status == 0 ? text.get() : name;
}

uint64_t hash_of_type(std::string_view type) {  // FNV-1a
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : type) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

std::string registered_type(uint64_t hash) {
  for (const auto& [type, thrower] : throwers()) {
    if (hash_of_type(type) == hash) return type;
  }
  return "";
}

ExceptionText describe(const std::exception_ptr& exception) {
  ExceptionText text;
  try {
    std::rethrow_exception(exception);
  } catch (const remote_error& error) {  // it has travelled before: keep the original type
    text.type = error.type();
    text.text = error.text();
    return text;
  } catch (const std::exception& error) {
    text.text = error.what();
    if (const std::type_info* type = abi::__cxa_current_exception_type()) text.type = type->name();
  } catch (...) {
    if (const std::type_info* type = abi::__cxa_current_exception_type()) text.type = type->name();
  }
  return text;
}

void throw_described(const std::string& type, const std::string& text) {
  const auto found = throwers().find(type);
  if (found != throwers().end()) found->second(text);
  throw remote_error(demangled(type), text);
}

void register_exception(const std::type_info& type, ThrowFunction thrower) {
  throwers()[type.name()] = thrower;
}

}  // namespace tasks
}  // namespace cariama
