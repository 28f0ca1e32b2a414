// bench_words: counts the words of a text in several processes. Each word is counted by the thread
// that owns it, and one-sided, aggregated calls carry the words. Compares the forms in which a call
// can carry a word with a loop that counts the same words in one thread. See docs/performance.md.
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/flags/flag.h"
#include "absl/strings/string_view.h"
#include "bench/support/flags.h"
#include "bench/support/job.h"
#include "bench/support/list_flag.h"
#include "bench/support/report.h"
#include "bench/support/summary.h"
#include "dsfabric/collectives.h"
#include "dsfabric/fabric.h"
#include "dsfabric/quiescence.h"
#include "dtutils/error.h"
#include "dtutils/random.h"
#include "riutils/messenger_global.h"

ABSL_FLAG(std::string, processes, "2", "number of processes of one thread, or a list");
ABSL_FLAG(
    std::string, form, "all",
    "how a call carries a word: string (std::string, taken as such), view (std::string, taken "
    "as std::string_view), capture (16 bytes in the closure), or all");
ABSL_FLAG(int, words, 1'000'000, "words of each process");
ABSL_FLAG(int, vocabulary, 20'000, "number of different words");
ABSL_FLAG(int, repetitions, 7, "repetitions of each form; median, minimum and maximum are shown");
ABSL_FLAG(bool, json, false, "print one JSON object per line");

namespace cariama::bench {
namespace {

constexpr const char* kProgram = "bench_words";

enum class Form : uint8_t { kString, kView, kCapture };
constexpr std::array kForms{Form::kString, Form::kView, Form::kCapture};
constexpr std::array<const char*, 3> kFormNames{"string", "view", "capture"};

struct Options {
  std::vector<uint64_t> processes;
  std::vector<Form> forms;
  uint64_t words = 0;
  uint64_t vocabulary = 0;
  int repetitions = 0;
  bool json = false;
};

absl::Status refuse(const std::string& flag, const std::string& value, const std::string& choice) {
  return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                    "--" + flag + ": '" + value + "' is not " + choice, "see --help");
}

absl::StatusOr<Options> parse_options() {
  Options options;
  auto processes = parse_numbers("processes", absl::GetFlag(FLAGS_processes), 1, 64);
  if (!processes.ok()) return processes.status();
  options.processes = *std::move(processes);
  const std::string form = absl::GetFlag(FLAGS_form);
  for (const Form each : kForms) {
    if (form == "all" || form == kFormNames[static_cast<size_t>(each)]) {
      options.forms.push_back(each);
    }
  }
  if (options.forms.empty()) return refuse("form", form, "string, view, capture or all");
  const int words = absl::GetFlag(FLAGS_words);
  if (words < 1) return refuse("words", std::to_string(words), "at least 1");
  options.words = static_cast<uint64_t>(words);
  const int vocabulary = absl::GetFlag(FLAGS_vocabulary);
  if (vocabulary < 1 || vocabulary > 10'000'000) {
    return refuse("vocabulary", std::to_string(vocabulary), "from 1 to 10000000");
  }
  options.vocabulary = static_cast<uint64_t>(vocabulary);
  options.repetitions = absl::GetFlag(FLAGS_repetitions);
  if (options.repetitions < 1 || options.repetitions > 100'000) {
    return refuse("repetitions", std::to_string(options.repetitions), "from 1 to 100000");
  }
  options.json = absl::GetFlag(FLAGS_json);
  return options;
}

// A word of at most 15 letters, by value.
struct ShortWord {
  char letters[15];
  uint8_t length;

  explicit ShortWord(std::string_view word) : letters(), length(static_cast<uint8_t>(word.size())) {
    std::memcpy(letters, word.data(), word.size());
  }
  [[nodiscard]] std::string_view view() const { return {letters, length}; }
};
static_assert(sizeof(ShortWord) == 16);

// The text of one process: words of 4 to 9 characters. The frequency of the r-th word is
// proportional to 1/r (Zipf's law), as in natural texts.
class Text {
 public:
  Text(uint32_t part, const Options& options) {
    std::vector<std::string> vocabulary;
    Random spelling(1);
    for (uint64_t i = 0; i < options.vocabulary; ++i) {
      std::string word;
      for (uint64_t rest = i; rest != 0; rest /= 26) word += static_cast<char>('a' + rest % 26);
      const uint32_t length = 2 + spelling.below(6);
      while (word.size() < length) word += static_cast<char>('a' + spelling.below(26));
      vocabulary.push_back(word + 'z' + std::to_string(word.size() % 10));
    }
    Random choice(1000 + part);
    const double scale = std::log(static_cast<double>(options.vocabulary) + 1);
    for (uint64_t i = 0; i < options.words; ++i) {
      const double uniform = static_cast<double>(choice.below(1u << 30)) / (1u << 30);
      const auto rank = static_cast<uint64_t>(std::exp(uniform * scale)) - 1;
      text_ += vocabulary[std::min(rank, options.vocabulary - 1)];
      ends_.push_back(text_.size());
    }
  }

  // Calls `function` with each word, in order.
  template <typename Function>
  void for_each(Function&& function) const {
    size_t begin = 0;
    for (const size_t end : ends_) {
      function(std::string_view(text_.data() + begin, end - begin));
      begin = end;
    }
  }

 private:
  std::string text_;
  std::vector<size_t> ends_;
};

using Counts = absl::flat_hash_map<std::string, uint64_t>;

// The counts of the words that this process owns. Its only thread runs all calls.
Counts counts;

void count(std::string_view word) {
  // Debian's Abseil has a string_view of its own.
  const auto found = counts.find(absl::string_view(word.data(), word.size()));
  if (found != counts.end()) {
    ++found->second;
  } else {
    counts.emplace(word, 1);
  }
}

uint64_t sum_of_counts() {
  uint64_t sum = 0;
  for (const auto& [word, occurrences] : counts) sum += occurrences;
  return sum;
}

template <typename T>
T must(absl::StatusOr<T> value) {
  if (!value.ok()) give_up(kProgram, value.status());
  return *std::move(value);
}
void must(const absl::Status& status) {
  if (!status.ok()) give_up(kProgram, status);
}

class Job {
 public:
  Job(const Options& options, uint32_t processes) : options_(options), processes_(processes) {}

  [[nodiscard]] absl::Status run() {
    return run_job(static_cast<int>(processes_),
                   [this](Exchange& exchange) { return process(exchange); });
  }

 private:
  int process(Exchange& exchange) {
    const auto rank = static_cast<uint32_t>(exchange.rank());
    const std::unique_ptr<Fabric> fabric =
        must(Fabric::create({.threads = 1, .on_failure = FailurePolicy::kAbort}));
    pin(rank, processes_, 0, 1);
    const auto thread = must(fabric->init_thread(0));
    Collectives all(*fabric);
    TerminationDetector detector(*fabric);
    const Text text(rank, options_);
    RDMAAggregatorGlobal calls(*thread);

    std::vector<double> plain;
    std::vector<std::vector<double>> rates(options_.forms.size());
    for (int i = -1; i < options_.repetitions; ++i) {  // -1 creates the channels
      if (rank == 0) progress("repetition " + std::to_string(i + 1));
      must(all.barrier(soon()));
      if (rank == 0) {
        counts.clear();
        const int64_t start = now_ns();
        text.for_each(count);
        if (i >= 0) plain.push_back(rate(options_.words, start));
      }
      for (size_t form = 0; form < options_.forms.size(); ++form) {
        counts.clear();
        must(all.barrier(soon()));
        const int64_t start = now_ns();
        send(*fabric, calls, text, options_.forms[form]);
        must(calls.flush_all());
        must(detector.wait(soon()));
        if (i >= 0) rates[form].push_back(rate(options_.words * processes_, start));
        const uint64_t counted = must(all.all_reduce(sum_of_counts(), std::plus<>(), soon()));
        if (counted != options_.words * processes_) {
          must(make_error(absl::StatusCode::kDataLoss, ErrorScope::kOperation,
                          "of " + std::to_string(options_.words * processes_) + " words " +
                              std::to_string(counted) + " were counted"));
        }
      }
    }
    if (rank == 0) print(plain, rates);
    must(calls.shutdown_all(soon()));
    must(fabric->finalize(soon()));
    return 0;
  }

  static Deadline soon() { return deadline_after(std::chrono::minutes(2)); }
  static double rate(uint64_t words, int64_t start_ns) {
    return static_cast<double>(words) / (static_cast<double>(now_ns() - start_ns) * 1e-9);
  }

  static void send(Fabric& fabric, RDMAAggregatorGlobal& calls, const Text& text, Form form) {
    const uint32_t threads = fabric.total_threads();
    const uint32_t self = fabric.rank().value();
    uint64_t sent = 0;
    const auto send_all = [&](auto&& call) {
      text.for_each([&](std::string_view word) {
        const auto owner = static_cast<uint32_t>(std::hash<std::string_view>()(word) % threads);
        if (owner == self) {
          count(word);
        } else if (const CallResult result = call(ThreadId(owner), word); !result.ok()) {
          give_up(kProgram, result.status());
        }
        if (++sent % kWordsPerPoll == 0) calls.process_calls_all();
      });
    };
    switch (form) {
      case Form::kString:
        return send_all([&](ThreadId owner, std::string_view word) {
          return calls.call(
              owner, [](const std::string& its) { count(its); }, std::string(word));
        });
      case Form::kView:
        return send_all([&](ThreadId owner, std::string_view word) {
          return calls.call(
              owner, [](std::string_view its) { count(its); }, std::string(word));
        });
      case Form::kCapture:
        return send_all([&](ThreadId owner, std::string_view word) {
          return calls.call(owner, [its = ShortWord(word)] { count(its.view()); });
        });
    }
  }

  void print(const std::vector<double>& plain,
             const std::vector<std::vector<double>>& rates) const {
    progress("");
    Params params;
    params.set("processes", uint64_t{processes_});
    params.set("form", "plain");
    params.set("words", options_.words);
    params.set("vocabulary", options_.vocabulary);
    params.set("repetitions", static_cast<uint64_t>(options_.repetitions));
    params.set("json", options_.json);
    const Report report(options_.json, {"form", "processes"});
    report.row("words_per_second", params, summarize(plain), "1/s");
    for (size_t form = 0; form < rates.size(); ++form) {
      Params own = params;
      own.set("form", kFormNames[static_cast<size_t>(options_.forms[form])]);
      report.row("words_per_second", own, summarize(rates[form]), "1/s");
      report.row("ratio_to_plain", own, summarize(ratios(rates[form], plain)), "");
    }
  }

  static constexpr uint64_t kWordsPerPoll = 64;

  const Options& options_;
  const uint32_t processes_;
};

int run(const Options& options) {
  for (const uint64_t processes : options.processes) {
    if (absl::Status status = Job(options, static_cast<uint32_t>(processes)).run(); !status.ok()) {
      progress("");
      std::fprintf(stderr, "%s: %s\n", kProgram, std::string(status.message()).c_str());
      return 1;
    }
  }
  return 0;
}

}  // namespace
}  // namespace cariama::bench

int main(int argc, char** argv) {
  constexpr const char* kUsage =
      "distributed word count: words per second by the form in which a call carries a word\n"
      "  bench_words                             all forms, beside a loop in one thread\n"
      "  bench_words --form view --processes 2,4";
  if (cariama::bench::parse_flags(argc, argv, kUsage).size() != 1) {
    std::fprintf(stderr, "bench_words: it takes options only: see --help\n");
    return 1;
  }
  const auto options = cariama::bench::parse_options();
  if (!options.ok()) {
    std::fprintf(stderr, "bench_words: %s\n", std::string(options.status().message()).c_str());
    return 1;
  }
  return cariama::bench::run(*options);
}
