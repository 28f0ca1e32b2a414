// Transfer<T>: how the result of a child travels to a joiner in another process.
//
// A type whose values may be copied as bytes travels as its bytes: trivially copyable types, and
// std::pair and std::tuple of such types. Pointers in it must be valid in every process: pointers
// to functions and constants are, pointers to the heap are not. So std::string_view, std::span and
// structs with pointers compile, and are wrong unless they point to constants. For other types,
// Transfer<T> packs the value into bytes and unpacks it. Transfer is defined for std::string, and
// for std::vector and std::unique_ptr of types that travel as bytes (not vector<bool>). Programs
// may specialise it:
//
//   template <>
//   struct cariama::Transfer<Matrix> {
//     static void pack(const Matrix& from, std::vector<std::byte>& bytes);   // appends
//     static Matrix unpack(std::span<const std::byte> bytes);
//   };
//
// unpack() of vectors and pointers throws std::invalid_argument if `bytes` has a wrong size.
// A child packs such a result when it ends, and the packed bytes stay in memory that every worker
// can read until they are joined: the parent may be stolen before that.
#ifndef CARIAMA_TASKS_TRANSFER_H_
#define CARIAMA_TASKS_TRANSFER_H_

#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace cariama {

namespace internal {
// (g++ 12 takes vector::insert() of a range of bytes for an overflow.)
inline void append_bytes(std::vector<std::byte>& bytes, const void* from, size_t size) {
  const size_t before = bytes.size();
  bytes.resize(before + size);
  if (size != 0) std::memcpy(bytes.data() + before, from, size);
}
[[noreturn]] inline void throw_wrong_size() {
  throw std::invalid_argument("Transfer::unpack() of bytes that are not those of a whole value");
}
}  // namespace internal

namespace tasks {
// True for types whose values travel as their bytes: copying the bytes copies the value, and
// nothing has to be destroyed. std::pair and std::tuple are not trivially copyable, because of
// their assignments, but may have this property.
template <typename T>
inline constexpr bool kTravelsAsBytes = std::is_object_v<T> &&
                                        (std::is_trivially_copyable_v<T> ||
                                         (std::is_trivially_copy_constructible_v<T> &&
                                          std::is_trivially_destructible_v<T>));
}  // namespace tasks

// The unspecialised Transfer: T does not travel. Its functions are only declared, so that the
// message of require_transferable() is the only error of a program that needs them.
template <typename T>
struct Transfer {
  using Unspecialised = void;
  static void pack(const T& from, std::vector<std::byte>& bytes);
  static T unpack(std::span<const std::byte> bytes);
};

namespace tasks {
// Does not compile unless a task may have the result type T. A function, so that a program gets the
// message once for each type.
template <typename T>
constexpr void require_transferable() {
  static_assert(
      kTravelsAsBytes<T> || !requires { typename Transfer<T>::Unspecialised; },
      "cariama: the result of a task travels between processes: return a value, and specialise "
      "cariama::Transfer for its type (tasks/transfer.h), or put the data into global "
      "memory");
}
template <>
constexpr void require_transferable<void>() {}
}  // namespace tasks

template <>
struct Transfer<std::string> {
  static void pack(const std::string& from, std::vector<std::byte>& bytes) {
    internal::append_bytes(bytes, from.data(), from.size());
  }
  static std::string unpack(std::span<const std::byte> bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
};

template <typename T>
requires(tasks::kTravelsAsBytes<T>&& std::is_default_constructible_v<T> &&
         !std::is_same_v<T, bool>) struct Transfer<std::vector<T>> {
  static void pack(const std::vector<T>& from, std::vector<std::byte>& bytes) {
    internal::append_bytes(bytes, from.data(), from.size() * sizeof(T));
  }
  static std::vector<T> unpack(std::span<const std::byte> bytes) {
    if (bytes.size() % sizeof(T) != 0) internal::throw_wrong_size();
    std::vector<T> to(bytes.size() / sizeof(T));
    if (!to.empty()) std::memcpy(static_cast<void*>(to.data()), bytes.data(), bytes.size());
    return to;
  }
};

template <typename T>
requires(tasks::kTravelsAsBytes<T> && !std::is_array_v<T>) struct Transfer<std::unique_ptr<T>> {
  static void pack(const std::unique_ptr<T>& from, std::vector<std::byte>& bytes) {
    if (from != nullptr) internal::append_bytes(bytes, from.get(), sizeof(T));
  }
  static std::unique_ptr<T> unpack(std::span<const std::byte> bytes) {
    if (bytes.empty()) return nullptr;
    if (bytes.size() != sizeof(T)) internal::throw_wrong_size();
    alignas(T) std::byte copy[sizeof(T)];
    std::memcpy(copy, bytes.data(), sizeof(T));
    return std::make_unique<T>(*reinterpret_cast<T*>(copy));
  }
};

}  // namespace cariama

#endif  // CARIAMA_TASKS_TRANSFER_H_
