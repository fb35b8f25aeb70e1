// A network laid out in memory, and the way of weights and samples into it.
// Included by kernels.cpp, inside its namespace.

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
INLINE bool at_once(const Training& t) { return t.momentum == 0 && !t.trained; }

class Model {
 public:
  // Pictures of bytes may have a black background: what only sees it is not computed
  Model(const Network& n, Int batch, const Samples& samples)
      : net(n), most_samples(batch), wide(up(batch, PANEL)), dark(n.convolutions && samples.bytes == 1) {}

  bool make(const Training* training);  // null: only to test
  bool guide(const float* row, const Training& training);
  void pack(const float* row) { move_row(const_cast<float*>(row), weights, false), make_panels(); }
  void unpack(float* row) { move_row(row, weights, true); }
  void fill(Int place, const Samples& samples, Int which);
  void put(Int place, const float* prepared, const uint8_t* lit);
  void look(Int place, uint8_t* lit);
  const float* forward(Int count);
  double loss_of(Int place, const Samples& samples, Int number, float* gradient) const;
  double step(const Samples& samples, const Int* numbers, Int count, const Training& training);
  Int classes() const { return net.dense[net.denses - 1].outputs; }
  Int logits_stride() const { return dense[net.denses - 1].columns; }

  Int picture = 0;  // numbers of one sample as the first layer wants it
  Int lights = 0;   // pixels of the first layer of one sample, if some may see nothing
  Int parameters = 0;
  Array<float> weights, gradient, velocity, around, drift, trained;
  Array<uint8_t> bright;           // of each sample and pixel of the first layer: whether it sees anything
  Array<float> input[7], back[7];  // of each layer, and their gradients; the last are the logits

 private:
  const Network& net;
  const Int most_samples, wide;
  const bool dark;
  bool trains = false;
  Int lowest = 0, begin = 0;  // layer that is trained, and where its weights begin: nothing below needs a gradient
  ConvolutionLayer conv[3];
  DenseLayer dense[3];
  Array<float> unpooled, turned, turned_back, given;
  Array<int32_t> counting, from;
  Array<uint64_t> heard;
  Array<uint8_t> grown;
  Array<float> shades;  // of each byte: 0 .. 1
  Array<int32_t> seeing, seen, seeing_count, slot;  // see find_light()

  bool packed(const float* row, Array<float>& to) {
    return to.make(parameters) && (move_row(const_cast<float*>(row), to, false), true);
  }
  double loss_of_label(const float* z, Int label, float* gradient) const;
  double loss_of_numbers(const float* z, const float* target, float* gradient) const;
  void move_row(float* row, float* packed, bool out);
  void make_panels();
  void find_light(Int count);
  template <bool CHOOSE, Int POOL>
  void pool_windows(ConvolutionLayer& c, const float* z, const int32_t* members, float* out, int32_t* choice, Int count);
  void pool_forward(ConvolutionLayer& c, const float* z, const int32_t* members, float* out, int32_t* choice, Int count);
  void first_gradient(ConvolutionLayer& c, Int count);
  void sort_gradients(ConvolutionLayer& c, const float* out, const float* d, const int32_t* choice, Int first, Int end);
  void inner_gradient(ConvolutionLayer& c, Int layer, Int count, bool pass_on);
  void dense_gradient(DenseLayer& d, Int layer, Int count, bool pass_on, const Training* now);
  void pull(Int first, Int end, const Training& training);
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
  trains = training != nullptr;
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
         c.target.make(c.windows) && c.choice.make(training ? most_samples * c.windows * c.columns : 1) &&
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
       heard.make(words) && counting.make(largest) && shades.make(256) &&
       weights.make(parameters) && gradient.make(!training ? 1 : at_once(*training) ? dense[0].weight : parameters);
  for (Int i = 0; ok && i < largest; i++) counting[i] = (int32_t)i;
  for (Int i = 0; ok && i < 256; i++) shades[i] = (float)i / 255.0f;
  return ok;
}

