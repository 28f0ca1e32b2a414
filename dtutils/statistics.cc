#include "dtutils/statistics.h"

#include <algorithm>
#include <iterator>
#include <list>
#include <map>
#include <mutex>
#include <new>
#include <utility>

#include "dtutils/internal/json.h"

namespace cariama {

struct CounterSet::Entry {
  std::string instance;
  std::function<Values()> read;
  Kind* kind;
  std::list<Entry>::iterator place;  // position in kind->living
};

// The objects of one kind.
struct CounterSet::Kind {
  std::list<Entry> living;
  std::vector<std::pair<std::string, uint64_t>>
      closed;  // sums over destroyed objects, in the order of read()

  void add_closed(const Value& value) {
    const auto found = std::find_if(closed.begin(), closed.end(),
                                    [&](const auto& sum) { return sum.first == value.name; });
    if (found == closed.end()) {
      closed.emplace_back(value.name, value.value);
    } else {
      found->second += value.value;
    }
  }
};

class StatisticsRegistry {
 public:
  // Never destroyed: objects with static storage may have counters until the process ends.
  static StatisticsRegistry& get() {
    static auto* const registry = new StatisticsRegistry;
    return *registry;
  }

  CounterSet::Entry* add(std::string_view kind, std::string_view instance,
                         std::function<CounterSet::Values()> read) {
    const std::lock_guard lock(mutex_);
    CounterSet::Kind& all = kinds_[std::string(kind)];
    all.living.push_back({std::string(instance), std::move(read), &all, {}});
    all.living.back().place = std::prev(all.living.end());
    return &all.living.back();
  }

  void rename(CounterSet::Entry* entry, std::string_view instance) {
    const std::lock_guard lock(mutex_);
    entry->instance = instance;
  }

  void remove(CounterSet::Entry* entry) {
    const std::lock_guard lock(mutex_);
    CounterSet::Kind& all = *entry->kind;
    try {
      for (const CounterSet::Value& value : entry->read()) {
        if (!value.is_gauge) all.add_closed(value);
      }
    } catch (const std::bad_alloc&) {  // a destructor calls this function: the counts are lost
    }
    all.living.erase(entry->place);
  }

  std::vector<Statistic> snapshot() {
    std::vector<Statistic> all;
    const std::lock_guard lock(mutex_);
    for (const auto& [name, kind] : kinds_) {
      for (const auto& [counter, sum] : kind.closed) {
        all.push_back({name, std::string(kClosed), counter, sum, false});
      }
      for (const CounterSet::Entry& entry : kind.living) {
        for (const CounterSet::Value& value : entry.read()) {
          all.push_back(
              {name, entry.instance, std::string(value.name), value.value, value.is_gauge});
        }
      }
    }
    return all;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, CounterSet::Kind> kinds_;
};

CounterSet::CounterSet(std::string_view kind, std::string_view instance,
                       std::function<Values()> read)
    : entry_(StatisticsRegistry::get().add(kind, instance, std::move(read))) {}

CounterSet::~CounterSet() { StatisticsRegistry::get().remove(entry_); }

void CounterSet::rename(std::string_view instance) {
  StatisticsRegistry::get().rename(entry_, instance);
}

std::vector<Statistic> statistics_snapshot() { return StatisticsRegistry::get().snapshot(); }

std::string statistics_json() {
  std::string text;
  for (const Statistic& statistic : statistics_snapshot()) {
    text += "{\"name\": " + json_string(statistic.kind + "." + statistic.name) +
            ", \"of\": " + json_string(statistic.instance) +
            ", \"value\": " + std::to_string(statistic.value) + "}\n";
  }
  return text;
}

namespace {

// Appends `text` as part of a metric's name.
void append_metric_part(std::string& to, std::string_view text) {
  for (const char c : text) {
    const bool allowed = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    to += allowed ? c : '_';
  }
}

void append_label(std::string& to, std::string_view name, std::string_view value) {
  append_metric_part(to, name);
  to += "=\"";
  for (const char c : value) {
    if (c == '\\' || c == '"') to += '\\';
    if (c == '\n') {
      to += "\\n";
    } else {
      to += c;
    }
  }
  to += '"';
}

}  // namespace

std::string statistics_prometheus(const StatisticsLabels& labels) {
  std::string common;
  for (const auto& [name, value] : labels) {
    append_label(common, name, value);
    common += ',';
  }
  // The format requires that the lines of a metric follow one another; a snapshot is ordered by
  // object.
  std::map<std::string, std::pair<bool, std::string>> metrics;  // name → is_gauge, lines
  for (const Statistic& statistic : statistics_snapshot()) {
    std::string name = "cariama_";
    append_metric_part(name, statistic.kind);
    name += '_';
    append_metric_part(name, statistic.name);
    if (!statistic.is_gauge) name += "_total";
    auto& [is_gauge, lines] = metrics[name];
    is_gauge = statistic.is_gauge;
    lines += name + '{' + common;
    append_label(lines, "of", statistic.instance);
    lines += "} " + std::to_string(statistic.value) + '\n';
  }
  std::string text;
  for (const auto& [name, metric] : metrics) {
    text += "# TYPE " + name + (metric.first ? " gauge\n" : " counter\n") + metric.second;
  }
  return text;
}

}  // namespace cariama
