// The door of the library: which levels this CPU has, and the kernels of a level. Bound with ctypes.
#include "kernels.h"

using namespace fedfilt;

// Levels have the numbers of LEVELS in __init__.py.
static const Kernels* kernels(int level) {
#ifdef FEDFILT_X86
  if (level == 1) return &avx2;
  if (level == 2) return &avx512;
#endif
#ifdef FEDFILT_ARM
  if (level == 3) return &neon;
#endif
  return level == 0 ? &baseline : nullptr;
}

extern "C" {

// Fingerprint of the sources that this library was built from.
const char* fedfilt_sources() { return FEDFILT_SOURCES; }

// Whether this CPU can run a level. All 64-bit ARM CPUs have NEON.
int fedfilt_has(int level) {
#ifdef FEDFILT_X86
  __builtin_cpu_init();
  if (level == 1) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (level == 2)
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#endif
  return kernels(level) != nullptr;
}

int fedfilt_train(int level, const Network* network, float* row, const Samples* samples, const Training* training,
                  double* loss) {
  return kernels(level)->train(*network, row, *samples, *training, loss);
}

int fedfilt_test(int level, const Network* network, const float* row, const Samples* samples, Int* counts,
                 double* loss) {
  return kernels(level)->test(*network, row, *samples, counts, loss);
}

int fedfilt_predict(int level, const Network* network, const float* row, const Samples* samples, float* out) {
  return kernels(level)->predict(*network, row, *samples, out);
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
