// The door of the library: which levels this CPU has, and the kernels of a level. Bound with ctypes.
#include "kernels.h"

using namespace fedfilt;

static const Kernels* kernels(int level) {
#ifdef FEDFILT_X86
  if (level == 2) return &avx512;
  if (level == 1) return &avx2;
#endif
  return level == 0 ? &baseline : nullptr;
}

extern "C" {

// Fingerprint of the sources that this library was built from.
const char* fedfilt_sources() { return FEDFILT_SOURCES; }

// The highest level that this CPU can run: 0 baseline, 1 AVX2, 2 AVX-512.
int fedfilt_level() {
#ifdef FEDFILT_X86
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    return 2;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return 1;
#endif
  return 0;
}

int fedfilt_train(int level, const Network* network, float* row, const Samples* samples, const Training* training,
                  double* loss) {
  return kernels(level)->train(*network, row, *samples, *training, loss);
}

int fedfilt_test(int level, const Network* network, const float* row, const Samples* samples, Int* counts,
                 double* loss) {
  return kernels(level)->test(*network, row, *samples, counts, loss);
}

int fedfilt_apply(int level, const float* matrix, Int count, const float* x, Int x_stride, float* out, Int out_stride,
                  Int columns) {
  return kernels(level)->apply(matrix, count, x, x_stride, out, out_stride, columns);
}

int fedfilt_solve(int level, const Factor* factor, const float* x, Int x_stride, float* out,
                Int out_stride, Int columns) {
  return kernels(level)->solve(*factor, x, x_stride, out, out_stride, columns);
}

int fedfilt_solve_in_double(int level, const Factor* factor, const float* x, Int x_stride, float* out,
                Int out_stride, Int columns) {
  return kernels(level)->solve_in_double(*factor, x, x_stride, out, out_stride, columns);
}

int fedfilt_solve_double(int level, const Factor* factor, const double* x, Int x_stride, double* out,
                Int out_stride, Int columns) {
  return kernels(level)->solve_double(*factor, x, x_stride, out, out_stride, columns);
}
}
