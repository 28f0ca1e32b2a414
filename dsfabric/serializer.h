// Serialization of call arguments: trivially copyable values bytewise, strings and vectors of plain
// values as their size and bytes, values of all other types through cereal. So every type that
// cereal can save and load can be an argument (user types with a serialize(), too).
//
// The archives write to and read from memory directly. The reader trusts no length: a container's
// size is checked against the remaining bytes before memory is allocated for it.
#ifndef CARIAMA_DSFABRIC_SERIALIZER_H_
#define CARIAMA_DSFABRIC_SERIALIZER_H_

#include <array>
#include <cereal/archives/binary.hpp>
#include <cereal/cereal.hpp>
#include <cereal/types/array.hpp>
#include <cereal/types/deque.hpp>
#include <cereal/types/list.hpp>
#include <cereal/types/map.hpp>
#include <cereal/types/memory.hpp>
#include <cereal/types/optional.hpp>
#include <cereal/types/set.hpp>
#include <cereal/types/string.hpp>
#include <cereal/types/tuple.hpp>
#include <cereal/types/unordered_map.hpp>
#include <cereal/types/unordered_set.hpp>
#include <cereal/types/utility.hpp>
#include <cereal/types/variant.hpp>
#include <cereal/types/vector.hpp>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <variant>
#include <vector>

namespace cariama {

// Thrown by ArgumentReader when the bytes are not valid. The receiver then rejects the call as
// malformed.
class MalformedArguments : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Appends to a string.
class ArgumentWriter : public cereal::OutputArchive<ArgumentWriter> {
 public:
  explicit ArgumentWriter(std::string& out) : OutputArchive(this), out_(out) {}
  void save_bytes(const void* data, size_t bytes) {
    if (bytes != 0) out_.append(static_cast<const char*>(data), bytes);
  }

 private:
  std::string& out_;
};

// Reads from memory that the caller must keep alive.
class ArgumentReader : public cereal::InputArchive<ArgumentReader> {
 public:
  explicit ArgumentReader(std::span<const std::byte> in) : InputArchive(this), in_(in) {}
  void load_bytes(void* data, size_t bytes) {
    if (bytes > in_.size()) throw MalformedArguments("the arguments of a call are cut short");
    if (bytes == 0) return;  // an empty container has no memory
    std::memcpy(data, in_.data(), bytes);
    in_ = in_.subspan(bytes);
  }
  // Throws MalformedArguments if a container's size exceeds the number of remaining bytes: every
  // element takes at least one byte.
  void check_size(uint64_t elements) const {
    if (elements > in_.size()) throw MalformedArguments("a container in a call has a false size");
  }
  [[nodiscard]] size_t bytes_left() const { return in_.size(); }

