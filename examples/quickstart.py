import numpy as np

import fedfilt
from fedfilt.filters import Tikhonov

rooms = ["hall", "hall", "kitchen", "kitchen", "attic"]
graph = fedfilt.Graph.from_rooms(rooms, links=[(1, 2), (3, 4)])
models = np.random.default_rng(0).standard_normal((5, 1000)).astype(np.float32)  # rows
samples = [450, 450, 100, 0, 300]  # a device without samples still relays and receives

for mu in (0, 1, 1e4):  # purely personal ... one shared model
    mixed = fedfilt.mix(graph, Tikhonov(mu), models, weights=samples)
    reach = fedfilt.strength(graph, Tikhonov(mu), samples)
    print(f"mu = {mu:g}: {reach}; spread {mixed.std(axis=0).mean():.3f}")
