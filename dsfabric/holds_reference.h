// holds_reference<T>(): whether a value of T, for example a lambda, contains a reference. Calls and
// tasks leave the stack, and often the process, in which they are made: a reference that they hold
// would lead to other memory there, so these types do not compile. Not for users: the templates of
// calls and tasks use it.
//
// The members of a class cannot be enumerated, but two properties together decide it: a class with
// a member of reference type is not a standard-layout class ([class.prop]), and a bit_cast to it is
// not a constant expression ([bit.cast]). The second one excludes classes that have no standard
// layout for another reason. A class that has neither property, and contains a pointer or a union,
// is taken for one with a reference (a std::tuple with a pointer, for example).
//
// A captured pointer, also `this` and a std::reference_wrapper, is not found.
#ifndef CARIAMA_DSFABRIC_HOLDS_REFERENCE_H_
#define CARIAMA_DSFABRIC_HOLDS_REFERENCE_H_

#include <cstddef>
#include <type_traits>

namespace cariama::internal {

template <size_t kSize>
struct Bytes {
  unsigned char bytes[kSize];
};
// A bit_cast to T is a constant expression. Then T contains no reference, pointer or union.
template <typename T>
concept ConstantFromBytes = requires {
  typename std::bool_constant<(static_cast<void>(__builtin_bit_cast(T, Bytes<sizeof(T)>{})), true)>;
};
template <typename T>
constexpr bool holds_reference() {
  if constexpr (std::is_class_v<T> && std::is_trivially_copyable_v<T> &&
                !std::is_standard_layout_v<T>) {
    return !ConstantFromBytes<T>;
  } else {
    return false;
  }
}

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_HOLDS_REFERENCE_H_
