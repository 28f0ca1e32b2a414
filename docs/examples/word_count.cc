// Distributed word count. The hash of a word selects the thread that owns it. Every thread sends
// the words of its part of the text to their owners by aggregated calls. The text is generated, or
// read from a file: `example_word_count -n 4 FILE`.
#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <map>
#include <random>
#include <sstream>
#include <string>

#include "docs/examples/check.h"
#include "docs/examples/options.h"
#include "dsfabric/collectives.h"
#include "dsfabric/launcher.h"
#include "dsfabric/quiescence.h"
#include "riutils/call.h"

namespace {

using namespace cariama;  // NOLINT: an example

// [word_count]
// Counts of the words that this process owns. The calls to a thread run in that thread, so the map
// needs no lock.
std::map<std::string, uint64_t> counts;

// Sends every word of `text` to its owner. Returns the number of words.
uint64_t count_words(Fabric& fabric, ThreadContext& self, std::istream& text) {
  uint64_t sent = 0;
  RDMAAggregatorGlobal calls(self);
  for (std::string word; text >> word; ++sent) {
    const ThreadId owner =
        static_cast<uint32_t>(std::hash<std::string>()(word) % fabric.total_threads());
    check(calls.call(
        owner, [](const std::string& its) { ++counts[its]; }, word));
  }
  check(calls.flush_all());
  check(calls.shutdown_all(deadline_after(std::chrono::seconds(60))));
  return sent;
}
// [word_count]

// Generates the text of one part: words of one or two letters. The same part gives the same text in
// every process.
std::string make_text(uint32_t part) {
  std::mt19937 random(part);
  std::string text;
  for (int i = 0; i < 50'000; ++i) {
    const auto letters = 1 + random() % 2;
    for (uint32_t k = 0; k < letters; ++k) text += static_cast<char>('a' + random() % 26);
    text += ' ';
  }
  return text;
}

// Returns this process's part of the text: generated, or every size-th line of `file`.
std::string own_part(const Fabric& fabric, const char* file) {
  if (file == nullptr) return make_text(fabric.rank());
  std::ifstream in(file);
  check(in.good(), "the file cannot be read");
  std::string all;
  std::string line;
  for (uint32_t number = 0; std::getline(in, line); ++number) {
    if (number % fabric.size() == fabric.rank()) all += line + '\n';
  }
  return all;
}

// Counts the generated text in one thread, and compares the result with `counts`.
void verify(const Fabric& fabric) {
  std::map<std::string, uint64_t> mine;
  for (uint32_t rank = 0; rank < fabric.size(); ++rank) {
    std::istringstream text(make_text(rank));
    for (std::string word; text >> word;) {
      if (std::hash<std::string>()(word) % fabric.total_threads() ==
          fabric.thread_of(fabric.rank()))
        ++mine[word];
    }
  }
  check(mine == counts, "the counts are wrong");
}

}  // namespace

int main(int argc, char** argv) {
  read_options(argc, argv, {.operands = 1});
  if (auto code = launch_self({.processes = 3}, argc, argv)) return *code;
  const Deadline deadline = deadline_after(std::chrono::seconds(120));
  auto fabric = check(Fabric::create({.threads = 1}));
  auto self = check(fabric->init_thread(0));
  Collectives all(*fabric);
  TerminationDetector detector(*fabric);

  const char* const file = argc > 1 ? argv[1] : nullptr;
  std::istringstream text(own_part(*fabric, file));
  const uint64_t sent = count_words(*fabric, *self, text);
  check(detector.wait(deadline));  // returns when all calls of the job have run
  uint64_t arrived = 0;
  for (const auto& [word, count] : counts) arrived += count;
  const uint64_t total = check(all.all_reduce(arrived, std::plus<>(), deadline));
  check(total == check(all.all_reduce(sent, std::plus<>(), deadline)), "words were lost");
  std::printf("rank %u: %zu different words, which occur %lu times; %lu in all\n",
              fabric->rank().value(), counts.size(), static_cast<unsigned long>(arrived),
              static_cast<unsigned long>(total));
  if (file == nullptr) verify(*fabric);
  check(fabric->finalize(deadline));
  return 0;
}
