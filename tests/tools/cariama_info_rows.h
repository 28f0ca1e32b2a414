// Runs the program cariama-info as a user does, and parses the rows that it prints.
#ifndef CARIAMA_TESTS_TOOLS_CARIAMA_INFO_ROWS_H_
#define CARIAMA_TESTS_TOOLS_CARIAMA_INFO_ROWS_H_

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/dtutils/testing/json.h"

namespace cariama::testing {

struct InfoOutcome {
  int exit_code = -1;
  std::string output;
};

// Runs cariama-info with `arguments`, which the shell splits into words, and with the environment
// variables of `environment` ("NAME=value NAME=value").
inline InfoOutcome run_info(const std::string& arguments, const std::string& environment = "") {
  const std::string command =
      environment + " " + std::string(CARIAMA_PROGRAM_DIR) + "/cariama-info " + arguments;
  FILE* const pipe = popen(command.c_str(), "r");
  EXPECT_NE(pipe, nullptr);
  InfoOutcome outcome;
  if (pipe == nullptr) return outcome;
  std::array<char, 4096> buffer;
  while (const size_t bytes = fread(buffer.data(), 1, buffer.size(), pipe)) {
    outcome.output.append(buffer.data(), bytes);
  }
  const int status = pclose(pipe);
  outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return outcome;
}

struct InfoRow {
  std::string name;
  std::map<std::string, std::string> params;
  Json value;
  std::string unit;
};

// The rows that --json prints. Checks that each line is an object of exactly name, params, value,
// unit.
class InfoRows {
 public:
  explicit InfoRows(const std::string& environment = "") {
    const InfoOutcome outcome = run_info("--json 2>&1", environment);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    std::istringstream lines(outcome.output);
    std::string line;
    while (std::getline(lines, line)) {
      const std::optional<Json> json = parse_json(line);
      EXPECT_TRUE(json.has_value()) << line;
      if (!json) continue;
      EXPECT_EQ(json->object().size(), 4u) << line;
      InfoRow& row = rows_.emplace_back();
      row.name = json->at("name").string();
      row.value = json->at("value");
      row.unit = json->at("unit").string();
      for (const auto& [name, value] : json->at("params").object()) {
        const auto* const text = std::get_if<std::string>(&value.value);
        row.params[name] = text != nullptr ? *text : value.number_text();
      }
    }
  }

  // Returns the row with this name and these params. Fails the test unless there is exactly one.
  [[nodiscard]] const InfoRow& row(const std::string& name,
                                   const std::map<std::string, std::string>& params = {}) const {
    static const InfoRow none;
    const InfoRow* found = nullptr;
    for (const InfoRow& candidate : rows_) {
      if (candidate.name != name || candidate.params != params) continue;
      EXPECT_EQ(found, nullptr) << name << " is printed twice";
      found = &candidate;
    }
    EXPECT_NE(found, nullptr) << "no row " << name;
    return found != nullptr ? *found : none;
  }

  // Returns the number in that row as text, which is exact for 64 bits.
  [[nodiscard]] std::string number(const std::string& name,
                                   const std::map<std::string, std::string>& params = {}) const {
    const auto* const number = std::get_if<Json::Number>(&row(name, params).value.value);
    EXPECT_NE(number, nullptr) << name << " is no number";
    return number != nullptr ? number->text : "";
  }

  [[nodiscard]] std::vector<InfoRow> all(const std::string& name) const {
    std::vector<InfoRow> found;
    for (const InfoRow& row : rows_) {
      if (row.name == name) found.push_back(row);
    }
    return found;
  }

 private:
  std::vector<InfoRow> rows_;
};

}  // namespace cariama::testing

#endif  // CARIAMA_TESTS_TOOLS_CARIAMA_INFO_ROWS_H_
