// Registers, memory, and the product that all layers are made of.
// Included by kernels.cpp, inside its namespace.

#if defined(__AVX512F__)
constexpr Int WIDTH = 16, ROWS = 8;  // floats in a register; rows of a tile in registers
#elif defined(__AVX2__)
constexpr Int WIDTH = 8, ROWS = 6;
#else
constexpr Int WIDTH = 4, ROWS = 6;
#endif
constexpr Int PANEL = 2 * WIDTH;  // columns of a tile
#define INLINE inline __attribute__((always_inline))

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

// Zeroed memory that frees itself; each array has its own block, so that a sanitizer sees every step outside.
template <class T>
struct Array {
  T* data = nullptr;
  Array() = default;
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  ~Array() { free(); }
  bool make(Int count) {
    const Int bytes = up(most(count, 1) * (Int)sizeof(T), 64);
    data = (T*)std::aligned_alloc(64, bytes);
    if (data) std::memset(data, 0, bytes);
    return data != nullptr;
  }
  void free() { std::free(data), data = nullptr; }
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
void tile(const Product& p, Int r, Int panel) {
  const float *x[M], *b = p.b + panel * p.b_panel;
  float* out = p.out + r * p.out_stride + panel * p.out_panel;
  Vector sum[M][N];
  for (Int m = 0; m < M; m++) {
    x[m] = p.x + p.row[r + m];
    for (Int n = 0; n < N; n++)
      sum[m][n] = p.add    ? load(out + m * p.out_stride + n * WIDTH)
                  : p.bias ? load(p.bias + panel * PANEL + n * WIDTH)
                           : Vector{};
  }
  const int32_t* place = p.place;
  const Int terms = p.terms, stride = p.b_stride;
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
  for (Int m = 0; m < M; m++)
    for (Int n = 0; n < N; n++) {
      Vector s = sum[m][n];
      if (p.relu) s = s < 0 ? Vector{} : s;  // keeps NaN, as torch does
      store(out + m * p.out_stride + n * WIDTH, s);
    }
}

template <Int N>
void tile_rows(const Product& p, Int rows, Int r, Int panel) {
  switch (rows) {
    case 1: return tile<1, N>(p, r, panel);
    case 2: return tile<2, N>(p, r, panel);
    case 3: return tile<3, N>(p, r, panel);
    case 4: return tile<4, N>(p, r, panel);
    case 5: return tile<5, N>(p, r, panel);
    case 6: return tile<6, N>(p, r, panel);
    case 7: return tile<least(7, ROWS), N>(p, r, panel);
    case 8: return tile<least(8, ROWS), N>(p, r, panel);
  }
}

void multiply(const Product& p) {
  const Int groups = (p.rows + ROWS - 1) / ROWS;
  for (Int panel = 0; panel * PANEL < p.columns; panel++) {
    const bool one = p.columns - panel * PANEL <= WIDTH;
    for (Int g = 0, r = 0; g < groups; g++) {
      const Int rows = (p.rows - r + groups - g - 1) / (groups - g);  // groups of nearly equal size
      one ? tile_rows<1>(p, rows, r, panel) : tile_rows<2>(p, rows, r, panel);
      r += rows;
    }
  }
}
