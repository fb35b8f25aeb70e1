import numpy as np

from fedfilt import Graph, fit
from fedfilt.models import Logistic

# 6 devices with 80 samples each, in two homes that disagree about the labels
inputs = np.random.default_rng(0).standard_normal((6, 80, 5)).astype(np.float32)
labels = ((inputs[:, :, 0] > 0) ^ (np.arange(6)[:, None] > 2)).astype(int)
graph = Graph.from_rooms(["home"] * 3 + ["office"] * 3, links=[(2, 3)])
model = Logistic(shape=(5,), classes=2)  # or any torch.nn.Module
fitted = fit(list(zip(inputs, labels, strict=True)), model, graph, learning_rate=0.3)
print(fitted)  # accuracy on the 20 % of each device's samples that were held out
print("device 4 on its first sample:", fitted.predict(4, inputs[4, :1]).round(2))