 private:
  std::span<const std::byte> in_;
};

namespace internal {

// Throws if a received bool is neither 0 nor 1: reading such a bool is undefined behaviour.
inline void check_bool(std::byte byte) {
  if (byte > std::byte{1}) throw MalformedArguments("a bool in a call is neither false nor true");
}

// A class that is saved bytewise within a container, because cereal has no serialization for it.
template <typename T>
concept PlainClass =
    std::is_class_v<T> && std::is_trivially_copyable_v<T> &&
    !cereal::traits::is_output_serializable<T, cereal::BinaryOutputArchive>::value &&
    !cereal::traits::is_input_serializable<T, cereal::BinaryInputArchive>::value;

}  // namespace internal

template <typename T>
requires std::is_arithmetic_v<T>
void CEREAL_SAVE_FUNCTION_NAME(ArgumentWriter& writer, const T& value) {
  writer.save_bytes(&value, sizeof value);
}
template <typename T>
requires std::is_arithmetic_v<T>
void CEREAL_LOAD_FUNCTION_NAME(ArgumentReader& reader, T& value) {
  if constexpr (std::is_same_v<T, bool>) {
    std::byte byte{};
    reader.load_bytes(&byte, sizeof byte);
    internal::check_bool(byte);
    value = byte != std::byte{0};
  } else {
    reader.load_bytes(&value, sizeof value);
  }
}
// The archive is a template parameter, and its constraint comes first: otherwise PlainClass depends
// on itself for a class of this namespace, where cereal finds these functions when it looks for the
// serialization of the class.
template <std::same_as<ArgumentWriter> Archive, internal::PlainClass T>
void CEREAL_SAVE_FUNCTION_NAME(Archive& writer, const T& value) {
  writer.save_bytes(&value, sizeof value);
}
template <std::same_as<ArgumentReader> Archive, internal::PlainClass T>
void CEREAL_LOAD_FUNCTION_NAME(Archive& reader, T& value) {
  reader.load_bytes(&value, sizeof value);
}
template <typename T>
void CEREAL_SAVE_FUNCTION_NAME(ArgumentWriter& writer, const cereal::BinaryData<T>& data) {
  writer.save_bytes(data.data, data.size);
}
template <typename T>
void CEREAL_LOAD_FUNCTION_NAME(ArgumentReader& reader, cereal::BinaryData<T>& data) {
  reader.load_bytes(data.data, data.size);
}
template <typename Archive, typename T>
requires std::is_base_of_v<cereal::detail::OutputArchiveBase, Archive> ||
    std::is_base_of_v<cereal::detail::InputArchiveBase, Archive>
void CEREAL_SERIALIZE_FUNCTION_NAME(Archive& archive, cereal::NameValuePair<T>& pair) {
  archive(pair.value);
}
template <typename T>
void CEREAL_SAVE_FUNCTION_NAME(ArgumentWriter& writer, const cereal::SizeTag<T>& tag) {
  writer(static_cast<uint64_t>(tag.size));
}
template <typename T>
void CEREAL_LOAD_FUNCTION_NAME(ArgumentReader& reader, cereal::SizeTag<T>& tag) {
  uint64_t size = 0;
  reader(size);
  reader.check_size(size);
  tag.size = static_cast<std::remove_reference_t<T>>(size);
}

namespace internal {

// cereal accepts a container as serializable whatever its elements are; if they are not, the error
// appears deep inside cereal. So this trait checks the elements.
template <typename T>
struct ElementsTravel : std::true_type {
  static constexpr bool kOther = true;  // T is none of the containers below
};

// True if cereal saves and loads a T. False for pointers: a pointer is meaningless in another
// process.
template <typename T>
inline constexpr bool kSaved =
    !std::is_pointer_v<T> && cereal::traits::is_output_serializable<T, ArgumentWriter>::value &&
    cereal::traits::is_input_serializable<T, ArgumentReader>::value &&
    std::is_default_constructible_v<T> && ElementsTravel<T>::value;
// As kSaved, for an object behind a smart pointer, which cereal constructs: T needs no
// default constructor.
template <typename T>
inline constexpr bool kSavedBehindPointer =
    cereal::traits::is_output_serializable<T, ArgumentWriter>::value&& ElementsTravel<T>::value;

template <typename... Elements>
struct EachIsSaved : std::bool_constant<(kSaved<Elements> && ...)> {};

template <typename T, typename... Rest>
struct ElementsTravel<std::vector<T, Rest...>> : EachIsSaved<T> {};
template <typename T, typename... Rest>
struct ElementsTravel<std::deque<T, Rest...>> : EachIsSaved<T> {};
template <typename T, typename... Rest>
struct ElementsTravel<std::list<T, Rest...>> : EachIsSaved<T> {};
template <typename T, size_t kCount>
struct ElementsTravel<std::array<T, kCount>> : EachIsSaved<T> {};
template <typename T, typename... Rest>
struct ElementsTravel<std::set<T, Rest...>> : EachIsSaved<T> {};
template <typename T, typename... Rest>
struct ElementsTravel<std::multiset<T, Rest...>> : EachIsSaved<T> {};
template <typename T, typename... Rest>
struct ElementsTravel<std::unordered_set<T, Rest...>> : EachIsSaved<T> {};
template <typename T, typename... Rest>
struct ElementsTravel<std::unordered_multiset<T, Rest...>> : EachIsSaved<T> {};
template <typename K, typename T, typename... Rest>
struct ElementsTravel<std::map<K, T, Rest...>> : EachIsSaved<K, T> {};
template <typename K, typename T, typename... Rest>
struct ElementsTravel<std::multimap<K, T, Rest...>> : EachIsSaved<K, T> {};
template <typename K, typename T, typename... Rest>
struct ElementsTravel<std::unordered_map<K, T, Rest...>> : EachIsSaved<K, T> {};
template <typename K, typename T, typename... Rest>
struct ElementsTravel<std::unordered_multimap<K, T, Rest...>> : EachIsSaved<K, T> {};
template <typename... Ts>
struct ElementsTravel<std::tuple<Ts...>> : EachIsSaved<Ts...> {};
template <typename A, typename B>
struct ElementsTravel<std::pair<A, B>> : EachIsSaved<A, B> {};
template <typename... Ts>
struct ElementsTravel<std::variant<Ts...>> : EachIsSaved<Ts...> {};
template <typename T>
struct ElementsTravel<std::optional<T>> : EachIsSaved<T> {};
template <typename T, typename... Rest>
struct ElementsTravel<std::unique_ptr<T, Rest...>> : std::bool_constant<kSavedBehindPointer<T>> {};
template <typename T>
struct ElementsTravel<std::shared_ptr<T>> : std::bool_constant<kSavedBehindPointer<T>> {};

// A type that ArgumentWriter saves as its bytes.
template <typename T>
inline constexpr bool kIsPlain =
    (std::is_arithmetic_v<T> && !std::is_same_v<T, bool>) || PlainClass<T>;

// A string or vector whose serialization is the number of its elements (8 bytes) and their bytes.
template <typename T>
inline constexpr bool kIsPlainSequence = false;
template <>
inline constexpr bool kIsPlainSequence<std::string> = true;
template <typename T>
inline constexpr bool kIsPlainSequence<std::vector<T>> = kIsPlain<T>;

// Types that are saved and loaded without an archive.
template <typename T>
inline constexpr bool kSavedDirectly = std::is_trivially_copyable_v<T> || kIsPlainSequence<T>;

// Returns the number of bytes of the serialization.
template <typename T>
requires kSavedDirectly<T>
[[nodiscard]] constexpr size_t saved_bytes(const T& value) {
  if constexpr (std::is_trivially_copyable_v<T>) {
    return sizeof(T);
  } else {
    return sizeof(uint64_t) + value.size() * sizeof(typename T::value_type);
  }
}

// Writes the serialization to `at`. Returns the end.
template <typename T>
requires kSavedDirectly<T>
[[nodiscard]] std::byte* save_at(std::byte* at, const T& value) {
  if constexpr (std::is_trivially_copyable_v<T>) {
    std::memcpy(at, &value, sizeof(T));
    return at + sizeof(T);
  } else {
    const uint64_t size = value.size();
    std::memcpy(at, &size, sizeof size);
    at += sizeof size;
    const size_t bytes = size * sizeof(typename T::value_type);
    if (bytes != 0) std::memcpy(at, value.data(), bytes);
    return at + bytes;
  }
}

// Removes the serialization of a sequence of Ts from the front of `in`. Returns the number of its
// elements, and sets `first` to their bytes.
template <typename T>
[[nodiscard]] size_t load_elements(std::span<const std::byte>& in, const std::byte*& first) {
  uint64_t size = 0;
  if (in.size() < sizeof size) {
    throw MalformedArguments("the arguments of a call are cut short");
  }
  std::memcpy(&size, in.data(), sizeof size);
  in = in.subspan(sizeof size);
  if (size > in.size() / sizeof(T)) {
    throw MalformedArguments("a container in a call has a false size");
  }
  first = in.data();
  in = in.subspan(size * sizeof(T));
  return size;
}

template <typename T>
[[nodiscard]] bool is_aligned_for(const std::byte* at) {
  return reinterpret_cast<uintptr_t>(at) % alignof(T) == 0;
}

// True for the class templates of the standard library that ElementsTravel knows.
template <typename T>
concept StandardContainer = !requires {
  ElementsTravel<T>::kOther;
};

}  // namespace internal

// Satisfied if a T can be an argument or a result: a trivially copyable type, or a type that cereal
// saves and loads, with all its elements. (The members that a user's serialize() saves are not
// checked.)
template <typename T>
concept Serializable = std::is_trivially_copyable_v<T> || internal::kSaved<T>;

// Appends `value` to `out`.
template <Serializable T>
void save_value(std::string& out, const T& value) {
  if constexpr (std::is_trivially_copyable_v<T>) {
    out.append(reinterpret_cast<const char*>(&value), sizeof value);
  } else if constexpr (internal::kIsPlainSequence<T>) {
    const size_t before = out.size();
    out.resize(before + internal::saved_bytes(value));
    static_cast<void>(internal::save_at(reinterpret_cast<std::byte*>(out.data() + before), value));
  } else {
    ArgumentWriter writer(out);
    writer(value);
  }
}

namespace internal {

// load_value() for types with a loading function. A function of its own, because g++ constructs a
// local variable in the place of the result only in the outermost block of a function.
template <typename T>
[[nodiscard]] T load_serialized(std::span<const std::byte>& in) {
  ArgumentReader reader(in);
  T value;
  reader(value);
  in = in.last(reader.bytes_left());
  return value;
}

}  // namespace internal

// Loads a T from the front of `in`, and removes its bytes from `in`. Throws MalformedArguments, or
// the exception of the type's own loading.
template <Serializable T>
[[nodiscard]] T load_value(std::span<const std::byte>& in) {
  if constexpr (std::is_trivially_copyable_v<T>) {
    if (in.size() < sizeof(T)) {
      throw MalformedArguments("the arguments of a call are cut short");
    }
    alignas(T) std::byte copy[sizeof(T)];
    std::memcpy(copy, in.data(), sizeof(T));
    if constexpr (std::is_same_v<T, bool>) internal::check_bool(copy[0]);
    in = in.subspan(sizeof(T));
    return *std::launder(reinterpret_cast<T*>(copy));
  } else if constexpr (internal::kIsPlainSequence<T>) {
    using Element = typename T::value_type;
    const std::byte* first = nullptr;
    const size_t size = internal::load_elements<Element>(in, first);
    if constexpr (std::is_copy_constructible_v<Element>) {
      // resize() would write each element twice.
      if (size != 0 && internal::is_aligned_for<Element>(first)) {
        const auto* const elements = reinterpret_cast<const Element*>(first);
        return T(elements, elements + size);
      }
    }
    T value;
    value.resize(size);
    if (size != 0) std::memcpy(static_cast<void*>(value.data()), first, size * sizeof(Element));
    return value;
  } else {
    return internal::load_serialized<T>(in);
  }
}

}  // namespace cariama

CEREAL_REGISTER_ARCHIVE(cariama::ArgumentWriter)
CEREAL_REGISTER_ARCHIVE(cariama::ArgumentReader)
CEREAL_SETUP_ARCHIVE_TRAITS(cariama::ArgumentReader, cariama::ArgumentWriter)

#endif  // CARIAMA_DSFABRIC_SERIALIZER_H_
