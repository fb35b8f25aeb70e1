// The filter on the graph: by a dense matrix, or by a sparse factor.
// Included by kernels.cpp, inside its namespace.

// out = matrix · x for a (count, count) matrix on a (count, columns) signal; out may be x.
int apply(const float* matrix, Int count, const float* x, Int x_stride, float* out, Int out_stride, Int columns) {
  constexpr Int BLOCK = 16 * PANEL;
  Array<float> given, result;
  Array<int32_t> row, place;
  if (!given.make(count * BLOCK) || !result.make(count * BLOCK) || !row.make(count) || !place.make(count))
    return no_memory;
  for (Int i = 0; i < count; i++) row[i] = (int32_t)(i * count), place[i] = (int32_t)i;
  for (Int first = 0; first < columns; first += BLOCK) {
    const Int width = least(BLOCK, columns - first);
    for (Int i = 0; i < count; i++) std::memcpy(given + i * BLOCK, x + i * x_stride + first, width * sizeof(float));
    multiply({matrix, row, place, count, count, given, BLOCK, PANEL, result, BLOCK, PANEL, width, nullptr, false, false});
    for (Int i = 0; i < count; i++) std::memcpy(out + i * out_stride + first, result + i * BLOCK, width * sizeof(float));
  }
  return fine;
}

// Numbers as they are kept, in double.
template <class Lanes, class Kept>
INLINE Lanes widened(Kept kept) {
#ifdef __aarch64__  // GCC would convert the two floats one by one
  if constexpr (sizeof(Kept) == 8) return (Lanes)vcvt_f64_f32((float32x2_t)kept);
#endif
  return __builtin_convertvector(kept, Lanes);
}

// out = constant · x + share · (M + μS)⁻¹ M x on all columns of a (count, columns) signal.
// The mean of a component passes unchanged; only the rest goes through the system, with one device of every component
// tied to zero, which keeps it well posed for any μ. With y its solution, mean = Σ sense · x and lack = Σ sense · y:
//   out = constant · x + share · (y - pull · lack + lowest · mean)
// Signals are S; the factor and numbers between the steps are kept as T, a block of columns at a time, rows in the order
// of the factor; all arithmetic is in double, or sums over long rows of the factor would cost a digit.
template <class S, class T>
int solve(const Factor& f, const S* x, Int x_stride, S* out, Int out_stride, Int columns) {
  constexpr Int REGISTERS = 8, LANES = WIDTH / 2, BLOCK = REGISTERS * LANES, AHEAD = 12;
  typedef double Lanes __attribute__((vector_size(8 * LANES)));
  typedef T Kept __attribute__((vector_size(sizeof(T) * LANES)));
  const T *lower = (const T*)f.lower, *upper = (const T*)f.upper;
  const Int blocks = most(1, least(8, 16'000'000 / (f.count * BLOCK * (Int)sizeof(T))));  // copied in one go
  Array<T> work;
  Array<double> means, lacks;
  if (!work.make(blocks * f.count * BLOCK) || !means.make(f.components * BLOCK) || !lacks.make(f.components * BLOCK))
    return no_memory;
  const auto fetch = [](const void* what, Int bytes) {  // into the cache, before it is wanted
    for (Int line = 0; line < bytes; line += 64) __builtin_prefetch((const char*)what + line);
  };
  const auto kept = [&](Int p, Int column) { return work + (column / BLOCK * f.count + p) * BLOCK; };
  for (Int first = 0; first < columns; first += blocks * BLOCK) {
    const Int width = least(blocks * BLOCK, columns - first);
    for (Int p = 0; p < f.count; p++) {
      if (p + AHEAD < f.count) fetch(x + f.device[p + AHEAD] * x_stride + first, width * (Int)sizeof(S));
      const S* given = x + f.device[p] * x_stride + first;
      for (Int at = 0; at < width; at += BLOCK)
        for (Int i = at; i < least(at + BLOCK, width); i++) kept(p, at)[i - at] = (T)given[i];
    }
    for (Int block = 0; block * BLOCK < width; block++) {
      T* y = work + block * f.count * BLOCK;
      const auto row = [&](Int p, Int n) -> Kept& { return *(Kept*)(y + p * BLOCK + n * LANES); };
      const auto wide = [&](Int p, Int n) { return widened<Lanes>(row(p, n)); };
      const auto part = [&](double* sums, Int p, Int n) -> Lanes& {
        return *(Lanes*)(sums + f.component[p] * BLOCK + n * LANES);
      };
      std::memset(means, 0, f.components * BLOCK * sizeof(double));
      std::memset(lacks, 0, f.components * BLOCK * sizeof(double));
      for (Int p = 0; p < f.count; p++)
        for (Int n = 0; n < REGISTERS; n++) part(means, p, n) += f.sense[p] * wide(p, n);
      for (Int p = 0, k = 0; p < f.count; p++) {  // L y' = scale · (x - mean)
        Lanes value[REGISTERS];
        for (Int n = 0; n < REGISTERS; n++)
          value[n] = f.scale[p] * (wide(p, n) - f.lowest[p] * part(means, p, n));
        for (; k < f.lower_start[p + 1]; k++) {
          if (k + AHEAD < f.lower_start[f.count]) fetch(y + (Int)f.lower_place[k + AHEAD] * BLOCK, BLOCK * sizeof(T));
          for (Int n = 0; n < REGISTERS; n++) value[n] -= (double)lower[k] * wide(f.lower_place[k], n);
        }
        for (Int n = 0; n < REGISTERS; n++) row(p, n) = __builtin_convertvector(value[n], Kept);
      }
      for (Int p = f.count - 1, k = f.upper_start[f.count] - 1; p >= 0; p--) {  // U y = y'
        Lanes value[REGISTERS];
        for (Int n = 0; n < REGISTERS; n++) value[n] = wide(p, n);
        for (; k >= f.upper_start[p]; k--) {
          if (k >= AHEAD) fetch(y + (Int)f.upper_place[k - AHEAD] * BLOCK, BLOCK * sizeof(T));
          for (Int n = 0; n < REGISTERS; n++) value[n] -= (double)upper[k] * wide(f.upper_place[k], n);
        }
        for (Int n = 0; n < REGISTERS; n++) {
          value[n] *= f.diagonal[p];
          part(lacks, p, n) += f.sense[p] * value[n];
          row(p, n) = __builtin_convertvector(value[n], Kept);
        }
      }
      for (Int p = 0; p < f.count; p++)
        for (Int n = 0; n < REGISTERS; n++) {
          const Lanes rest = wide(p, n) - f.pull[p] * part(lacks, p, n);
          row(p, n) = __builtin_convertvector(f.share * (rest + f.lowest[p] * part(means, p, n)), Kept);
        }
    }
    for (Int p = 0; p < f.count; p++) {
      if (p + AHEAD < f.count) fetch(out + f.device[p + AHEAD] * out_stride + first, width * (Int)sizeof(S));
      const S* given = x + f.device[p] * x_stride + first;
      S* result = out + f.device[p] * out_stride + first;
      for (Int at = 0; at < width; at += BLOCK)
        for (Int i = at; i < least(at + BLOCK, width); i++) {
          const double rest = (double)kept(p, at)[i - at];
          result[i] = (S)(f.constant != 0 ? f.constant * (double)given[i] + rest : rest);
        }
    }
  }
  return fine;
}
