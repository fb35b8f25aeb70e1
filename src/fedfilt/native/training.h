// One device trains, is tested, or decides.
// Included by kernels.cpp, inside its namespace.

int train(const Network& net, float* row, const Samples& samples, const Training& training, double* loss) {
  const Int batch = least(training.batch, samples.count);
  Model model(net, batch, samples);
  Array<float> prepared;
  Array<uint8_t> lit;
  if (!model.make(&training) || !prepared.make(samples.count * model.picture) || !lit.make(samples.count * model.lights))
    return no_memory;
  model.pack(row);
  if (!model.guide(row, training)) return no_memory;
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
      for (Int i = 0; i < count; i++)
        model.put(i, prepared + order[first + i] * model.picture, lit + order[first + i] * model.lights);
      sum += model.step(samples, order + first, count, training);
      if (!std::isfinite(sum)) return diverged;
    }
  }
  model.unpack(row);
  *loss = sum / (double)samples.count;
  for (Int i = 0; i < net.parameters; i++)
    if (!std::isfinite(row[i])) return diverged;
  return fine;
}

// Call use(model, place in its batch, number, logits) for every sample.
template <class Use>
int ask(const Network& net, const float* row, const Samples& samples, Use use) {
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
    for (Int i = 0; i < count; i++, logits += model.logits_stride()) use(model, i, first + i, logits);
  }
  return fine;
}

// counts[label][guess] += 1 for every sample that has a label, loss += its loss
int test(const Network& net, const float* row, const Samples& samples, Int* counts, double* loss) {
  return ask(net, row, samples, [&](const Model& model, Int place, Int number, const float* logits) {
    Int guess = 0;
    for (Int k = 1; k < model.classes(); k++)
      if (!(logits[k] <= logits[guess]) && logits[guess] == logits[guess]) guess = k;
    if (net.loss == cross_entropy) counts[samples.labels[number] * model.classes() + guess]++;
    *loss += model.loss_of(place, samples, number, nullptr);
  });
}

// out[sample][output] = the probability that a model gives it, softmax or σ of the logits; or the number itself
int predict(const Network& net, const float* row, const Samples& samples, float* out) {
  return ask(net, row, samples, [&](const Model& model, Int, Int number, const float* logits) {
    float* const to = out + number * model.classes();
    if (net.loss != cross_entropy) {
      for (Int k = 0; k < model.classes(); k++) to[k] = net.loss == binary ? 1 / (1 + std::exp(-logits[k])) : logits[k];
      return;
    }
    float highest = logits[0];
    double sum = 0;
    for (Int k = 1; k < model.classes(); k++) highest = logits[k] > highest ? logits[k] : highest;
    for (Int k = 0; k < model.classes(); k++) sum += to[k] = std::exp(logits[k] - highest);
    for (Int k = 0; k < model.classes(); k++) to[k] = (float)(to[k] / sum);
  });
}
