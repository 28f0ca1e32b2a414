// The encoding of calls: encoded calls run at the receiver, and invalid bytes run nothing.
#include "dsfabric/call_encoding.h"

#include <array>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cariama {
namespace {

using ::testing::HasSubstr;

// Encodes a call as in the memory of a message: aligned to 8 bytes only.
template <typename Call>
std::vector<uint64_t> encode(const Call& call, uint8_t flags = 0) {
  EXPECT_TRUE(FunctionTable::build().ok());
  EXPECT_NE(Call::id().value, 0u);
  EXPECT_EQ(call.bytes() % 8, 0u);
  const size_t notify = flags != 0 ? sizeof(NotifyTarget) : 0;
  // A word precedes the call, so that the call is not aligned better than the wire guarantees.
  std::vector<uint64_t> memory(2 + (notify + call.bytes()) / 8, 0xeeeeeeeeeeeeeeee);
  const CallHeader header = CallHeader::make(Call::id(), notify + call.bytes(), flags);
  std::memcpy(&memory[1], &header, sizeof header);
  if (flags != 0) {
    const NotifyTarget target{.handle = 77, .key = 0, .rank = 3, .reserved = 0};
    std::memcpy(&memory[2], &target, sizeof target);
  }
  call.write(reinterpret_cast<std::byte*>(memory.data() + 2) + notify);
  return memory;
}

std::span<std::byte> message_of(std::vector<uint64_t>& memory) {
  return std::as_writable_bytes(std::span(memory)).subspan(8);
}

// Parses and runs the call in the memory.
IncomingCall run(std::vector<uint64_t>& memory, std::string* result = nullptr) {
  auto parsed = parse_call(message_of(memory));
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  IncomingCall call;
  if (!parsed.ok()) return call;
  call.closure = parsed->closure;
  call.result = result;
  run_call(parsed->header, call);
  return call;
}

template <typename F, typename... Args>
IncomingCall send_and_run(F&& function, Args&&... arguments) {
  auto memory = encode(make_call(std::forward<F>(function), std::forward<Args>(arguments)...));
  return run(memory);
}

int runs = 0;

TEST(Closure, WithoutCapturesTakesNoBytes) {
  runs = 0;
  const auto call = make_call([] { ++runs; });
  EXPECT_EQ(call.bytes(), 0u);
  auto memory = encode(call);
  EXPECT_EQ(memory.size(), 2u);
  EXPECT_EQ(run(memory).outcome, CallOutcome::kDone);
  EXPECT_EQ(runs, 1);
}

TEST(Closure, CarriesItsCaptures) {
  runs = 0;
  int one = 1;
  const std::array<char, 5> five{'a', 'b', 'c', 'd', 'e'};
  const auto call = make_call([one, five] { runs = one + (five[4] == 'e' ? 10 : 0); });
  EXPECT_EQ(call.bytes(), 16u);
  auto memory = encode(call);
  EXPECT_EQ(run(memory).outcome, CallOutcome::kDone);
  EXPECT_EQ(runs, 11);
}

TEST(Closure, LargeClosuresArriveComplete) {
  runs = 0;
  std::array<uint32_t, 100'000> many;
  for (uint32_t i = 0; i < many.size(); ++i) many[i] = i * 7;
  struct Check {
    std::array<uint32_t, 100'000> values;
    void operator()() const {
      for (uint32_t i = 0; i < values.size(); ++i) runs += values[i] == i * 7 ? 0 : 1;
      ++runs;
    }
  };
  EXPECT_EQ(send_and_run(Check{many}).outcome, CallOutcome::kDone);
  EXPECT_EQ(runs, 1);
}

template <size_t kAlignment>
struct alignas(kAlignment) Aligned {
  uint8_t value;
  void operator()() const {
    if (reinterpret_cast<uintptr_t>(this) % kAlignment == 0 && value == 42) ++runs;
  }
};

TEST(Closure, HasItsAlignmentWhereItRuns) {
  runs = 0;
  send_and_run(Aligned<1>{42});
  send_and_run(Aligned<2>{42});
  send_and_run(Aligned<4>{42});
  send_and_run(Aligned<8>{42});
  send_and_run(Aligned<16>{42});
  send_and_run(Aligned<32>{42});
  send_and_run(Aligned<64>{42});
  EXPECT_EQ(runs, 7);
}

TEST(Closure, MayChangeItself) {
  runs = 0;
  auto memory = encode(make_call([count = 0]() mutable { runs = ++count; }));
  EXPECT_EQ(run(memory).outcome, CallOutcome::kDone);
  EXPECT_EQ(runs, 1);
}

struct Person {
  std::string name;
  std::vector<int> numbers;
  template <typename Archive>
  void serialize(Archive& archive) {
    archive(name, numbers);
  }
};

std::string heard;

TEST(Arguments, OfManyTypesArriveAsValuesInTheirOrder) {
  heard.clear();
  const auto call = send_and_run(
      [prefix = 'p'](int number, const std::string& text, std::vector<std::string> words,
                     std::map<int, double> map, Person person, bool last) {
        heard = prefix + std::to_string(number) + text + words.at(1) + std::to_string(map.at(2)) +
                person.name + std::to_string(person.numbers.at(0)) + (last ? "!" : "?");
      },
      7, std::string("text"), std::vector<std::string>{"a", "b"},
      std::map<int, double>{{1, 0.5}, {2, 1.5}}, Person{"Ada", {9}}, true);
  EXPECT_EQ(call.outcome, CallOutcome::kDone) << call.error_text;
  EXPECT_EQ(heard, "p7textb1.500000Ada9!");
}

TEST(Arguments, MayBeLiteralsReferencesAndTuples) {
  heard.clear();
  const std::string text = "by reference";
  std::tuple<int, std::string> pair{3, "three"};
  send_and_run([](const std::string& given) { heard += given; }, text);
  send_and_run([](std::tuple<int, std::string> given) { heard += std::get<1>(given); }, pair);
  send_and_run([](std::tuple<int> given) { heard += std::to_string(std::get<0>(given)); },
               std::tuple<int>(4));
  EXPECT_EQ(heard, "by referencethree4");
}

// An argument that counts its copies and moves, at the sender and at the receiver.
struct CountedArgument {
  static inline int alive = 0;
  static inline int copies = 0;
  static inline int moves = 0;
  static void reset() { copies = moves = 0; }

