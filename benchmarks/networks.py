"""Training other networks of the native core's family, against an sgemm of the same FLOPs and against eager torch.

One core, 3 epochs, all variants alternating, the best of several. Usage: python benchmarks/networks.py [--quick]
"""

import sys

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from common import conclude, heading, interleaved, sgemm
from fedfilt.models.cnn1d import CNN1d
from fedfilt.models.logistic import Logistic
from fedfilt.models.mlp import MLP
from fedfilt.models.paper_cnn import PaperCNN
from fedfilt.training._torch import inputs, torch_module
from fedfilt.training.sgd import Training
from fedfilt.training.trainer import Trainer

EPOCHS = 3


def blocks(channels, outputs, kernel):
    layers = []
    for count in outputs:
        layers += [nn.Conv2d(channels, count, kernel, padding=kernel // 2), nn.ReLU(), nn.MaxPool2d(2)]
        channels = count
    return layers


def leaf(hidden):
    return nn.Sequential(
        *blocks(1, (32, 64), 5), nn.Flatten(), nn.Linear(3136, hidden), nn.ReLU(), nn.Linear(hidden, 62)
    )


def sensors():
    layers, channels = [], 9
    for outputs in (64, 64, 64):
        layers += [nn.Conv1d(channels, outputs, 5, padding=2), nn.ReLU(), nn.MaxPool1d(2)]
        channels = outputs
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 16, 128), nn.ReLU(), nn.Linear(128, 6))


NETWORKS = {  # name: (model, shape of a sample, labels, batch)
    "paper's CNN": (PaperCNN((1, 28, 28), 10), (1, 28, 28), 10, 32),
    "LEAF 5x5 CNN, 128 neurons": (leaf(128), (1, 28, 28), 62, 10),
    "LEAF 5x5 CNN, 2048 neurons": (leaf(2048), (1, 28, 28), 62, 10),
    "RGB 32x32, 3 blocks": (
        nn.Sequential(*blocks(3, (16, 32, 64), 3), nn.Flatten(), nn.Linear(1024, 64), nn.ReLU(), nn.Linear(64, 10)),
        (3, 32, 32),
        10,
        32,
    ),
    "1-D CNN, 9 channels x 128": (sensors(), (9, 128), 6, 20),
    "fedfilt's cnn1d, 6 x 128": (CNN1d((6, 128), 7), (6, 128), 7, 32),
    "mlp 64-64-10": (MLP((1, 8, 8), 10), (1, 8, 8), 10, 10),
    "mlp 784-64-10": (MLP((1, 28, 28), 10), (1, 28, 28), 10, 32),
    "logistic 784-10": (Logistic((1, 28, 28), 10), (1, 28, 28), 10, 10),
    "logistic 60-10": (Logistic((60,), 10), (60,), 10, 10),
    "paper's CNN, batch 1": (PaperCNN((1, 28, 28), 10), (1, 28, 28), 10, 1),
}


def eager(module, x, y, batch):
    """A plain loop without DataLoader: the fastest way to write it."""
    optimiser = torch.optim.SGD(module.parameters(), lr=0.01)
    module, x, y = module.to(memory_format=torch.channels_last), inputs(x), torch.from_numpy(y)

    def work():
        for _ in range(EPOCHS):
            order = torch.randperm(len(y))
            for start in range(0, len(y), batch):
                part = order[start : start + batch]
                optimiser.zero_grad()
                functional.cross_entropy(module(x[part]), y[part]).backward()
                optimiser.step()

    return work


def main():
    quick = "--quick" in sys.argv[1:]
    torch.set_num_threads(1)
    heading()
    print("| network | batch | MFLOP a sample | us a sample | x sgemm | x eager torch |\n|---|---|---|---|---|---|")
    checks = []
    for name, (model, shape, labels, batch) in NETWORKS.items():
        module = model if isinstance(model, nn.Module) else torch_module(model)
        rng = np.random.default_rng(0)
        count = 320 if batch > 1 else 64
        x, y = rng.standard_normal((count, *shape), dtype=np.float32), rng.integers(0, labels, count)
        with FlopCounterMode(display=False) as counter:
            functional.cross_entropy(module(inputs(x[:2])), torch.from_numpy(y[:2])).backward()
        flops = counter.get_total_flops() / 2
        trainer = Trainer(model, Training(0.01, batch), shape)
        row, own = trainer.given(0), np.arange(count)
        where = {"seed": 0, "round": 1, "device": 0, "epochs": EPOCHS, "samples": count}
        product, more = sgemm(flops * count * EPOCHS)
        variants = {
            "ours": lambda t=trainer, r=row, x=x, y=y, o=own, w=where: t.train(r.copy(), x, y, o, **w),
            "sgemm": product,
            "torch": eager(module, x, y, batch),
        }
        best = interleaved(variants, 3 if quick else 15)
        against, faster = best["ours"] / (best["sgemm"] / more), best["torch"] / best["ours"]
        each = best["ours"] / (count * EPOCHS) * 1e6
        print(f"| {name} | {batch} | {flops / 1e6:.3g} | {each:.3g} | {against:.2f} | {faster:.1f} |", flush=True)
        if flops >= 5e6 and batch >= 10:
            checks.append((f"{name}: at most 1.5x an sgemm of the same FLOPs", 1.5 / against, 1.0))
        elif flops < 1e6 or batch == 1:
            checks.append((f"{name}: x as fast as eager torch", faster, 5.0))
    conclude(checks)


if __name__ == "__main__":
    with threadpool_limits(1):
        main()
