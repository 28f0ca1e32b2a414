// Transfer<T>: how the result of a child travels to a joiner in another process.
//
// A trivially copyable type travels as its bytes. Pointers in it must be valid in every process:
// pointers to functions and constants are, pointers to the heap are not. For other types,
// Transfer<T> packs the value into bytes and unpacks it. Transfer is defined for std::string, and
// for std::vector, std::unique_ptr and std::pair of trivially copyable types. Programs may
// specialise it:
//
//   template <>
//   struct cariama::Transfer<Matrix> {
//     static void pack(const Matrix& from, std::vector<std::byte>& bytes);   // appends
//     static Matrix unpack(std::span<const std::byte> bytes);
//   };
//
// pack() and unpack() are used only if the parent continued without the child. Otherwise the result
// is moved.
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

namespace internal {
// (g++ 12 takes vector::insert() of a range of bytes for an overflow.)
inline void append_bytes(std::vector<std::byte>& bytes, const void* from, size_t size) {
  const size_t before = bytes.size();
  bytes.resize(before + size);
  if (size != 0) std::memcpy(bytes.data() + before, from, size);
}
}  // namespace internal

template <typename T>
struct Transfer {
  static_assert(std::is_trivially_copyable_v<T>,
                "the result of a task travels between processes: specialise cariama::Transfer for "
                "its type");
};

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
requires std::is_trivially_copyable_v<T>
struct Transfer<std::vector<T>> {
  static void pack(const std::vector<T>& from, std::vector<std::byte>& bytes) {
    internal::append_bytes(bytes, from.data(), from.size() * sizeof(T));
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
    if (from != nullptr) internal::append_bytes(bytes, from.get(), sizeof(T));
  }
  static std::unique_ptr<T> unpack(std::span<const std::byte> bytes) {
    if (bytes.empty()) return nullptr;
    alignas(T) std::byte copy[sizeof(T)];
    std::memcpy(copy, bytes.data(), sizeof(T));
    return std::make_unique<T>(*reinterpret_cast<T*>(copy));
  }
};

// std::pair is not trivially copyable, even if its members are, so it needs a specialisation.
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