  CountedArgument() { ++alive; }
  CountedArgument(const CountedArgument& other) : value(other.value) {
    ++alive;
    ++copies;
  }
  CountedArgument(CountedArgument&& other) noexcept : value(other.value) {
    ++alive;
    ++moves;
  }
  CountedArgument& operator=(const CountedArgument&) = default;
  ~CountedArgument() { --alive; }
  void serialize(ArgumentWriter& archive) { archive(value); }
  void serialize(ArgumentReader& archive) { archive(value); }
  int value = 5;
};

TEST(Arguments, AreConstructedWhereTheFunctionFindsThem) {
  {
    CountedArgument first;
    first.value = 1;
    const CountedArgument second;
    CountedArgument::reset();
    auto memory = encode(make_call(
        [](const CountedArgument& a, std::string_view text, CountedArgument&& b,
           const std::vector<CountedArgument>& all) {
          EXPECT_EQ(all.size(), 3u);
          heard = std::to_string(a.value) + std::string(text) + std::to_string(b.value);
        },
        first, std::string(" and "), second, std::vector<CountedArgument>(3)));
    EXPECT_EQ(CountedArgument::copies + CountedArgument::moves, 0) << "at the sender";
    EXPECT_EQ(run(memory).outcome, CallOutcome::kDone);
    EXPECT_EQ(CountedArgument::copies, 0);
    EXPECT_EQ(CountedArgument::moves, 0);
  }
  EXPECT_EQ(heard, "1 and 5");
  EXPECT_EQ(CountedArgument::alive, 0);
}

TEST(Arguments, AreMovedOnceIntoAFunctionThatTakesValues) {
  {
    const CountedArgument argument;
    CountedArgument::reset();
    auto memory = encode(make_call(
        [](CountedArgument a, CountedArgument b) { heard = std::to_string(a.value + b.value); },
        argument, argument));
    EXPECT_EQ(CountedArgument::copies + CountedArgument::moves, 0) << "at the sender";
    EXPECT_EQ(run(memory).outcome, CallOutcome::kDone);
    EXPECT_EQ(CountedArgument::copies, 0);
    EXPECT_EQ(CountedArgument::moves, 2);
  }
  EXPECT_EQ(heard, "10");
  EXPECT_EQ(CountedArgument::alive, 0);
}

struct alignas(16) Wide {
  uint64_t value;
  uint64_t other = 0;
};

// True if `part` lies within `memory`.
bool lies_in(const std::vector<uint64_t>& memory, const void* part) {
  return std::greater_equal<const void*>()(part, memory.data()) &&
         std::less<const void*>()(part, memory.data() + memory.size());
}

TEST(Arguments, AFunctionWithViewsReadsTheReceivedBytes) {
  static std::vector<uint64_t>* received;
  const std::string text = "longer than the sixteen bytes that a string holds itself";
  const std::vector<double> numbers{1.5, -2.0, 1e300};
  auto memory = encode(make_call(
      [](std::span<const double> all, std::string_view its, const std::string& copy) {
        EXPECT_TRUE(lies_in(*received, all.data()) && lies_in(*received, its.data()));
        EXPECT_FALSE(lies_in(*received, copy.data()));
        heard =
            std::string(its) + copy + std::to_string(std::accumulate(all.begin(), all.end(), 0.0));
      },
      numbers, text, std::string(" and ")));
  received = &memory;
  EXPECT_EQ(run(memory).outcome, CallOutcome::kDone);
  EXPECT_EQ(heard, text + " and " + std::to_string(1.5 - 2.0 + 1e300));
}

// The bytes behind a string of odd length are not aligned. The span then shows a copy, also of
// nothing.
TEST(Arguments, ASpanIsAlignedBehindAStringOfAnyLength) {
  static size_t length;
  for (length = 0; length < 20; ++length) {
    const auto call = send_and_run(
        [](std::string_view its, std::span<const uint64_t> all, std::span<const Wide> wide,
           std::span<const int> none, std::vector<int> rest) {
          EXPECT_TRUE(none.empty());
          EXPECT_EQ(its, std::string(length, 'x'));
          EXPECT_EQ(reinterpret_cast<uintptr_t>(all.data()) % alignof(uint64_t), 0U);
          EXPECT_EQ(reinterpret_cast<uintptr_t>(wide.data()) % alignof(Wide), 0U);
          EXPECT_EQ(std::vector(all.begin(), all.end()), (std::vector<uint64_t>{7, 8}));
          EXPECT_EQ(wide.size(), length);
          EXPECT_EQ(wide.empty() ? 9U : wide.back().value, 9U);
          EXPECT_EQ(rest, std::vector<int>{10});
        },
        std::string(length, 'x'), std::vector<uint64_t>{7, 8}, std::vector<Wide>(length, Wide{9}),
        std::vector<int>{}, std::vector<int>{10});
    EXPECT_EQ(call.outcome, CallOutcome::kDone);
  }
}

// A sender that runs other code before it writes a call has a copy of the arguments.
TEST(Arguments, AnOwnedCallContainsItsArguments) {
  std::string text = "a string that is longer than sixteen bytes";
  std::array<uint64_t, 4> numbers{1, 2, 3, 4};
  const auto call =
      make_call([](const std::string& its, const std::array<uint64_t, 4>& all,
                   int third) { heard = its + std::to_string(all[0]) + std::to_string(third); },
                text, numbers, 3);
  const auto& owning = internal::owned(call);
  EXPECT_EQ(&internal::owned(owning), &owning);
  const std::string before = text;
  text += text;
  numbers[0] = 7;
  auto memory = encode(owning);
  EXPECT_EQ(run(memory).outcome, CallOutcome::kDone);
  EXPECT_EQ(heard, before + "13");
  auto later = encode(call);
  EXPECT_EQ(run(later).outcome, CallOutcome::kDone);
  EXPECT_EQ(heard, text + "73");
}

TEST(Results, GoWhereTheyAreWanted) {
  std::string result;
  auto memory = encode(make_call([](int n) { return std::vector<int>(n, n); }, 3), kCallReturn);
  auto parsed = parse_call(message_of(memory));
  ASSERT_TRUE(parsed.ok());
  EXPECT_TRUE(parsed->has_notify);
  EXPECT_EQ(parsed->notify.handle, 77u);
  EXPECT_EQ(parsed->notify.rank, 3u);
  EXPECT_EQ(run(memory, &result).outcome, CallOutcome::kDone);
  std::span<const std::byte> in = std::as_bytes(std::span(result));
  EXPECT_EQ(load_value<std::vector<int>>(in), (std::vector<int>{3, 3, 3}));
  // The caller does not want the result: nothing is saved, and there is no error.
  EXPECT_EQ(run(memory).outcome, CallOutcome::kDone);
}

TEST(Exceptions, ComeBackWithTypeAndText) {
  const auto call = send_and_run([](const std::string& what) { throw std::out_of_range(what); },
                                 std::string("number 7"));
  EXPECT_EQ(call.outcome, CallOutcome::kThrew);
  EXPECT_EQ(call.error_type, "std::out_of_range");
  EXPECT_EQ(call.error_text, "number 7");
}

TEST(Exceptions, OfAnyTypeAreNamedAndLongTextsCut) {
  const auto integer = send_and_run([] { throw 42; });
  EXPECT_EQ(integer.outcome, CallOutcome::kThrew);
  EXPECT_EQ(integer.error_type, "int");
  const auto verbose = send_and_run([] { throw std::runtime_error(std::string(100'000, 'x')); });
  EXPECT_EQ(verbose.error_text.size(), kMaxErrorText);
  const auto buffer = encode(make_buffer_call([](void*, uint64_t) { throw 1.5; }, {}));
  auto memory = buffer;
  EXPECT_EQ(run(memory).error_type, "double");
}

// An exception of the function itself counts as kThrew, even if its type is MalformedArguments.
TEST(Exceptions, AFunctionThatThrowsMalformedArgumentsThrew) {
  const auto call = send_and_run([](int) { throw MalformedArguments("of its own"); }, 1);
  EXPECT_EQ(call.outcome, CallOutcome::kThrew);
  EXPECT_EQ(call.error_text, "of its own");
}

TEST(Buffers, TravelBesideTheClosure) {
  std::string text = "thirteen byte";
  for (const size_t size : {size_t{0}, size_t{1}, size_t{8}, text.size()}) {
    heard = "none";
    auto memory = encode(make_buffer_call(
        [extra = 'x'](void* buffer, uint64_t bytes) {
          heard = std::string(static_cast<char*>(buffer), bytes) + extra;
        },
        std::as_bytes(std::span(text)).first(size)));
    EXPECT_EQ(run(memory).outcome, CallOutcome::kDone);
    EXPECT_EQ(heard, text.substr(0, size) + "x");
  }
}

// ---- Invalid bytes ------------------------------------------------------------------------------

TEST(Malformed, CutClosuresAndArgumentsRunNothing) {
  runs = 0;
  const std::array<uint64_t, 3> captured{1, 2, 3};
  const auto check = [](std::vector<uint64_t> memory) {
    const size_t words = memory.size() - 2;
    for (size_t kept = 0; kept < words; ++kept) {
      auto parsed = parse_call(message_of(memory));
      ASSERT_TRUE(parsed.ok());
      IncomingCall call;
      call.closure = parsed->closure.first(kept * 8);
      run_call(parsed->header, call);
      EXPECT_EQ(call.outcome, CallOutcome::kMalformed) << kept;
    }
  };
  check(encode(make_call([captured] { runs += captured[0] != 0; })));
  check(encode(make_call([captured](const std::string&) { runs += captured[0] != 0; },
                         std::string("some longer text"))));
  check(encode(make_buffer_call([captured](void*, uint64_t) { runs += captured[0] != 0; },
                                std::as_bytes(std::span(captured)))));
  EXPECT_EQ(runs, 0);
}

TEST(Malformed, FalseSizesWithinArgumentsRunNothing) {
  runs = 0;
  auto memory = encode(make_call([](const std::string&) { ++runs; }, std::string("eight by")));
  memory[2] = uint64_t{1} << 62;  // the string's length
  const IncomingCall call = run(memory);
  EXPECT_EQ(call.outcome, CallOutcome::kMalformed);
  EXPECT_THAT(call.error_text, HasSubstr("false size"));
  EXPECT_EQ(runs, 0);
}

TEST(Malformed, FalseSizesOfViewsRunNothing) {
  runs = 0;
  auto text = encode(make_call([](std::string_view) { ++runs; }, std::string("eight by")));
  auto numbers =
      encode(make_call([](std::span<const uint32_t>) { ++runs; }, std::vector<uint32_t>{1, 2}));
  for (auto* memory : {&text, &numbers}) {
    for (const uint64_t size : {uint64_t{9}, uint64_t{1} << 62, UINT64_MAX}) {
      (*memory)[2] = size;
      const IncomingCall call = run(*memory);
      EXPECT_EQ(call.outcome, CallOutcome::kMalformed);
      EXPECT_THAT(call.error_text, HasSubstr("false size"));
    }
  }
  EXPECT_EQ(runs, 0);
}

TEST(Malformed, MoreThanTheArgumentsRunsNothing) {
  runs = 0;
  auto memory = encode(make_call([](uint64_t) { ++runs; }, uint64_t{1}));
  memory.push_back(0);
  const CallHeader header = CallHeader::make({static_cast<uint32_t>(memory[1])}, 16, 0);
  std::memcpy(&memory[1], &header, sizeof header);
  EXPECT_EQ(run(memory).outcome, CallOutcome::kMalformed);
  EXPECT_EQ(runs, 0);
}

TEST(Malformed, AnExceptionOfATypesOwnLoadingRunsNothing) {
  struct Picky {
    void save(ArgumentWriter& archive) const { archive(1); }
    void load(ArgumentReader& archive) {
      int version = 0;
      archive(version);
      throw std::runtime_error("unknown version");
    }
    std::string text;
  };
  runs = 0;
  const auto call = send_and_run([](const Picky&) { ++runs; }, Picky{});
  EXPECT_EQ(call.outcome, CallOutcome::kMalformed);
  EXPECT_EQ(call.error_text, "unknown version");
  EXPECT_EQ(runs, 0);
}

TEST(Parse, RefusesInvalidCalls) {
  const auto refusal = [](uint32_t function, uint32_t words_and_flags, size_t words) {
    std::vector<uint64_t> memory(1 + words, 0);
    const CallHeader header{function, words_and_flags};
    if (words != 0) std::memcpy(&memory[1], &header, sizeof header);
    auto parsed = parse_call(message_of(memory));
    EXPECT_FALSE(parsed.ok());
    return parsed.ok() ? std::string() : std::string(parsed.status().message());
  };
  EXPECT_THAT(refusal(0, 0, 0), HasSubstr("cut short"));
  EXPECT_THAT(refusal(0, 0, 1), HasSubstr("names no function"));
  EXPECT_THAT(refusal(1, uint32_t{4} << 24, 1), HasSubstr("unknown flags"));
  EXPECT_THAT(refusal(1, 1, 1), HasSubstr("longer than its message"));
  EXPECT_THAT(refusal(1, CallHeader::kMaxWords, 8), HasSubstr("longer than its message"));
  EXPECT_THAT(refusal(1, 2 | uint32_t{kCallNotify} << 24, 4), HasSubstr("notification is cut"));
}

TEST(Parse, TakesTheFirstOfSeveralCalls) {
  auto memory = encode(make_call([value = uint64_t{1}] { static_cast<void>(value); }));
  const size_t length = (memory.size() - 1) * 8;
  memory.resize(memory.size() + 5);
  auto parsed = parse_call(message_of(memory));
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->total, length);
  EXPECT_EQ(parsed->closure.size(), 8u);
}

TEST(Unknown, IdsAreRejectedAndCounted) {
  EXPECT_TRUE(FunctionTable::build().ok());
  const uint64_t before = FunctionTable::rejected();
  uint64_t tried = 0;
  const uint32_t functions = FunctionTable::fingerprint().functions;
  for (const uint32_t id :
       {0u, functions + 1, 0x7fffffffu, 0x80000000u, 0x8000ffffu, 0xffffffffu}) {
    IncomingCall call;
    run_call(CallHeader::make({id}, 0, 0), call);
    EXPECT_EQ(call.outcome, CallOutcome::kUnknown) << id;
    ++tried;
  }
  EXPECT_EQ(FunctionTable::rejected() - before, tried);
}

}  // namespace
}  // namespace cariama
