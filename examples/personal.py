import numpy as np

import fedfilt
from fedfilt.aggregators import GFedFilt
from fedfilt.filters import Tikhonov
from fedfilt.models import Logistic

inputs = np.random.default_rng(0).standard_normal((6, 80, 5)).astype(np.float32)  # 6 devices, 80 samples each
labels = ((inputs[:, :, 0] > 0) ^ (np.arange(6)[:, None] > 2)).astype(int)  # two homes that disagree
devices = list(zip(inputs, labels, strict=True))
graph = fedfilt.Graph.from_rooms(["home"] * 3 + ["office"] * 3, links=[(2, 3)])
model, rule = Logistic(shape=(5,), classes=2), GFedFilt(Tikhonov(mu=0.5))  # or any torch.nn.Module
fitted = fedfilt.fit(devices, model, graph, rule, learning_rate=0.3)
print(fitted)  # accuracy on the 20 % of each device's samples that were held out
print("what device 4 says about its first sample:", fitted.predict(4, inputs[4, :1]).round(2))
