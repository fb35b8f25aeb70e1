// Training, testing and filtering. Compiled once per level of the CPU (LEVEL names it); everything but the table at the
// end is private to a level, so that no level can run another one's code.
#include "kernels.h"

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <type_traits>

namespace fedfilt {
namespace {

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

// ---------------------------------------------------------------------------------------------------- products

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

// ---------------------------------------------------------------------------------------------------- layers

// Pictures lie channels innermost with a border of zeros; channels between layers are padded to whole registers.
// Padded numbers are zero, and so are all gradients that reach them: they stay zero.
// A kernel over the border multiplies zeros. Pixels that see the same part of it, rows low[0] .. high[0] and columns
// low[1] .. high[1], lie together and are spared the rest.
struct Group {
  Int first, pixels, low[2], high[2];  // first: where they begin among the pixels of a sample
};

struct ConvolutionLayer {
  Convolution shape;
  Int channels, stored;       // of the input: real, and as they lie in memory
  Int height, width, picture;  // of the input with its border; numbers of one sample
  Int taps, span, columns;    // kh · kw · channels; kw · stored: one row of the kernel; padded outputs
  Int used[2], pooled[2];     // pixels that some pool window sees; windows
  Int pixels, windows, pool, next;  // per sample; pixels of a window; numbers of one sample of the next layer's input
  Int at_once;                // samples worked on together, so that their pixels stay in the cache
  Int weight, bias;           // places in the packed model
  Int group_count;
  Array<Group> groups;
  Array<int32_t> pixel, tap, member, owner, target, choice;  // member: the pixels of each window; owner: its window
  Array<float> panels;        // weights as products want them (layers after the first)
};

struct DenseLayer {
  Dense shape;
  Int inputs, stride, columns, weight, bias;  // stride: from one sample's inputs to the next
  Array<int32_t> sample, across, down;
};

// Steps of dense layers can be taken as soon as their gradient is there.
INLINE bool plain(const Training& t) { return t.momentum == 0 && t.weight_decay == 0 && t.proximal == 0; }

class Model {
 public:
  // Pictures of bytes may have a black background: what only sees it is not computed
  Model(const Network& n, Int batch, const Samples& samples)
      : net(n), most_samples(batch), wide(up(batch, PANEL)), dark(n.convolutions && samples.bytes == 1) {}

  bool make(const Training* training);  // null: only to test
  void pack(const float* row) { move_row(const_cast<float*>(row), weights, false); }
  void unpack(float* row) { move_row(row, weights, true); }
  void fill(Int place, const Samples& samples, Int which);
  void put(Int place, const float* prepared, const uint8_t* lit);
  void look(Int place, uint8_t* lit);
  const float* forward(Int count);
  double loss_of(Int sample, Int label, float* gradient) const;
  double step(const Int* labels, Int count, const Training& training);
  Int classes() const { return net.dense[net.denses - 1].outputs; }
  Int logits_stride() const { return dense[net.denses - 1].columns; }

  Int picture = 0;  // numbers of one sample as the first layer wants it
  Int lights = 0;   // pixels of the first layer of one sample, if some may see nothing
  Int parameters = 0;
  Array<float> weights, gradient, velocity, start;
  Array<uint8_t> bright;           // of each sample and pixel of the first layer: whether it sees anything
  Array<float> input[7], back[7];  // of each layer, and their gradients; the last are the logits

 private:
  const Network& net;
  const Int most_samples, wide;
  const bool dark;
  ConvolutionLayer conv[3];
  DenseLayer dense[3];
  Array<float> unpooled, turned, turned_back, given;
  Array<int32_t> counting, from;
  Array<uint64_t> heard;
  Array<uint8_t> grown;
  Array<int32_t> seeing, seen, seeing_count, slot;  // see find_light()

