// The three numbers that name processes and threads of a job, as three types, so that one cannot be
// passed where another is meant.
//
//   Rank         a process, 0 to fabric.size() - 1
//   ThreadId     a long-lived thread of the job, 0 to fabric.total_threads() - 1: its global id
//   ThreadIndex  a long-lived thread within its process, 0 to fabric.threads() - 1
//
//   call(fabric, fabric.thread_of(rank, 0), f);   // calls go to threads
//   service_call(fabric, fabric.rank_of(id), f);  // service calls go to processes
//   call(fabric, rank, f);                        // does not compile
//
// Each converts from and to uint32_t, so loops count with integers, and ids index arrays:
//
//   for (uint32_t rank = 0; rank < fabric.size(); ++rank) service_call(fabric, rank, f);
//   counts[fabric.rank()] += 1;
//
// Integers are not checked, and arithmetic on ids yields integers: (rank + 1) % fabric.size() is a
// uint32_t. value() gives the number where no conversion applies: to printf, to templates such as
// std::min, to absl::StrCat, and in `condition ? rank.value() : 0`.
//
// Trivially copyable, of the size and layout of uint32_t: an id is passed in a register, travels in
// closures, arguments and results of calls, and may be part of a message. Printed to a stream, an
// id is its number. std::hash accepts ids.
#ifndef CARIAMA_DSFABRIC_IDS_H_
#define CARIAMA_DSFABRIC_IDS_H_

#include <compare>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <type_traits>

namespace cariama {

class Rank;
class ThreadId;
class ThreadIndex;

namespace internal {

template <typename T>
concept Id = std::same_as<T, Rank> || std::same_as<T, ThreadId> || std::same_as<T, ThreadIndex>;
template <typename T, typename Self>
concept OtherId = Id<T> && !std::same_as<T, Self>;

}  // namespace internal

// The rank of a process.
class Rank {
 public:
  constexpr Rank() = default;
  constexpr Rank(uint32_t value) : value_(value) {}  // NOLINT(google-explicit-constructor)
  template <internal::OtherId<Rank> Other>
  constexpr Rank(Other) {  // NOLINT(google-explicit-constructor)
    static_assert(!std::same_as<Other, ThreadId>,
                  "cariama: a ThreadId is not a Rank; use fabric.rank_of(thread)");
    static_assert(!std::same_as<Other, ThreadIndex>,
                  "cariama: a ThreadIndex is not a Rank; it numbers the threads of one process");
  }
  constexpr operator uint32_t() const { return value_; }  // NOLINT(google-explicit-constructor)
  [[nodiscard]] constexpr uint32_t value() const { return value_; }

 private:
  uint32_t value_ = 0;
};

// The global id of a long-lived thread.
class ThreadId {
 public:
  constexpr ThreadId() = default;
  constexpr ThreadId(uint32_t value) : value_(value) {}  // NOLINT(google-explicit-constructor)
  template <internal::OtherId<ThreadId> Other>
  constexpr ThreadId(Other) {  // NOLINT(google-explicit-constructor)
    static_assert(!std::same_as<Other, Rank>,
                  "cariama: a Rank is not a ThreadId; use fabric.thread_of(rank, index)");
    static_assert(!std::same_as<Other, ThreadIndex>,
                  "cariama: a ThreadIndex is not a ThreadId; use fabric.thread_of(rank, index)");
  }
  constexpr operator uint32_t() const { return value_; }  // NOLINT(google-explicit-constructor)
  [[nodiscard]] constexpr uint32_t value() const { return value_; }

 private:
  uint32_t value_ = 0;
};

// The number of a long-lived thread within its process.
class ThreadIndex {
 public:
  constexpr ThreadIndex() = default;
  constexpr ThreadIndex(uint32_t value) : value_(value) {}  // NOLINT(google-explicit-constructor)
  template <internal::OtherId<ThreadIndex> Other>
  constexpr ThreadIndex(Other) {  // NOLINT(google-explicit-constructor)
    static_assert(!std::same_as<Other, ThreadId>,
                  "cariama: a ThreadId is not a ThreadIndex; use fabric.index_of(thread)");
    static_assert(!std::same_as<Other, Rank>,
                  "cariama: a Rank is not a ThreadIndex; it numbers the processes of the job");
  }
  constexpr operator uint32_t() const { return value_; }  // NOLINT(google-explicit-constructor)
  [[nodiscard]] constexpr uint32_t value() const { return value_; }

 private:
  uint32_t value_ = 0;
};

static_assert(sizeof(Rank) == sizeof(uint32_t) && sizeof(ThreadId) == sizeof(uint32_t) &&
              sizeof(ThreadIndex) == sizeof(uint32_t));
static_assert(std::is_trivially_copyable_v<Rank> && std::is_standard_layout_v<Rank> &&
              std::is_trivially_copyable_v<ThreadId> && std::is_standard_layout_v<ThreadId> &&
              std::is_trivially_copyable_v<ThreadIndex> && std::is_standard_layout_v<ThreadIndex>);

// Ids of one type compare as their numbers, also with integers. Ids of two types do not compare.
// (enable_if, because clang 14 instantiates operators for pointers before it checks a concept.)
template <typename A, typename B,
          std::enable_if_t<internal::Id<A> && internal::OtherId<B, A>, int> = 0>
constexpr bool operator==(A, B) {
  static_assert(!internal::Id<A>,
                "cariama: a Rank, a ThreadId and a ThreadIndex do not compare; convert one by "
                "fabric.rank_of(), thread_of() or index_of()");
  return false;
}
template <typename A, typename B,
          std::enable_if_t<internal::Id<A> && internal::OtherId<B, A>, int> = 0>
constexpr std::strong_ordering operator<=>(A, B) {
  static_assert(!internal::Id<A>,
                "cariama: a Rank, a ThreadId and a ThreadIndex do not compare; convert one by "
                "fabric.rank_of(), thread_of() or index_of()");
  return std::strong_ordering::equal;
}

template <internal::Id T>
std::ostream& operator<<(std::ostream& out, T id) {
  return out << id.value();
}

// Not a rank.
inline constexpr Rank kNoRank = UINT32_MAX;
// Not a thread id: for example of a caller that is not a long-lived thread.
inline constexpr ThreadId kNoThread = UINT32_MAX;

namespace internal {
// In the place of a thread id: the service of a process. Larger than every thread id.
inline constexpr ThreadId kService = UINT32_MAX - 1;
}  // namespace internal

}  // namespace cariama

template <cariama::internal::Id T>
struct std::hash<T> {
  size_t operator()(T id) const noexcept { return std::hash<uint32_t>()(id.value()); }
};

#endif  // CARIAMA_DSFABRIC_IDS_H_
