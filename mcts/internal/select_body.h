// The body of all select kernels: included once by each of them, within its own function. Vectors
// of the compiler (GCC and clang have the same), lowered to what the file is compiled for.
//
// Other threads change the arrays meanwhile, by relaxed atomics of 4 and 8 bytes. The vector loads
// here are not atomic for the language; on the processors that we know every element of them is
// read whole, which is all that a statistic needs. Under ThreadSanitizer elements are read by
// atomics.
{
  using Floats = float __attribute__((vector_size(64)));
  using Ints = int32_t __attribute__((vector_size(64)));
  using Doubles = double __attribute__((vector_size(128)));
#if defined(__SANITIZE_THREAD__)
#define CARIAMA_LOAD(vector, from)                                    \
  for (size_t k = 0; k < sizeof(vector) / sizeof((from)[0]); ++k) {   \
    std::remove_cv_t<std::remove_reference_t<decltype((from)[0])>> x; \
    __atomic_load(&(from)[k], &x, __ATOMIC_RELAXED);                  \
    (vector)[k] = x;                                                  \
  }
#else
#define CARIAMA_LOAD(vector, from) __builtin_memcpy(&(vector), from, sizeof(vector))
#endif
  constexpr int kLanes = 16;
  const Floats zero = {};
  const Floats one = zero + 1.0F;
  Floats best = zero - 5e29F;
  Ints where = Ints{} - 1;
  for (int base = 0; base < job.padded; base += kLanes) {
    Ints counts;
    Doubles sums;
    Floats bias;
    CARIAMA_LOAD(counts, job.visits + base);
    CARIAMA_LOAD(sums, job.value + base);
    CARIAMA_LOAD(bias, job.bias + base);
    const Floats visits = __builtin_convertvector(counts, Floats);
    const Floats value = __builtin_convertvector(sums, Floats);
    Floats score;
    if (job.amaf_visits != nullptr) {
      Floats amaf_visits;
      Floats amaf_value;
      CARIAMA_LOAD(amaf_visits, job.amaf_visits + base);
      CARIAMA_LOAD(amaf_value, job.amaf_value + base);
      // One imagined sample of first_play, so that unknown moves are comparable. The weighted sum
      // of both means over a common denominator: (n q + k r) / (n + k).
      const Floats mean = (amaf_value + job.first_play) / (amaf_visits + one);
      score = (value + job.amaf_equivalence * mean) / (visits + job.amaf_equivalence);
    } else {
      const Ints tried = counts > 0;
      score = value / (tried ? visits : one);
      score = tried ? score : zero + job.first_play;
    }
    if (job.exploration > 0) {
      for (int j = 0; j < kLanes; ++j) score[j] += job.exploration / std::sqrt(visits[j] + 1);
    }
    if (job.prior_weight > 0) {
      Floats prior;
      CARIAMA_LOAD(prior, job.prior + base);
      score += job.prior_weight * prior / (visits + one);
    }
    score += bias;
    const Ints better = score > best;
    best = better ? score : best;
    where = better ? Ints{} + base : where;
  }
  int chosen = -1;
  float highest = -5e29F;
  for (int j = 0; j < kLanes; ++j) {
    if (where[j] < 0 || best[j] < highest) continue;
    const int move = where[j] + j;
    if (best[j] > highest || move < chosen) {
      highest = best[j];
      chosen = move;
    }
  }
  return chosen;
#undef CARIAMA_LOAD
}