  void move_row(float* row, float* packed, bool out);
  void make_panels();
  void find_light(Int count);
  void pool_forward(ConvolutionLayer& c, const float* z, const int32_t* members, float* out, int32_t* choice, Int count);
  void first_gradient(ConvolutionLayer& c, Int count);
  void sort_gradients(ConvolutionLayer& c, const float* out, const float* d, const int32_t* choice, Int first, Int end);
  void inner_gradient(ConvolutionLayer& c, Int layer, Int count);
  void dense_gradient(DenseLayer& d, Int layer, Int count, bool pass_on, float rate);
};

// Fill `groups`, `pixel` and `member`: pixels lie in the order (group, sample, place in the group). One group holds all
// where that is as fast: many small groups do not fill the tiles.
bool group_pixels(ConvolutionLayer& c, bool split) {
  const Convolution& s = c.shape;
  struct Run {
    Int first, count, low, high;
  };
  Array<Run> runs[2];
  Int number[2], whole = c.at_once;
  for (int side = 0; side < 2; side++) {
    if (!runs[side].make(c.used[side])) return false;
    const Int size = (side ? c.width : c.height) - s.padding[side];
    number[side] = 0;
    for (Int p = 0; p < c.used[side]; p++) {
      Int low = most(0, s.padding[side] - p * s.stride[side]), high = least(s.kernel[side], size - p * s.stride[side]);
      if (!split || low >= high) low = 0, high = s.kernel[side];
      Run& last = runs[side][most(0, number[side] - 1)];
      if (p && last.low == low && last.high == high)
        last.count++;
      else
        runs[side][number[side]++] = {p, 1, low, high};
    }
    whole *= c.used[side] * s.kernel[side];
  }
  c.group_count = number[0] * number[1];
  if (!c.groups.make(c.group_count)) return false;
  Int cost = 0, first = 0;
  for (Int g = 0; g < c.group_count; g++) {
    const Run &y = runs[0][g / number[1]], &x = runs[1][g % number[1]];
    c.groups[g] = {first, y.count * x.count, {y.low, x.low}, {y.high, x.high}};
    cost += (y.high - y.low) * (x.high - x.low) * up(c.at_once * y.count * x.count, ROWS / 2);
    for (Int i = 0; i < c.at_once * y.count * x.count; i++) {
      const Int sample = i / (y.count * x.count), down = y.first + i / x.count % y.count, right = x.first + i % x.count;
      const Int at = first * c.at_once + i, window = down / s.pool[0] * c.pooled[1] + right / s.pool[1];
      c.pixel[at] = (int32_t)(sample * c.picture + (down * s.stride[0] * c.width + right * s.stride[1]) * c.stored);
      c.owner[at] = (int32_t)(sample * c.windows + window);
      c.member[c.owner[at] * c.pool + down % s.pool[0] * s.pool[1] + right % s.pool[1]] = (int32_t)at;
    }
    first += y.count * x.count;
  }
  return c.group_count == 1 || 8 * cost <= 7 * whole || (c.groups.free(), group_pixels(c, false));
}

bool Model::make(const Training* training) {
  Int channels = net.channels, stored = net.channels, height = net.height, width = net.width;
  Int pixels = 1, windows = 1, words = 1;
  bool ok = true;
  for (Int l = 0; l < net.convolutions; l++) {
    ConvolutionLayer& c = conv[l];
    const Convolution& s = c.shape = net.convolution[l];
    c.channels = channels, c.stored = stored;
    c.height = height + 2 * s.padding[0], c.width = width + 2 * s.padding[1];
    c.picture = c.height * c.width * stored;
    c.taps = s.kernel[0] * s.kernel[1] * channels, c.span = s.kernel[1] * stored;
    c.columns = up(s.outputs, PANEL), c.pool = s.pool[0] * s.pool[1];
    for (int side = 0; side < 2; side++) {
      const Int size = ((side ? c.width : c.height) - s.kernel[side]) / s.stride[side] + 1;
      c.pooled[side] = size / s.pool[side], c.used[side] = c.pooled[side] * s.pool[side];
    }
    c.pixels = c.used[0] * c.used[1], c.windows = c.pooled[0] * c.pooled[1];
    c.at_once = most(1, least(most_samples, 16384 / (c.pixels * c.columns)));
    channels = s.outputs, stored = up(s.outputs, WIDTH), height = c.pooled[0], width = c.pooled[1];
    const bool last = l + 1 == net.convolutions;
    const Int border[2] = {last ? 0 : net.convolution[l + 1].padding[0], last ? 0 : net.convolution[l + 1].padding[1]};
    const Int next_width = width + 2 * border[1];
    c.next = (height + 2 * border[0]) * next_width * stored;
    c.weight = parameters, parameters += l ? s.outputs * s.kernel[0] * c.span : c.taps * c.columns;
    c.bias = parameters, parameters += c.columns;
    ok = ok && c.pixel.make(c.at_once * c.pixels) && c.tap.make(c.taps) && c.member.make(c.at_once * c.pixels) &&
         c.owner.make(c.at_once * c.pixels) &&
         c.target.make(c.windows) && c.choice.make(most_samples * c.windows * c.columns) &&
         (!l || c.panels.make(c.taps * c.columns)) && group_pixels(c, l > 0);
    if (!ok) return false;
    for (Int t = 0; t < c.taps; t++) {
      const Int y = t / (s.kernel[1] * c.channels), x = t / c.channels % s.kernel[1];
      c.tap[t] = (int32_t)((y * c.width + x) * c.stored + t % c.channels);
    }
    for (Int w = 0; w < c.windows; w++) {
      const Int y = w / width, x = w % width;
      c.target[w] = (int32_t)(((y + border[0]) * next_width + x + border[1]) * stored);
    }
    pixels = most(pixels, (c.at_once * c.pixels + 1) * c.columns);
    if (l && training) windows = most(windows, c.at_once * c.windows * c.columns);
    if (l && training) words = most(words, c.at_once * c.pixels * (up(s.outputs, 64) / 64));
    ok = input[l].make(most_samples * c.picture) && back[l].make(l && training ? most_samples * c.picture : 1);
    if (!ok) return false;
  }
  Int inputs = height * width * stored, stride = inputs, largest = 1;
  for (Int l = 0; l < net.denses; l++) {
    DenseLayer& d = dense[l];
    d.shape = net.dense[l], d.inputs = inputs, d.stride = stride, d.columns = up(d.shape.outputs, PANEL);
    d.weight = parameters, parameters += inputs * d.columns;
    d.bias = parameters, parameters += d.columns;
    const Int at = net.convolutions + l;
    ok = ok && d.sample.make(most_samples) && d.across.make(d.shape.outputs) && d.down.make(inputs) &&
         input[at].make(most_samples * stride) && back[at].make(at && training ? most_samples * stride : 1);
    if (!ok) return false;
    for (Int i = 0; i < most_samples; i++) d.sample[i] = (int32_t)(i * stride);
    for (Int o = 0; o < d.shape.outputs; o++) d.across[o] = (int32_t)(o / PANEL * inputs * PANEL + o % PANEL);
    for (Int i = 0; i < inputs; i++) d.down[i] = (int32_t)(i * PANEL);
    largest = most(largest, inputs);
    inputs = d.shape.outputs, stride = d.columns;
    largest = most(largest, inputs);
  }
  const Int end = net.convolutions + net.denses;
  picture = net.convolutions ? conv[0].picture : net.channels * net.height * net.width;
  lights = dark ? conv[0].pixels : 0;
  const Int kept = training ? largest * wide : 1, lit = most_samples * lights;
  ok = bright.make(lit) && seeing.make(lit) && seen.make(lit) && seeing_count.make(most_samples) && slot.make(lit) &&
       grown.make(lights ? picture + conv[0].width * conv[0].stored : 1) &&
       input[end].make(most_samples * stride) && back[end].make(training ? most_samples * stride : 1) &&
       unpooled.make(pixels) && turned.make(kept) && turned_back.make(kept) && given.make(windows) && from.make(windows) &&
       heard.make(words) && counting.make(largest) &&
       weights.make(parameters) && gradient.make(!training ? 1 : plain(*training) ? dense[0].weight : parameters);
  for (Int i = 0; ok && i < largest; i++) counting[i] = (int32_t)i;
  return ok;
}

// Copy a model's row into the packed model, or back. Later convolutions are packed as (output, y, x, channel), the first
// one and dense layers in panels of columns; a dense layer after pictures takes torch's (channel, y, x) in our order.
void Model::move_row(float* row, float* packed, bool out) {
  const auto move = [out](float* outside, float* inside) { out ? * outside = *inside : * inside = *outside; };
  for (Int l = 0; l < net.convolutions; l++) {
    const ConvolutionLayer& c = conv[l];
    const Convolution& s = c.shape;
    for (Int o = 0; o < s.outputs; o++) {
      if (s.bias >= 0) move(row + s.bias + o, packed + c.bias + o);
      for (Int t = 0; t < c.taps; t++) {
        const Int y = t / (s.kernel[1] * c.channels), x = t / c.channels % s.kernel[1], k = t % c.channels;
        const Int inside = l ? (o * s.kernel[0] + y) * c.span + x * c.stored + k
                             : (o / PANEL * c.taps + t) * PANEL + o % PANEL;
        move(row + s.weight + o * s.step[0] + y * s.step[1] + x * s.step[2] + k * s.step[3], packed + c.weight + inside);
      }
    }
  }
  Int places = 1, real = 0, stored = 0;  // pixels, real and stored channels of a dense layer's inputs
  if (net.convolutions) {
    const ConvolutionLayer& c = conv[net.convolutions - 1];
    places = c.windows, real = c.shape.outputs, stored = up(real, WIDTH);
  } else {
    real = stored = net.channels * net.height * net.width;
  }
  for (Int l = 0; l < net.denses; l++) {
    const DenseLayer& d = dense[l];
    for (Int o = 0; d.shape.bias >= 0 && o < d.shape.outputs; o++) move(row + d.shape.bias + o, packed + d.bias + o);
    for (Int first = 0; first < d.shape.outputs; first += PANEL) {
      const Int outputs = least(PANEL, d.shape.outputs - first), inputs = real * places;
      float* const outside = row + d.shape.weight + first * inputs;
      float* const inside = packed + d.weight + first * d.inputs;
      for (Int k = 0; k < real; k++)
        for (Int p = 0; p < places; p++)
          for (Int o = 0; o < outputs; o++)
            move(outside + o * inputs + k * places + p, inside + (p * stored + k) * PANEL + o);
    }
    places = 1, real = stored = d.shape.outputs;
  }
  if (!out) make_panels();
}

// panels[o / PANEL][tap][o % PANEL] = weights[o][tap], for convolutions after the first
void Model::make_panels() {
  for (Int l = 1; l < net.convolutions; l++) {
    ConvolutionLayer& c = conv[l];
    const Int kernel = c.shape.kernel[0] * c.span, blocks = c.shape.kernel[0] * c.shape.kernel[1];
    for (Int first = 0; first < c.shape.outputs; first += PANEL) {
      const Int outputs = least(PANEL, c.shape.outputs - first);
      float* to = c.panels + first * c.taps;
      for (Int block = 0; block < blocks; block++)
        for (Int k = 0; k < c.channels; k++, to += PANEL) {
          const float* from = weights + c.weight + first * kernel + block * c.stored + k;
          for (Int o = 0; o < outputs; o++) to[o] = from[o * kernel];
        }
    }
  }
}

// Sample `which` as float32, channels innermost, inside its border of zeros.
void Model::fill(Int place, const Samples& samples, Int which) {
  const Int channels = net.channels, size = net.height * net.width, at = samples.rows[which] * channels * size;
  float* to = input[0] + place * picture;
  if (!net.convolutions) {
    for (Int i = 0; i < channels * size; i++)
      to[i] = samples.bytes == 1 ? ((const uint8_t*)samples.x)[at + i] / 255.0f : ((const float*)samples.x)[at + i];
    return;
  }
  const ConvolutionLayer& c = conv[0];
  const Int* border = c.shape.padding;
  for (Int k = 0; k < channels; k++)
    for (Int y = 0; y < net.height; y++) {
      float* line = to + ((y + border[0]) * c.width + border[1]) * channels + k;
      const Int from = at + k * size + y * net.width;
      if (samples.bytes == 1)
        for (Int x = 0; x < net.width; x++) line[x * channels] = ((const uint8_t*)samples.x)[from + x] / 255.0f;
      else
        for (Int x = 0; x < net.width; x++) line[x * channels] = ((const float*)samples.x)[from + x];
    }
}

// Which pixels of the first layer see anything but zeros: what is not zero grows to the left and up by the kernel's size
void Model::look(Int place, uint8_t* lit) {
  if (!dark) return;
  const ConvolutionLayer& c = conv[0];
  const float* x = input[0] + place * picture;
  uint8_t* any = grown;
  const Int all = picture, line = c.width * c.stored;
  for (Int i = 0; i < all; i++) any[i] = x[i] != 0;
  for (Int k = 1; k < c.span; k++)
    for (Int i = 0; i < all; i++) any[i] |= any[i + 1];
  for (Int y = 1; y < c.shape.kernel[0]; y++)
    for (Int i = 0; i < all; i++) any[i] |= any[i + line];
  const int32_t* pixel = c.pixel;
  for (Int p = 0; p < lights; p++) lit[p] = any[pixel[p]];
}

void Model::put(Int place, const float* prepared, const uint8_t* lit) {
  std::memcpy(input[0] + place * picture, prepared, picture * sizeof(float));
  std::memcpy(bright + place * lights, lit, lights);
}

// ---------------------------------------------------------------------------------------------------- forward

// The pixels of each block of samples that see something, in a row (`seeing`); the rows of each window's pixels among
// them (`seen`); all the others share one row after the last.
void Model::find_light(Int count) {
  const ConvolutionLayer& c = conv[0];
  for (Int first = 0; first < count; first += c.at_once) {
    const Int at = first * lights, all = least(c.at_once, count - first) * lights;
    const uint8_t* lit = bright + at;
    const int32_t *pixel = c.pixel, *member = c.member;
    int32_t *row = seeing + at, *to = slot, *found = seen + at, n = 0;
    for (Int p = 0; p < all; p++) {
      row[n] = pixel[p];
      to[p] = lit[p] ? n : (int32_t)(c.at_once * lights);
      n += lit[p];
    }
    for (Int p = 0; p < all; p++) found[p] = to[member[p]];
    seeing_count[first] = n;
  }
}

// h[window][o] = max(0, max over the window of z[pixel][o]); choice remembers the first largest, as torch does
void Model::pool_forward(ConvolutionLayer& c, const float* z, const int32_t* members, float* out, int32_t* choice,
                         Int count) {
  const Int outputs = up(c.shape.outputs, WIDTH);
  for (Int i = 0; i < count; i++)
    for (Int w = 0; w < c.windows; w++) {
      const int32_t* member = members + (i * c.windows + w) * c.pool;
      float* to = out + i * c.next + c.target[w];
      int32_t* chosen = choice + (i * c.windows + w) * c.columns;
      for (Int o = 0; o < outputs; o += WIDTH) {
        Vector largest = load(z + member[0] * c.columns + o);
        Mask where = {};
        for (Int j = 1; j < c.pool; j++) {
          const Vector value = load(z + member[j] * c.columns + o);
          const Mask larger = (value > largest) | (value != value);
          largest = larger ? value : largest;
          where = larger ? Mask{} + (int32_t)j : where;
        }
        store(to + o, largest < 0 ? Vector{} : largest);
        store(chosen + o, where);
      }
    }
}

const float* Model::forward(Int count) {
  if (dark) find_light(count);
  for (Int l = 0; l < net.convolutions; l++) {
    ConvolutionLayer& c = conv[l];
    const bool some = dark && !l;  // only pixels that see something; the others are worth the bias
    if (some) std::memcpy(unpooled + c.at_once * c.pixels * c.columns, weights + c.bias, c.columns * sizeof(float));
    for (Int first = 0; first < count; first += c.at_once) {
      const Int samples = least(c.at_once, count - first);
      const float* b = l ? c.panels.data : weights + c.weight;
      for (Int g = 0; g < c.group_count; g++) {
        const Group& group = c.groups[g];
        const Int at = group.first * c.at_once, line = c.shape.kernel[1] * c.channels;
        const bool whole = group.high[1] - group.low[1] == c.shape.kernel[1];  // all rows of the kernel in one go
        for (Int y = group.low[0]; y < group.high[0]; y += whole ? group.high[0] - y : 1) {
          const Int tap = y * line + group.low[1] * c.channels;
          const Int taps = whole ? (group.high[0] - y) * line : (group.high[1] - group.low[1]) * c.channels;
          multiply({input[l] + first * c.picture, some ? seeing + first * lights : c.pixel + at, c.tap + tap,
                    some ? seeing_count[first] : samples * group.pixels, taps,
                    b + tap * PANEL, PANEL, c.taps * PANEL, unpooled + at * c.columns, c.columns, PANEL,
                    c.shape.outputs, weights + c.bias, y > group.low[0], false});
        }
      }
      pool_forward(c, unpooled, some ? seen + first * lights : c.member, input[l + 1] + first * c.next, c.choice + first * c.windows * c.columns, samples);
    }
  }
  for (Int l = 0; l < net.denses; l++) {
    const DenseLayer& d = dense[l];
    const Int at = net.convolutions + l;
    multiply({input[at], d.sample, counting, count, d.inputs, weights + d.weight, PANEL, d.inputs * PANEL, input[at + 1],
              d.columns, PANEL, d.shape.outputs, weights + d.bias, false, l + 1 < net.denses});
  }
  return input[net.convolutions + net.denses];
}

// -log softmax(z)[label]; its gradient is softmax(z) - e_label. Not finite if any logit is not.
double Model::loss_of(Int sample, Int label, float* gradient) const {
  const float* z = input[net.convolutions + net.denses] + sample * logits_stride();
  const Int count = classes();
  float largest = z[0], sum = 0, check = 0;
  for (Int k = 1; k < count; k++) largest = z[k] > largest ? z[k] : largest;
  for (Int k = 0; k < count; k++) {
    const float e = std::exp(z[k] - largest);
    sum += e, check += 0 * z[k];
    if (gradient) gradient[k] = e;
  }
  if (gradient) {
    for (Int k = 0; k < count; k++) gradient[k] /= sum;
    gradient[label] -= 1;
  }
  return (double)std::log(sum) - (z[label] - largest) + check;
}

// ---------------------------------------------------------------------------------------------------- backward

// Only the chosen pixel of a window that passed its ReLU has a gradient: for the first layer,
//   ∂[tap][o] = Σ_pixels x[pixel + tap] · d[pixel][o]
void Model::first_gradient(ConvolutionLayer& c, Int count) {
  const Int outputs = up(c.shape.outputs, WIDTH), columns = c.columns, pool = c.pool;
  float *bias = gradient + c.bias, *to = unpooled;
  for (Int first = 0; first < count; first += c.at_once) {
    const Int samples = least(c.at_once, count - first);
    const int32_t* members = dark ? seen + first * lights : c.member.data;
    for (Int i = 0; i < samples; i++)
      for (Int w = 0; w < c.windows; w++) {
        const Int at = (first + i) * c.next + c.target[w];
        const int32_t* chosen = c.choice + ((first + i) * c.windows + w) * columns;
        const int32_t* member = members + (i * c.windows + w) * pool;
        for (Int o = 0; o < outputs; o += WIDTH) {
          const Vector d = load(input[1] + at + o) > 0 ? load(back[1] + at + o) : Vector{};
          const Mask where = load(chosen + o);
          store(bias + o, load(bias + o) + d);
          for (Int j = 0; j < pool; j++)
            store(to + member[j] * columns + o, where == Mask{} + (int32_t)j ? d : Vector{});
        }
      }
    multiply({input[0] + first * c.picture, c.tap, dark ? seeing + first * lights : c.pixel.data, c.taps,
              dark ? seeing_count[first] : samples * c.pixels, unpooled, columns, PANEL,
              gradient + c.weight, PANEL, c.taps * PANEL, c.shape.outputs, nullptr, true, false});
  }
}

// Of a later layer, for samples first .. end: the gradient `given` to every window and output, zero where its ReLU was
// shut; where the chosen pixel begins in the picture (`from`); and for every pixel the outputs it is `heard` by, a bit
// for each: of 64 outputs, output g · WIDTH + lane has the bit lane · 64 / WIDTH + g.
void Model::sort_gradients(ConvolutionLayer& c, const float* out, const float* d, const int32_t* choice, Int first,
                           Int end) {
  constexpr Int BITS = 64 / WIDTH;
  const Int outputs = up(c.shape.outputs, WIDTH), words = up(outputs, 64) / 64;
  float* bias = gradient + c.bias;
  for (Int i = first; i < end; i++)
    for (Int w = 0; w < c.windows; w++) {
      const Int at = i * c.next + c.target[w], to = (i * c.windows + w) * c.columns;
      const int32_t* member = c.member + (i * c.windows + w) * c.pool;
      for (Int o = 0; o < outputs; o += WIDTH) {
        const Vector value = load(out + at + o) > 0 ? load(d + at + o) : Vector{};
        const Mask where = load(choice + to + o);
        Mask place = Mask{} + c.pixel[member[0]];
        for (Int j = 1; j < c.pool; j++) place = where == Mask{} + (int32_t)j ? Mask{} + c.pixel[member[j]] : place;
        store(bias + o, load(bias + o) + value);
        store(given + to + o, value);
        store(from + to + o, place);
      }
      for (Int j = 0; j < c.pool; j++)
        for (Int word = 0; word < words; word++) {
          Mask lanes = {};
          for (Int g = 0; g < BITS && word * 64 + g * WIDTH < outputs; g++) {
            const Int o = to + word * 64 + g * WIDTH;
            const Mask heard_by = (load(choice + o) == Mask{} + (int32_t)j) & (load(given + o) != 0);
            lanes |= heard_by & (int32_t)(1 << g);
          }
          uint64_t bits = 0;
          for (Int lane = 0; lane < WIDTH; lane++) bits |= (uint64_t)lanes[lane] << lane * BITS;
          heard[member[j] * words + word] = bits;
        }
    }
}

// ∂x[pixel + ·] += Σ d · weights[o][·] over the outputs o that heard each pixel, N registers of one row of the kernel
struct Hearing {
  const uint64_t* heard;
  const int32_t *pixel, *owner;
  Int pixels, words, columns, kernel;
  const float* given;
};

template <Int N>
void to_pixels(const Hearing& h, float* dx, const float* weights) {
  constexpr Int BITS = 64 / WIDTH;
  for (Int p = 0; p < h.pixels; p++) {
    float* to = dx + h.pixel[p];
    const float* given = h.given + h.owner[p] * h.columns;
    Vector sum[N];
    for (Int n = 0; n < N; n++) sum[n] = load(to + n * WIDTH);
    for (Int word = 0; word < h.words; word++)
      for (uint64_t bits = h.heard[p * h.words + word]; bits; bits &= bits - 1) {
        const Int bit = __builtin_ctzll(bits), o = word * 64 + bit % BITS * WIDTH + bit / BITS;
        const Vector d = given[o] - Vector{};
        const float* w = weights + o * h.kernel;
        for (Int n = 0; n < N; n++) sum[n] += d * load(w + n * WIDTH);
      }
    for (Int n = 0; n < N; n++) store(to + n * WIDTH, sum[n]);
  }
}

// ∂weights[o][·] += Σ d · x[pixel + ·] over all windows, for each output o, N registers of one row of the kernel
template <Int N>
void to_weights(const float* x, const float* given, const int32_t* from, Int windows, Int columns, Int outputs,
                float* gradient, Int kernel) {
  for (Int o = 0; o < outputs; o++) {
    float* to = gradient + o * kernel;
    Vector sum[N];
    for (Int n = 0; n < N; n++) sum[n] = load(to + n * WIDTH);
    for (Int w = 0; w < windows; w++) {
      const Vector d = given[w * columns + o] - Vector{};
      const float* seen = x + from[w * columns + o];
      for (Int n = 0; n < N; n++) sum[n] += d * load(seen + n * WIDTH);
    }
    for (Int n = 0; n < N; n++) store(to + n * WIDTH, sum[n]);
  }
}

// Call f with `n` as a constant, 1 <= n <= N
template <Int N, class F>
INLINE void constant(Int n, F f) {
  if constexpr (N > 1)
    if (n < N) return constant<N - 1>(n, f);
  f(std::integral_constant<Int, N>{});
}

// Cut `all` registers into pieces of nearly the same size, at most MOST: f(first, size)
template <class F>
void in_pieces(Int all, F f) {
  constexpr Int MOST = 12;
  for (Int r = 0, left = (all + MOST - 1) / MOST; left > 0; left--) {
    const Int size = (all - r + left - 1) / left;
    constant<MOST>(size, [&](auto n) { f(n, r * WIDTH); });
    r += size;
  }
}

void Model::inner_gradient(ConvolutionLayer& c, Int layer, Int count) {
  const Int kernel = c.shape.kernel[0] * c.span, outputs = c.shape.outputs, words = up(up(outputs, WIDTH), 64) / 64;
  const Int few = most(1, least(c.at_once, 10400 / c.picture));  // samples whose pictures stay in the cache
  std::memset(back[layer], 0, count * c.picture * sizeof(float));
  for (Int start = 0; start < count; start += c.at_once)
    for (Int first = 0; first < least(c.at_once, count - start); first += few) {
      const Int end = least(first + few, least(c.at_once, count - start)), block = first * c.windows * c.columns;
      const float* x = input[layer] + start * c.picture;
      float* dx = back[layer] + start * c.picture;
      sort_gradients(c, input[layer + 1] + start * c.next, back[layer + 1] + start * c.next,
                     c.choice + start * c.windows * c.columns, first, end);
      for (Int y = 0; y < c.shape.kernel[0]; y++) {
        const Int row = y * c.width * c.stored, tap = c.weight + y * c.span;
        in_pieces(c.span / WIDTH, [&](auto n, Int r) {
          to_weights<n>(x + row + r, given + block, from + block, (end - first) * c.windows, c.columns, outputs,
                        gradient + tap + r, kernel);
        });
        for (Int g = 0; g < c.group_count; g++) {
          const Group& group = c.groups[g];
          if (y < group.low[0] || y >= group.high[0]) continue;
          const Int at = group.first * c.at_once + first * group.pixels, left = group.low[1] * c.stored;
          const Hearing hearing = {heard + at * words, c.pixel + at, c.owner + at, (end - first) * group.pixels, words,
                                   c.columns, kernel, given};
          in_pieces((group.high[1] - group.low[1]) * c.stored / WIDTH, [&](auto n, Int r) {
            to_pixels<n>(hearing, dx + row + left + r, weights + tap + left + r);
          });
        }
      }
    }
}

// ∂x = d · weightsᵀ (if wanted), ∂weights = xᵀ · d, ∂bias = Σ d. The first is computed transposed, samples innermost:
// so one copy of the weights serves both ways. With a rate the step is taken at once, weights -= rate · ∂weights. Weights
// that do not fit the cache are read and written once, panel by panel.
void Model::dense_gradient(DenseLayer& d, Int layer, Int count, bool pass_on, float rate) {
  const float* x = input[layer];
  float *given = back[layer + 1], *target = rate != 0 ? weights : gradient;
  const Int outputs = d.shape.outputs, terms = d.inputs * d.columns > 65536 ? PANEL : outputs;
  for (Int i = 0; pass_on && i < count; i++)
    for (Int o = 0; o < outputs; o++) turned[o * wide + i] = given[i * d.columns + o];
  if (rate != 0)
    for (Int i = 0; i < count * d.columns; i++) given[i] *= -rate;
  for (Int o = 0; o < outputs; o += terms) {
    const Int some = least(terms, outputs - o), at = d.weight + o * d.inputs;
    if (pass_on)
      multiply({weights + at, d.down, d.across, d.inputs, some, turned + o * wide, wide, PANEL, turned_back, wide, PANEL,
                count, nullptr, o > 0, false});
    multiply({x, counting, d.sample, d.inputs, count, given + o, d.columns, PANEL, target + at, PANEL, d.inputs * PANEL,
              some, nullptr, rate != 0, false});
  }
  for (Int i = 0; pass_on && i < count; i++)
    for (Int k = 0; k < d.inputs; k++) {
      const float value = turned_back[k * wide + i];  // read in any case, so that nothing has to be guessed
      back[layer][i * d.stride + k] = x[i * d.stride + k] > 0 ? value : 0.0f;
    }
  if (d.shape.bias < 0) return;
  for (Int i = 0; i < count; i++)
    for (Int o = 0; o < outputs; o++) target[d.bias + o] += given[i * d.columns + o];
}

// One step of gradient descent on the samples in input[0]; the sum of their losses.
//   g = ∂loss + weight_decay · w + proximal · (w - start);  v = momentum · v + g;  w -= rate · v
double Model::step(const Int* labels, Int count, const Training& training) {
  forward(count);
  const Int last = net.convolutions + net.denses;
  double loss = 0;
  for (Int i = 0; i < count; i++) {
    float* d = back[last] + i * logits_stride();
    loss += loss_of(i, labels[i], d);
    for (Int k = 0; k < classes(); k++) d[k] /= (float)count;
  }
  if (!std::isfinite(loss)) return loss;
  const float rate = (float)training.rate, momentum = (float)training.momentum;
  const float decay = (float)training.weight_decay, proximal = (float)training.proximal;
  const bool at_once = plain(training);
  const Int left = at_once ? dense[0].weight : parameters;  // what is still to step after the dense layers
  std::memset(gradient, 0, left * sizeof(float));
  for (Int l = last - 1; l >= net.convolutions; l--)
    dense_gradient(dense[l - net.convolutions], l, count, l > 0, at_once ? rate : 0);
  for (Int l = net.convolutions - 1; l >= 1; l--) inner_gradient(conv[l], l, count);
  if (net.convolutions) first_gradient(conv[0], count);
  for (Int l = 0; l < net.convolutions; l++)
    if (conv[l].shape.bias < 0) std::memset(gradient + conv[l].bias, 0, conv[l].columns * sizeof(float));

  float *w = weights, *g = gradient, *v = velocity;
  if (decay != 0)
    for (Int i = 0; i < left; i++) g[i] += decay * w[i];
  if (proximal != 0)
    for (Int i = 0; i < left; i++) g[i] += proximal * (w[i] - start[i]);
  if (momentum != 0) {
    for (Int i = 0; i < left; i++) v[i] = momentum * v[i] + g[i];
    g = v;
  }
  for (Int i = 0; i < left; i++) w[i] -= rate * g[i];
  make_panels();
  return loss;
}

int train(const Network& net, float* row, const Samples& samples, const Training& training, double* loss) {
  const Int batch = least(training.batch, samples.count);
  Model model(net, batch, samples);
  Array<float> prepared;
  Array<uint8_t> lit;
  Array<Int> labels;
  if (!model.make(&training) || !prepared.make(samples.count * model.picture) || !lit.make(samples.count * model.lights) ||
      !labels.make(batch))
    return no_memory;
  model.pack(row);
  if (training.momentum != 0 && !model.velocity.make(model.parameters)) return no_memory;
  if (training.proximal != 0) {
    if (!model.start.make(model.parameters)) return no_memory;
    std::memcpy(model.start, model.weights, model.parameters * sizeof(float));
  }
  for (Int i = 0; i < samples.count; i++) {
    model.fill(0, samples, i);
    std::memcpy(prepared + i * model.picture, model.input[0], model.picture * sizeof(float));
    model.look(0, lit + i * model.lights);
  }
  double sum = NAN;
  for (Int epoch = 0; epoch < training.epochs; epoch++) {
    const Int* order = training.order + epoch * samples.count;
    sum = 0;
    for (Int first = 0; first < samples.count; first += batch) {
      const Int count = least(batch, samples.count - first);
      for (Int i = 0; i < count; i++) {
        model.put(i, prepared + order[first + i] * model.picture, lit + order[first + i] * model.lights);
        labels[i] = samples.labels[order[first + i]];
      }
      sum += model.step(labels, count, training);
      if (!std::isfinite(sum)) return diverged;
    }
  }
  model.unpack(row);
  *loss = sum / (double)samples.count;
  for (Int i = 0; i < net.parameters; i++)
    if (!std::isfinite(row[i])) return diverged;
  return fine;
}

// counts[label][guess] += 1 for every sample, loss += its loss
int test(const Network& net, const float* row, const Samples& samples, Int* counts, double* loss) {
  const Int batch = least(64, most(samples.count, 1));
  Model model(net, batch, samples);
  if (!model.make(nullptr)) return no_memory;
  model.pack(row);
  for (Int first = 0; first < samples.count; first += batch) {
    const Int count = least(batch, samples.count - first);
    for (Int i = 0; i < count; i++) {
      model.fill(i, samples, first + i);
      model.look(i, model.bright + i * model.lights);
    }
    const float* logits = model.forward(count);
    for (Int i = 0; i < count; i++, logits += model.logits_stride()) {
      const Int label = samples.labels[first + i];
      Int guess = 0;
      for (Int k = 1; k < model.classes(); k++)
        if (!(logits[k] <= logits[guess]) && logits[guess] == logits[guess]) guess = k;
      counts[label * model.classes() + guess]++;
      *loss += model.loss_of(i, label, nullptr);
    }
  }
  return fine;
}

// ---------------------------------------------------------------------------------------------------- filtering

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

// out = constant · x + share · (M + μS)⁻¹ M x on all columns of a (count, columns) signal.
// The mean of a component passes unchanged; only the rest goes through the system, with one device of every component
// tied to zero, which keeps it well posed for any μ. With y its solution, mean = Σ sense · x and lack = Σ sense · y:
//   out = constant · x + share · (y - pull · lack + lowest · mean)
// Signals are S; the factor and numbers between the steps are kept as T, a block of columns at a time, rows in the order of the factor;
// all arithmetic is in double, or sums over long rows of the factor would cost a digit.
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
  for (Int first = 0; first < columns; first += blocks * BLOCK) {
    const Int width = least(blocks * BLOCK, columns - first);
    for (Int p = 0; p < f.count; p++) {
      if (p + AHEAD < f.count) fetch(x + f.device[p + AHEAD] * x_stride + first, width * (Int)sizeof(S));
      for (Int i = 0; i < width; i++)
        work[(i / BLOCK * f.count + p) * BLOCK + i % BLOCK] = (T)x[f.device[p] * x_stride + first + i];
    }
    for (Int block = 0; block * BLOCK < width; block++) {
      T* y = work + block * f.count * BLOCK;
      const auto row = [&](Int p, Int n) -> Kept& { return *(Kept*)(y + p * BLOCK + n * LANES); };
      const auto wide = [&](Int p, Int n) { return __builtin_convertvector(row(p, n), Lanes); };
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
      for (Int i = 0; i < width; i++) {
        const double own = f.constant != 0 ? f.constant * (double)x[f.device[p] * x_stride + first + i] : 0;
        const double rest = (double)work[(i / BLOCK * f.count + p) * BLOCK + i % BLOCK];
        out[f.device[p] * out_stride + first + i] = (S)(own + rest);
      }
    }
  }
  return fine;
}

}  // namespace

const Kernels LEVEL = {train, test, apply, solve<float, float>, solve<float, double>, solve<double, double>};

}  // namespace fedfilt