// Copy a model's row into the packed model, or back. Later convolutions are packed as (output, y, x, channel), the first
// one and dense layers in panels of columns; a dense layer after pictures takes torch's (channel, y, x) in our order.
void Model::move_row(float* row, float* packed, bool out) {
  const auto move = [out](float* outside, float* inside) { out ? * outside = *inside : * inside = *outside; };
  for (Int l = 0; l < net.convolutions; l++) {
    const ConvolutionLayer& c = conv[l];
    const Convolution& s = c.shape;
    const Int across = l ? c.stored : c.channels * PANEL, next = l ? 1 : PANEL;  // to the next x, to the next channel
    for (Int o = 0; o < s.outputs; o++) {
      if (s.bias >= 0) move(row + s.bias + o, packed + c.bias + o);
      float* inside = packed + c.weight + (l ? o * s.kernel[0] * c.span : o / PANEL * c.taps * PANEL + o % PANEL);
      for (Int y = 0; y < s.kernel[0]; y++)
        for (Int x = 0; x < s.kernel[1]; x++, inside += across) {
          float* const outside = row + s.weight + o * s.step[0] + y * s.step[1] + x * s.step[2];
          for (Int k = 0; k < c.channels; k++) move(outside + k * s.step[3], inside + k * next);
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
  constexpr Int FEW = 8;  // rows of weights read side by side: more would push each other out of the cache
  for (Int l = 0; l < net.denses; l++) {
    const DenseLayer& d = dense[l];
    for (Int o = 0; d.shape.bias >= 0 && o < d.shape.outputs; o++) move(row + d.shape.bias + o, packed + d.bias + o);
    for (Int first = 0; first < d.shape.outputs; first += FEW) {
      const Int outputs = least(FEW, d.shape.outputs - first), inputs = real * places;
      float* const outside = row + d.shape.weight + first * inputs;
      float* const inside = packed + d.weight + first / PANEL * PANEL * d.inputs + first % PANEL;
      for (Int k = 0; k < real; k++)
        for (Int p = 0; p < places; p++)
          for (Int o = 0; o < outputs; o++)
            move(outside + o * inputs + k * places + p, inside + (p * stored + k) * PANEL + o);
    }
    places = 1, real = stored = d.shape.outputs;
  }
}

// What guides the steps besides the loss, packed like the weights: padded numbers are zero here too, and stay so.
bool Model::guide(const float* row, const Training& training) {
  if (training.momentum != 0 && !velocity.make(parameters)) return false;
  if (training.proximal != 0 && !packed(training.around ? training.around : row, around)) return false;
  if (training.drift && !packed(training.drift, drift)) return false;
  if (!training.trained) return true;
  if (!packed(training.trained, trained)) return false;
  Int first = 0;
  while (first < parameters && trained[first] == 0) first++;
  lowest = net.convolutions + net.denses, begin = parameters;
  while (lowest > 0 && begin > first) {
    lowest--;
    begin = lowest < net.convolutions ? conv[lowest].weight : dense[lowest - net.convolutions].weight;
  }
  return true;
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

// Sample `which` as float32, channels innermost, inside its border of zeros; bytes by a table, as dividing is slow.
void Model::fill(Int place, const Samples& samples, Int which) {
  const Int channels = net.channels, size = net.height * net.width, at = samples.rows[which] * channels * size;
  float* to = input[0] + place * picture;
  const float* const shade = shades;
  const auto line = [&](Int first, Int count, float* line, Int apart) {
    const uint8_t* const bytes = (const uint8_t*)samples.x + first;
    const float* const numbers = (const float*)samples.x + first;
    if (samples.bytes == 1)
      for (Int x = 0; x < count; x++) line[x * apart] = shade[bytes[x]];
    else
      for (Int x = 0; x < count; x++) line[x * apart] = numbers[x];
  };
  if (!net.convolutions) return line(at, channels * size, to, 1);
  const ConvolutionLayer& c = conv[0];
  const Int* border = c.shape.padding;
  for (Int k = 0; k < channels; k++)
    for (Int y = 0; y < net.height; y++)
      line(at + k * size + y * net.width, net.width, to + ((y + border[0]) * c.width + border[1]) * channels + k, channels);
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
