"""Testing the paper's CNN on MNIST's test pictures against an sgemm of the same FLOPs and eager torch.

All variants alternate in one run, on one core, a thousand pictures at a time: short enough that others on the machine
leave the best of many turns alone. Usage: python benchmarks/forward.py [--quick]
"""

import sys

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch.utils.flop_counter import FlopCounterMode

from common import conclude, heading, interleaved, sgemm
from fedfilt.runs.build import Run
from fedfilt.runs.config import from_table
from fedfilt.training.work import Desk, Own, examine


def main():
    quick = "--quick" in sys.argv[1:]
    torch.set_num_threads(1)
    heading()
    sizes = {"train": 45, "local_test": "whole", "global_test": "whole"}
    run = Run(from_table({"samples": sizes, "engine": {"workers": 1}}))
    config, data, module = run.config, run.data, run.trainer.module
    desk = Desk.of(data, run.model, config.training, config.seed, config.sparsifier, config.client)
    row, rows = run.start().models[0], data.global_test[::10]
    plain = Own(data.x, data.y, rows)
    grey = Own(np.maximum(data.x[rows], 1), data.y[rows], np.arange(len(rows)))  # no black background
    x, y = torch.from_numpy(data.x[rows]).float() / 255, torch.from_numpy(data.y[rows])

    @torch.no_grad()
    def eager():
        for first in range(0, len(x), 64):
            part = slice(first, first + 64)
            torch.nn.functional.cross_entropy(module(x[part]), y[part])

    with FlopCounterMode(display=False) as counter:
        module(x[:1])
    flops = counter.get_total_flops() * len(x)
    yardstick, more = sgemm(flops)
    variants = {
        "sgemm, same FLOPs": yardstick,
        "fedfilt": lambda: examine(row, plain, desk),
        "fedfilt, pictures without black": lambda: examine(row, grey, desk),
        "eager torch, batches of 64": eager,
    }
    best = interleaved(variants, 20 if quick else 150)
    best["sgemm, same FLOPs"] /= more
    floor, fast = best["sgemm, same FLOPs"], best["fedfilt"]
    print(f"{flops / 1e9:.2f} GFLOP to test a model on {len(x):,} pictures\n")
    print("| | us a picture | x sgemm |\n|---|---|---|")
    for name, seconds in best.items():
        print(f"| {name} | {1e6 * seconds / len(x):.2f} | {seconds / floor:.2f} |")
    conclude(
        [
            ("at most 0.8x an sgemm of the same FLOPs", 0.8 * floor / fast, 1.0),
            ("x as fast as eager torch", best["eager torch, batches of 64"] / fast, 3.0),
        ]
    )


if __name__ == "__main__":
    with threadpool_limits(1):
        main()
