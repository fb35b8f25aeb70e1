// Registers, memory, and the product that all layers are made of.
// Included by kernels.cpp, inside its namespace.

// Floats in a register; rows of a tile, and registers in each of them
#if defined(__AVX512F__)
constexpr Int WIDTH = 16, ROWS = 8, ACROSS = 2;
#elif defined(__AVX2__)
constexpr Int WIDTH = 8, ROWS = 6, ACROSS = 2;
#elif defined(FEDFILT_NEON)
constexpr Int WIDTH = 4, ROWS = 5, ACROSS = 4;  // with 6 rows, 24 + 4 + 6 registers are more than the 32 there are
#else
constexpr Int WIDTH = 4, ROWS = 6, ACROSS = 2;
#endif
constexpr Int PANEL = ACROSS * WIDTH;  // columns of a tile
#define INLINE inline __attribute__((always_inline))
#define ALONE __attribute__((noinline))  // so that its loop has all registers to itself

typedef float Vector __attribute__((vector_size(4 * WIDTH)));
typedef int32_t Mask __attribute__((vector_size(4 * WIDTH)));
typedef float LooseVector __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
typedef int32_t LooseMask __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));

INLINE Vector load(const float* p) { return *(const LooseVector*)p; }
INLINE void store(float* p, Vector v) { *(LooseVector*)p = v; }
INLINE Mask load(const int32_t* p) { return *(const LooseMask*)p; }
INLINE void store(int32_t* p, Mask v) { *(LooseMask*)p = v; }

constexpr INLINE Int least(Int a, Int b) { return a < b ? a : b; }
constexpr INLINE Int most(Int a, Int b) { return a > b ? a : b; }
constexpr INLINE Int up(Int n, Int unit) { return (n + unit - 1) / unit * unit; }

// Blocks that a thread has freed, for its next arrays of the same size: devices need the same memory one after the other,
// and the system charges for every page that goes back and comes again. The oldest make room for others.
class Shelf {
 public:
  ~Shelf() {
    while (count) std::free(drop(0));
  }
  void* take(Int bytes) {
    for (Int i = count; i-- > 0;)
      if (sizes[i] == bytes) return drop(i);
    return std::aligned_alloc(64, bytes);
  }
  void give(void* block, Int bytes) {
    if (bytes < PAGE || bytes > MOST) return std::free(block);
    while (count == PLACES || total + bytes > MOST) std::free(drop(0));
    blocks[count] = block, sizes[count++] = bytes, total += bytes;
  }

 private:
  static constexpr Int PLACES = 32, PAGE = 4096, MOST = 8 << 20;
  void* blocks[PLACES];
  Int sizes[PLACES], count = 0, total = 0;
  void* drop(Int i) {
    void* const block = blocks[i];
    total -= sizes[i];
    for (count--; i < count; i++) blocks[i] = blocks[i + 1], sizes[i] = sizes[i + 1];
    return block;
  }
};
thread_local Shelf shelf;

// Zeroed memory that frees itself; each array has its own block, so that a sanitizer sees every step outside.
template <class T>
struct Array {
  T* data = nullptr;
  Int bytes = 0;
  Array() = default;
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  ~Array() { free(); }
  bool make(Int count) {
    bytes = up(most(count, 1) * (Int)sizeof(T), 64);
    data = (T*)shelf.take(bytes);
    if (data) std::memset(data, 0, bytes);
    return data != nullptr;
  }
  void free() {
    if (data) shelf.give(data, bytes);
    data = nullptr;
  }
  operator T*() const { return data; }
};

// What a product computes, row by row and panel by panel of columns:
//   out[r][n] = (out[r][n] if add) + bias[n] + Σ_k x[row[r] + place[k]] · b[k][n]     and max(0, ·) of it if relu
// A convolution reads x at the places of a window around each pixel, a dense layer at consecutive places.
struct Product {
  const float* x;
  const int32_t *row, *place;
  Int rows, terms;
  const float* b;
  Int b_stride, b_panel;  // from one k to the next, from one panel to the next
  float* out;
  Int out_stride, out_panel;
  Int columns;
  const float* bias;
  bool add, relu;
};

template <Int M, Int N>
ALONE void tile(const Product& p, Int r, Int panel) {
  const float *x[M], *b = p.b + panel * p.b_panel;
  const Int terms = p.terms, stride = p.b_stride, next = p.out_stride;
  const bool relu = p.relu;
  float* out = p.out + r * next + panel * p.out_panel;
  Vector sum[M][N];
#pragma GCC unroll 8
  for (Int m = 0; m < M; m++) {
    x[m] = p.x + p.row[r + m];
    for (Int n = 0; n < N; n++)
      sum[m][n] = p.add    ? load(out + m * next + n * WIDTH)
                  : p.bias ? load(p.bias + panel * PANEL + n * WIDTH)
                           : Vector{};
  }
  const int32_t* place = p.place;
  for (Int k = 0; k < terms; k++, b += stride) {
    const Int at = place[k];
    Vector column[N];
    for (Int n = 0; n < N; n++) column[n] = load(b + n * WIDTH);
#pragma GCC unroll 8
    for (Int m = 0; m < M; m++) {
      const Vector value = x[m][at] - Vector{};
      for (Int n = 0; n < N; n++) sum[m][n] += value * column[n];
    }
  }
#pragma GCC unroll 8
  for (Int m = 0; m < M; m++)
    for (Int n = 0; n < N; n++) {
      Vector s = sum[m][n];
      if (relu) s = s < 0 ? Vector{} : s;  // keeps NaN, as torch does
      store(out + m * next + n * WIDTH, s);
    }
}

// Call f with `n` as a constant, 1 <= n <= N
template <Int N, class F>
INLINE void constant(Int n, F f) {
  if constexpr (N > 1)
    if (n < N) return constant<N - 1>(n, f);
  f(std::integral_constant<Int, N>{});
}

void multiply(const Product& p) {
  const Int groups = (p.rows + ROWS - 1) / ROWS;
  for (Int panel = 0; panel * PANEL < p.columns; panel++) {
    const Int across = least(ACROSS, up(p.columns - panel * PANEL, WIDTH) / WIDTH);
    for (Int g = 0, r = 0; g < groups; g++) {
      const Int rows = (p.rows - r + groups - g - 1) / (groups - g);  // groups of nearly equal size
      constant<ACROSS>(across, [&](auto n) { constant<ROWS>(rows, [&](auto m) { tile<m, n>(p, r, panel); }); });
      r += rows;
    }
  }
}
