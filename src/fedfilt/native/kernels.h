// What the kernels are told and what they answer. All numbers are int64, so that ctypes can mirror the structs.
#pragma once
#include <cstdint>

namespace fedfilt {

using Int = int64_t;

// Convolution + ReLU + max-pool. Pairs are (vertical, horizontal); a 1-D layer has height 1. `step` says how far apart
// the weights of neighbouring (output, y, x, input channel) lie in a model's row; `bias` is -1 where there is none.
struct Convolution {
  Int outputs, kernel[2], stride[2], padding[2], pool[2], weight, step[4], bias;
};

struct Dense {
  Int outputs, weight, bias;
};

// Cross-entropy is of a label; mean squared error and binary cross-entropy of logits are of a number for each output.
enum Loss { cross_entropy = 0, squared = 1, binary = 2 };

// Samples are (channels, height, width) in memory; a row has `parameters` numbers.
struct Network {
  Int channels, height, width, parameters, convolutions, denses;
  Convolution convolution[3];
  Dense dense[3];
  Int loss;
};

struct Samples {
  const void* x;       // all samples, uint8 (0..255, used as 0..1) or float32
  Int bytes;           // of one number of x: 1 or 4
  const Int* labels;   // of those that are meant; null where the loss is of numbers
  const Int* rows;     // which of all samples these are
  Int count;           // how many
  const float* targets;  // (count, outputs) of those that are meant, where the loss is of numbers
};

struct Training {
  const Int* order;  // (epochs, count) places in Samples::rows
  Int epochs, batch;
  double rate, momentum, weight_decay, proximal;
  const float* around;   // row that the proximal term pulls towards; null: the one that is trained, as it was
  const float* drift;    // row added to the gradient of every step; null: none
  const float* trained;  // 0 in the columns of a row that stay as they are, else 1; null: all are trained
};

// One term of a filter, r (M + μS)⁻¹ M, on a graph whose grounded system is factored as A = L U.
// L has a unit diagonal that is not stored; U's diagonal is stored inverted and apart.
struct Factor {
  Int count, components;
  const int32_t *lower_start, *lower_place, *upper_start, *upper_place;
  const void *lower, *upper;  // of the precision in which numbers are kept
  const double* diagonal;
  const int32_t *device, *component;            // of each row of the factor
  const double *scale, *sense, *pull, *lowest;  // of each row; see solve() in filtering.h
  double constant, share;
};

enum Status { fine = 0, diverged = 1, no_memory = 2 };

struct Kernels {
  int (*train)(const Network&, float* row, const Samples&, const Training&, double* loss);
  int (*test)(const Network&, const float* row, const Samples&, Int* counts, double* loss);
  int (*predict)(const Network&, const float* row, const Samples&, float* out);
  int (*apply)(const float* matrix, Int count, const float* x, Int x_stride, float* out, Int out_stride, Int columns);
  int (*solve)(const Factor&, const float* x, Int x_stride, float* out, Int out_stride, Int columns);
  int (*solve_in_double)(const Factor&, const float* x, Int x_stride, float* out, Int out_stride, Int columns);
  int (*solve_double)(const Factor&, const double* x, Int x_stride, double* out, Int out_stride, Int columns);
};

extern const Kernels baseline, avx2, avx512, neon;  // those that setup.py builds for this machine

}  // namespace fedfilt
