#include "bench/support/global_programs.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "bench/support/job.h"
#include "bench/support/task_workers.h"
#include "dsfabric/collectives.h"
#include "dsfabric/global_memory.h"
#include "dsfabric/global_vector.h"
#include "dtutils/random.h"
#include "dtutils/wait.h"
#include "tasks/await.h"
#include "tasks/parallel.h"

namespace cariama::bench {
namespace {

constexpr size_t kTile = 64;
constexpr size_t kTileCells = kTile * kTile;
constexpr size_t kPiece = 4096;  // numbers that one task sorts or merges

Deadline soon() { return deadline_after(std::chrono::minutes(10)); }

}  // namespace

struct GlobalArrays::Data {
  Data(Fabric& fabric, size_t matrix, size_t sorted)
      : memory(take(GlobalMemory::create(fabric))), all(fabric) {
    if (matrix != 0) {
      for (auto& each : matrices) {
        each.emplace(take(
            GlobalVector<double>::create(all, matrix * matrix, soon(), {.block = kTileCells})));
      }
    }
    if (sorted != 0) {
      for (auto& each : numbers) {
        each.emplace(take(GlobalVector<uint32_t>::create(all, sorted, soon(), {.block = kPiece})));
      }
    }
  }

  std::unique_ptr<GlobalMemory> memory;
  Collectives all;
  std::array<std::optional<GlobalVector<double>>, 3> matrices;  // A, B, C
  std::array<std::optional<GlobalVector<uint32_t>>, 2> numbers;
};

namespace {

// The arrays of this process. A task that has migrated must read this variable again.
GlobalArrays::Data* data = nullptr;

// Transfers of the leaf tasks. While a transfer is in flight, the worker may run other tasks.
template <typename T>
std::vector<T> get(const GlobalVector<T>& from, size_t first, size_t count) {
  std::vector<T> values(count);
  const tasks::OtherTasksMayRun scope;
  take(from.get(*data->memory, first, values, soon()));
  return values;
}
template <typename T>
void put(const GlobalVector<T>& to, size_t first, const std::vector<T>& values) {
  const tasks::OtherTasksMayRun scope;
  take(to.put(*data->memory, first, values, soon()));
}

// ---- Matrices -----------------------------------------------------------------------------------

using Tile = std::vector<double>;

double cell(size_t matrix, size_t row, size_t column) {
  return static_cast<double>((row * 7 + column * 3 + matrix * 5) % 11) - 5;
}
Tile make_tile(size_t matrix, size_t row, size_t column) {
  Tile tile(kTileCells);
  for (size_t i = 0; i < kTile; ++i) {
    for (size_t j = 0; j < kTile; ++j) {
      tile[i * kTile + j] = cell(matrix, row * kTile + i, column * kTile + j);
    }
  }
  return tile;
}
void multiply_add(const Tile& a, const Tile& b, Tile& c) {
  for (size_t i = 0; i < kTile; ++i) {
    for (size_t k = 0; k < kTile; ++k) {
      const double factor = a[i * kTile + k];
      for (size_t j = 0; j < kTile; ++j) c[i * kTile + j] += factor * b[k * kTile + j];
    }
  }
}
// All values are small integers, so that the sum does not depend on the order.
uint64_t checksum(const Tile& tile, size_t number) {
  int64_t sum = 0;
  for (size_t i = 0; i < kTileCells; ++i) {
    sum += static_cast<int64_t>(tile[i]) * static_cast<int64_t>((i * 31 + number * 17) % 13 + 1);
  }
  return static_cast<uint64_t>(sum);
}

void fill_tile(size_t tiles, size_t number) {
  for (size_t matrix = 0; matrix < 2; ++matrix) {
    put(*data->matrices[matrix], number * kTileCells,
        make_tile(matrix, number / tiles, number % tiles));
  }
}
uint64_t multiply_tile(size_t tiles, size_t number) {
  const size_t row = number / tiles;
  const size_t column = number % tiles;
  Tile sum(kTileCells);
  for (size_t k = 0; k < tiles; ++k) {
    multiply_add(get(*data->matrices[0], (row * tiles + k) * kTileCells, kTileCells),
                 get(*data->matrices[1], (k * tiles + column) * kTileCells, kTileCells), sum);
  }
  put(*data->matrices[2], number * kTileCells, sum);
  return checksum(sum, number);
}

// ---- Numbers ------------------------------------------------------------------------------------

uint32_t number_at(size_t index) {
  return static_cast<uint32_t>(Random::mix(index * Random::kStep + 1) >> 16);
}
uint64_t checksum(std::span<const uint32_t> values, size_t first) {
  uint64_t sum = 0;
  for (size_t i = 0; i < values.size(); ++i) sum += (uint64_t{values[i]} + 1) * (first + i + 1);
  return sum;
}

uint32_t get_one(size_t array, size_t index) {
  GlobalValue<uint32_t> value = data->numbers[array]->rget(*data->memory, index);
  return take(await(value, kForever));
}

// Returns the position of the first number in [begin, end) of the sorted array that is not less
// than `value`.
size_t lower_bound(size_t array, size_t begin, size_t end, uint32_t value) {
  while (begin < end) {
    const size_t middle = begin + (end - begin) / 2;
    if (get_one(array, middle) < value) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return begin;
}

void merge_pieces(size_t from, size_t a, size_t a_end, size_t b, size_t b_end, size_t to) {
  const auto left = get(*data->numbers[from], a, a_end - a);
  const auto right = get(*data->numbers[from], b, b_end - b);
  std::vector<uint32_t> both(left.size() + right.size());
  std::merge(left.begin(), left.end(), right.begin(), right.end(), both.begin());
  put(*data->numbers[1 - from], to, both);
}

// Merges [a, a_end) and [b, b_end) of array `from` into the other array, starting at `to`.
void merge(size_t from, size_t a, size_t a_end, size_t b, size_t b_end, size_t to) {
  if (a_end - a < b_end - b) {
    std::swap(a, b);
    std::swap(a_end, b_end);
  }
  if (a_end - a + b_end - b <= kPiece) return merge_pieces(from, a, a_end, b, b_end, to);
  const size_t a_middle = a + (a_end - a) / 2;
  const size_t b_middle = lower_bound(from, b, b_end, get_one(from, a_middle));
  const size_t to_middle = to + (a_middle - a) + (b_middle - b);
  parallel_invoke([=] { merge(from, a, a_middle, b, b_middle, to); },
                  [=] { merge(from, a_middle, a_end, b_middle, b_end, to_middle); });
}

void sort_piece(size_t begin, size_t end, size_t into) {
  auto values = get(*data->numbers[0], begin, end - begin);
  std::sort(values.begin(), values.end());
  put(*data->numbers[into], begin, values);
}

// Sorts [begin, end) of array 0 into array `into`.
void sort(size_t begin, size_t end, size_t into) {
  if (end - begin <= kPiece) return sort_piece(begin, end, into);
  const size_t middle = begin + (end - begin) / 2;
  parallel_invoke([=] { sort(begin, middle, 1 - into); }, [=] { sort(middle, end, 1 - into); });
  merge(1 - into, begin, middle, middle, end, begin);
}

size_t pieces_of(size_t n) { return (n + kPiece - 1) / kPiece; }

void fill_piece(size_t n, size_t piece) {
  const size_t first = piece * kPiece;
  std::vector<uint32_t> values(std::min(kPiece, n - first));
  for (size_t i = 0; i < values.size(); ++i) values[i] = number_at(first + i);
  put(*data->numbers[0], first, values);
}

struct Checked {
  uint64_t sum;
  bool ordered;
};
Checked check_piece(size_t n, size_t piece) {
  const size_t first = piece * kPiece;
  const size_t count = std::min(kPiece, n - first);
  const auto values = get(*data->numbers[0], first, std::min(count + 1, n - first));
  return {checksum(std::span(values).first(count), first),
          std::is_sorted(values.begin(), values.end())};
}

}  // namespace

GlobalArrays::GlobalArrays(Fabric& fabric, size_t matrix, size_t sorted)
    : data_(std::make_unique<Data>(fabric, matrix, sorted)) {
  data = data_.get();
}
GlobalArrays::~GlobalArrays() {
  take(data_->all.barrier(soon()));
  data = nullptr;
}

uint64_t matmul_plain(size_t n) {
  const size_t tiles = n / kTile;
  std::vector<Tile> a(tiles * tiles);
  std::vector<Tile> b(tiles * tiles);
  for (size_t number = 0; number < tiles * tiles; ++number) {
    a[number] = make_tile(0, number / tiles, number % tiles);
    b[number] = make_tile(1, number / tiles, number % tiles);
  }
  uint64_t sum = 0;
  for (size_t number = 0; number < tiles * tiles; ++number) {
    Tile c(kTileCells);
    for (size_t k = 0; k < tiles; ++k) {
      multiply_add(a[number / tiles * tiles + k], b[k * tiles + number % tiles], c);
    }
    sum += checksum(c, number);
  }
  return sum;
}

uint64_t matmul_tasks(size_t n) {
  const size_t tiles = n / kTile;
  parallel_for(size_t{0}, tiles * tiles, [=](size_t number) { fill_tile(tiles, number); });
  return parallel_reduce(
      size_t{0}, tiles * tiles, uint64_t{0},
      [=](size_t number) { return multiply_tile(tiles, number); }, std::plus<>());
}

namespace {

// Tiles of the pool's tasks are numbered from `begin` to `end`.
uint64_t pool_fill(uint64_t tiles, uint64_t begin, uint64_t end) {
  if (end - begin == 1) {
    fill_tile(tiles, begin);
    return 1;
  }
  pool::Children<pool_fill> low;
  low.spawn(tiles, begin, begin + (end - begin) / 2);
  const uint64_t high = pool::call<pool_fill>(tiles, begin + (end - begin) / 2, end);
  return low.sync() + high;
}
uint64_t pool_multiply(uint64_t tiles, uint64_t begin, uint64_t end) {
  if (end - begin == 1) return multiply_tile(tiles, begin);
  pool::Children<pool_multiply> low;
  low.spawn(tiles, begin, begin + (end - begin) / 2);
  const uint64_t high = pool::call<pool_multiply>(tiles, begin + (end - begin) / 2, end);
  return low.sync() + high;
}
uint64_t pool_matmul(uint64_t tiles) {
  pool::call<pool_fill>(tiles, uint64_t{0}, tiles * tiles);
  return pool::call<pool_multiply>(tiles, uint64_t{0}, tiles * tiles);
}

}  // namespace

absl::StatusOr<uint64_t> matmul_pool(TaskPool& pool, size_t n) {
  return pool.run<pool_matmul>(n / kTile);
}

uint64_t sort_plain(size_t n) {
  std::vector<uint32_t> values(n);
  for (size_t i = 0; i < n; ++i) values[i] = number_at(i);
  std::sort(values.begin(), values.end());
  return checksum(values, 0);
}

uint64_t sort_tasks(size_t n) {
  parallel_for(size_t{0}, pieces_of(n), [=](size_t piece) { fill_piece(n, piece); });
  sort(0, n, 0);
  const Checked checked = parallel_reduce(
      size_t{0}, pieces_of(n), Checked{0, true},
      [=](size_t piece) { return check_piece(n, piece); },
      [](const Checked& x, const Checked& y) {
        return Checked{x.sum + y.sum, x.ordered && y.ordered};
      });
  return checked.ordered ? checked.sum : 0;
}

}  // namespace cariama::bench
