// From samples to logits and losses.
// Included by kernels.cpp, inside its namespace.

// The pixels of each block of samples that see something, in a row (`seeing`); the rows of each window's pixels among
// them (`seen`); all the others share one row after the last.
void Model::find_light(Int count) {
  const ConvolutionLayer& c = conv[0];
  for (Int first = 0; first < count; first += c.at_once) {
    const Int at = first * lights, all = least(c.at_once, count - first) * lights;
    const uint8_t* lit = bright + at;
    const int32_t *pixel = c.pixel, *member = c.member;
    int32_t *row = seeing + at, *to = slot, *found = seen + at, n = 0;
    const int32_t none = (int32_t)(c.at_once * lights);
    for (Int p = 0; p < all; p++) {  // without branches: nothing foretells which pixels are dark
      row[n] = pixel[p];
      to[p] = none + (n - none) * lit[p];
      n += lit[p];
    }
    for (Int p = 0; p < all; p++) found[p] = to[member[p]];
    seeing_count[first] = n;
  }
}

// h[window][o] = max(0, max over the window of z[pixel][o]); choice remembers the first largest, as torch does, for the
// gradient. POOL is the number of pixels of a window where it is known.
template <bool CHOOSE, Int POOL>
void Model::pool_windows(ConvolutionLayer& c, const float* z, const int32_t* members, float* out, int32_t* choice,
                         Int count) {
  const Int outputs = up(c.shape.outputs, WIDTH), pool = POOL ? POOL : c.pool, columns = c.columns;
  const int32_t* const target = c.target;
  for (Int i = 0; i < count; i++)
    for (Int w = 0; w < c.windows; w++) {
      const int32_t* member = members + (i * c.windows + w) * pool;
      float* to = out + i * c.next + target[w];
      int32_t* chosen = CHOOSE ? choice + (i * c.windows + w) * columns : nullptr;
      for (Int o = 0; o < outputs; o += WIDTH) {
        Vector largest = load(z + member[0] * columns + o);
        Mask where = {};
        for (Int j = 1; j < pool; j++) {
          const Vector value = load(z + member[j] * columns + o);
          const Mask larger = (value > largest) | (value != value);
          largest = larger ? value : largest;
          if (CHOOSE) where = larger ? Mask{} + (int32_t)j : where;
        }
        store(to + o, largest < 0 ? Vector{} : largest);
        if (CHOOSE) store(chosen + o, where);
      }
    }
}

void Model::pool_forward(ConvolutionLayer& c, const float* z, const int32_t* members, float* out, int32_t* choice,
                         Int count) {
  if (trains)
    c.pool == 4 ? pool_windows<true, 4>(c, z, members, out, choice, count)
                : pool_windows<true, 0>(c, z, members, out, choice, count);
  else
    c.pool == 4 ? pool_windows<false, 4>(c, z, members, out, nullptr, count)
                : pool_windows<false, 0>(c, z, members, out, nullptr, count);
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
      pool_forward(c, unpooled, some ? seen + first * lights : c.member, input[l + 1] + first * c.next,
                   c.choice + (trains ? first * c.windows * c.columns : 0), samples);
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
double Model::loss_of_label(const float* z, Int label, float* gradient) const {
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

// The mean over all outputs of (z - target)², or of -target · log σ(z) - (1 - target) · log(1 - σ(z)).
double Model::loss_of_numbers(const float* z, const float* target, float* gradient) const {
  double sum = 0;
  for (Int k = 0; k < classes(); k++) {
    const float apart = z[k] - target[k];
    sum += net.loss == squared ? apart * apart
                               : (z[k] > 0 ? z[k] : 0 * z[k]) - z[k] * target[k] + std::log1p(std::exp(-std::fabs(z[k])));
    const float slope = net.loss == squared ? 2 * apart : 1 / (1 + std::exp(-z[k])) - target[k];
    if (gradient) gradient[k] = slope / (float)classes();
  }
  return sum / (double)classes();
}

// Of the sample at a place of the batch, which is this number of the samples
double Model::loss_of(Int place, const Samples& samples, Int number, float* gradient) const {
  const float* z = input[net.convolutions + net.denses] + place * logits_stride();
  return net.loss == cross_entropy ? loss_of_label(z, samples.labels[number], gradient)
                                   : loss_of_numbers(z, samples.targets + number * classes(), gradient);
}
