// From losses to gradients and steps.
// Included by kernels.cpp, inside its namespace.

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
ALONE void to_pixels(const Hearing& h, float* dx, const float* weights) {
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
ALONE void to_weights(const float* x, const float* given, const int32_t* from, Int windows, Int columns, Int outputs,
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

void Model::inner_gradient(ConvolutionLayer& c, Int layer, Int count, bool pass_on) {
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
        for (Int g = 0; pass_on && g < c.group_count; g++) {
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
// so one copy of the weights serves both ways. With `now` the step is taken at once, weights -= rate · ∂weights, and what
// guides it besides. Weights that do not fit the cache are read and written once, panel by panel.
void Model::dense_gradient(DenseLayer& d, Int layer, Int count, bool pass_on, const Training* now) {
  const float* x = input[layer];
  const float rate = now ? (float)now->rate : 0;
  float *given = back[layer + 1], *target = now ? weights : gradient;
  const Int outputs = d.shape.outputs, terms = d.inputs * d.columns > 65536 ? PANEL : outputs;
  for (Int i = 0; pass_on && i < count; i++)
    for (Int o = 0; o < outputs; o++) turned[o * wide + i] = given[i * d.columns + o];
  if (now)
    for (Int i = 0; i < count * d.columns; i++) given[i] *= -rate;
  for (Int o = 0; o < outputs; o += terms) {
    const Int some = least(terms, outputs - o), at = d.weight + o * d.inputs;
    if (pass_on)
      multiply({weights + at, d.down, d.across, d.inputs, some, turned + o * wide, wide, PANEL, turned_back, wide, PANEL,
                count, nullptr, o > 0, false});
    if (now) pull(at, at + up(some, PANEL) * d.inputs, *now);
    multiply({x, counting, d.sample, d.inputs, count, given + o, d.columns, PANEL, target + at, PANEL, d.inputs * PANEL,
              some, nullptr, now != nullptr, false});
  }
  for (Int i = 0; pass_on && i < count; i++)
    for (Int k = 0; k < d.inputs; k++) {
      const float value = turned_back[k * wide + i];  // read in any case, so that nothing has to be guessed
      back[layer][i * d.stride + k] = x[i * d.stride + k] > 0 ? value : 0.0f;
    }
  if (d.shape.bias < 0) return;
  if (now) pull(d.bias, d.bias + outputs, *now);
  for (Int i = 0; i < count; i++)
    for (Int o = 0; o < outputs; o++) target[d.bias + o] += given[i * d.columns + o];
}

// weights -= rate · (weight_decay · w + proximal · (w - around) + drift), of some places of the packed model
void Model::pull(Int first, Int end, const Training& training) {
  const float rate = (float)training.rate, decay = (float)training.weight_decay;
  const float proximal = (float)training.proximal;
  if (decay == 0 && proximal == 0 && !training.drift) return;
  float* const w = weights;
  const float* const to = proximal != 0 ? around : w;
  if (training.drift)
    for (Int i = first; i < end; i++) w[i] -= rate * (decay * w[i] + proximal * (w[i] - to[i]) + drift[i]);
  else
    for (Int i = first; i < end; i++) w[i] -= rate * (decay * w[i] + proximal * (w[i] - to[i]));
}

// One step of gradient descent on the samples in input[0], which have these numbers; the sum of their losses.
//   g = ∂loss + weight_decay · w + proximal · (w - around) + drift, 0 where nothing is trained
//   v = momentum · v + g;  w -= rate · v
double Model::step(const Samples& samples, const Int* numbers, Int count, const Training& training) {
  forward(count);
  const Int last = net.convolutions + net.denses;
  double loss = 0;
  for (Int i = 0; i < count; i++) {
    float* d = back[last] + i * logits_stride();
    loss += loss_of(i, samples, numbers[i], d);
    for (Int k = 0; k < classes(); k++) d[k] /= (float)count;
  }
  if (!std::isfinite(loss)) return loss;
  const float rate = (float)training.rate, momentum = (float)training.momentum;
  const float decay = (float)training.weight_decay, proximal = (float)training.proximal;
  const Training* now = at_once(training) ? &training : nullptr;
  const Int left = now ? dense[0].weight : parameters;  // what is still to step after the dense layers
  std::memset(gradient + begin, 0, (left - begin) * sizeof(float));
  for (Int l = last - 1; l >= most(net.convolutions, lowest); l--)
    dense_gradient(dense[l - net.convolutions], l, count, l > lowest, now);
  for (Int l = net.convolutions - 1; l >= most(1, lowest); l--) inner_gradient(conv[l], l, count, l > lowest);
  if (net.convolutions && lowest == 0) first_gradient(conv[0], count);
  for (Int l = 0; l < net.convolutions; l++)
    if (conv[l].shape.bias < 0) std::memset(gradient + conv[l].bias, 0, conv[l].columns * sizeof(float));

  constexpr Int BLOCK = 1024;  // numbers that stay in the cache from one term to the next
  for (Int first = begin; first < left; first += BLOCK) {
    const Int end = least(first + BLOCK, left);
    float *w = weights, *g = gradient, *v = velocity;
    if (decay != 0)
      for (Int i = first; i < end; i++) g[i] += decay * w[i];
    if (proximal != 0)
      for (Int i = first; i < end; i++) g[i] += proximal * (w[i] - around[i]);
    if (training.drift)
      for (Int i = first; i < end; i++) g[i] += drift[i];
    if (training.trained)
      for (Int i = first; i < end; i++) g[i] = trained[i] != 0 ? g[i] : 0.0f;
    if (momentum != 0) {
      for (Int i = first; i < end; i++) v[i] = momentum * v[i] + g[i];
      g = v;
    }
    for (Int i = first; i < end; i++) w[i] -= rate * g[i];
  }
  if (lowest < net.convolutions) make_panels();
  return loss;
}
