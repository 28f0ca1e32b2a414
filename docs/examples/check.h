// For the examples: check() prints an error and ends the program with exit code 1.
#ifndef CARIAMA_DOCS_EXAMPLES_CHECK_H_
#define CARIAMA_DOCS_EXAMPLES_CHECK_H_

#include <cstdlib>
#include <iostream>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

inline void check(const absl::Status& status) {
  if (status.ok()) return;
  std::cerr << status << '\n';
  std::exit(1);
}

template <typename T>
T check(absl::StatusOr<T> value) {
  check(value.status());
  return *std::move(value);
}

inline void check(bool good, const char* what) {
  if (good) return;
  std::cerr << what << '\n';
  std::exit(1);
}

#endif  // CARIAMA_DOCS_EXAMPLES_CHECK_H_
