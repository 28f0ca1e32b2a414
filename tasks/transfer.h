// How results travel from a child to a joiner in another process.
//
// A trivially copyable type travels as its bytes: pointers in it must mean the same everywhere
// (functions, the uni-address stack's own frames; never the heap). For other types Transfer<T> says
// how; it is there for std::string, and for std::vector, std::unique_ptr and std::pair of
// trivially copyable types; it may be specialised:
//
//   template <>
//   struct cariama::Transfer<Matrix> {
//     static void pack(const Matrix& from, std::vector<std::byte>& bytes);   // appends
//     static Matrix unpack(std::span<const std::byte> bytes);
//   };
//
// It is used only when child and parent were separated; otherwise the result is moved.
#ifndef CARIAMA_TASKS_TRANSFER_H_
#define CARIAMA_TASKS_TRANSFER_H_

#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace cariama {

template <typename T>
struct Transfer {
  static_assert(std::is_trivially_copyable_v<T>,
                "the result of a task travels between processes: specialise cariama::Transfer for "
                "its type");
};

template <>
struct Transfer<std::string> {
  static void pack(const std::string& from, std::vector<std::byte>& bytes) {
    const auto* begin = reinterpret_cast<const std::byte*>(from.data());
    bytes.insert(bytes.end(), begin, begin + from.size());
  }
  static std::string unpack(std::span<const std::byte> bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
};

template <typename T>
requires std::is_trivially_copyable_v<T>
struct Transfer<std::vector<T>> {
  static void pack(const std::vector<T>& from, std::vector<std::byte>& bytes) {
    const auto* begin = reinterpret_cast<const std::byte*>(from.data());
    bytes.insert(bytes.end(), begin, begin + from.size() * sizeof(T));
  }
  static std::vector<T> unpack(std::span<const std::byte> bytes) {
    std::vector<T> to(bytes.size() / sizeof(T));
    if (!to.empty()) std::memcpy(to.data(), bytes.data(), to.size() * sizeof(T));
    return to;
  }
};

template <typename T>
requires(std::is_trivially_copyable_v<T> &&
         !std::is_array_v<T>) struct Transfer<std::unique_ptr<T>> {
  static void pack(const std::unique_ptr<T>& from, std::vector<std::byte>& bytes) {
    if (from == nullptr) return;
    const auto* begin = reinterpret_cast<const std::byte*>(from.get());
    bytes.insert(bytes.end(), begin, begin + sizeof(T));
  }
  static std::unique_ptr<T> unpack(std::span<const std::byte> bytes) {
    if (bytes.empty()) return nullptr;
    alignas(T) std::byte copy[sizeof(T)];
    std::memcpy(copy, bytes.data(), sizeof(T));
    return std::make_unique<T>(*reinterpret_cast<T*>(copy));
  }
};

// std::pair is not trivially copyable, whatever is in it.
template <typename A, typename B>
requires(std::is_trivially_copyable_v<A>&&
             std::is_trivially_copyable_v<B>) struct Transfer<std::pair<A, B>> {
  static void pack(const std::pair<A, B>& from, std::vector<std::byte>& bytes) {
    bytes.resize(bytes.size() + sizeof(A) + sizeof(B));
    std::byte* to = bytes.data() + bytes.size() - sizeof(A) - sizeof(B);
    std::memcpy(to, &from.first, sizeof(A));
    std::memcpy(to + sizeof(A), &from.second, sizeof(B));
  }
  static std::pair<A, B> unpack(std::span<const std::byte> bytes) {
    struct Copy {
      alignas(A) std::byte first[sizeof(A)];
      alignas(B) std::byte second[sizeof(B)];
    } copy;
    std::memcpy(copy.first, bytes.data(), sizeof(A));
    std::memcpy(copy.second, bytes.data() + sizeof(A), sizeof(B));
    return {*reinterpret_cast<A*>(copy.first), *reinterpret_cast<B*>(copy.second)};
  }
};

}  // namespace cariama

#endif  // CARIAMA_TASKS_TRANSFER_H_
