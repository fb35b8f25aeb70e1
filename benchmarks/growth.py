"""How the cost of a round grows with devices, samples and parameters; what a run spends outside the kernels; start-up.

Usage: python benchmarks/growth.py [--quick]
"""

import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from common import conclude, heading
from fedfilt import Graph, native
from fedfilt.aggregators import GFedFilt
from fedfilt.data.samples import FederatedData
from fedfilt.engines.local import Local
from fedfilt.filters import Tikhonov
from fedfilt.models import MLP, Logistic, PaperCNN
from fedfilt.rounds.types import Updates
from fedfilt.runs.build import Run
from fedfilt.runs.config import from_table
from fedfilt.runs.play import play_in_folder
from fedfilt.system.orders import Job, Plan
from fedfilt.training.sgd import Training
from fedfilt.training.trainer import Trainer


def a_round(devices, samples, model, shape, batch=32):
    """Best seconds of a round (train, mix) on one core."""
    rng = np.random.default_rng(0)
    pool = rng.standard_normal((1000, *shape), dtype=np.float32), rng.integers(0, 10, 1000)
    places = [rng.integers(0, 1000, samples) for _ in range(devices)]
    data = FederatedData("random", *pool, 10, tuple(places), None, np.arange(10))
    graph = Graph.nearest(rng.random((devices, 2)), 6) if devices > 20 else Graph.paper()
    rule, best = GFedFilt(Tikhonov(1.0)), math.inf
    training = Training(0.02, batch)
    with Local(data, model, training, workers=1) as engine:
        models = np.tile(Trainer(model, training, shape).start(0), (devices, 1))
        for _ in range(3):
            start = time.perf_counter()
            jobs = [Job(1, i, models[i], Plan(1)) for i in range(devices)]
            updates = Updates.stack(engine.train(jobs, math.inf), devices, models.shape[1])
            rule(models, updates, graph)
            best = min(best, time.perf_counter() - start)
    return best


def slope(name, sizes, seconds):
    steep = np.polyfit(np.log(sizes), np.log(seconds), 1)[0]
    print(f"| {name} | {', '.join(f'{s:,}' for s in sizes)} | {', '.join(f'{s:.3g}' for s in seconds)} | {steep:.2f} |")
    return steep


def mlp(hidden):
    return MLP((1, 28, 28), 10, hidden)


def outside(rounds):
    """Share of a run's time that is not spent in the kernels, with the default evaluation and checkpoints."""
    spent = 0.0
    real = native._call

    def timed(*arguments):
        nonlocal spent
        start = time.perf_counter()
        try:
            return real(*arguments)
        finally:
            spent += time.perf_counter() - start

    native._call = timed
    table = {"rounds": rounds, "samples": {"train": 45}, "engine": {"workers": 1}}
    with tempfile.TemporaryDirectory() as folder:
        run = Run(from_table(table))
        start = time.perf_counter()
        for _ in play_in_folder(run, Path(folder) / "run"):
            pass
        whole = time.perf_counter() - start
    native._call = real
    return 1 - spent / whole


def start_up(*arguments):
    command = [str(Path(sys.executable).with_name("fedfilt")), *arguments]
    best = math.inf
    for _ in range(7):
        start = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        best = min(best, time.perf_counter() - start)
    return best


def main():
    quick = "--quick" in sys.argv[1:]
    heading()
    print("| what grows | sizes | s a round | slope |\n|---|---|---|---|")
    small = Logistic((1, 8, 8), 10)
    devices = (20, 200, 2_000) if quick else (20, 200, 2_000, 20_000)
    steepest = [
        slope("devices (logistic 64-10, 45 samples)", devices, [a_round(k, 45, small, (1, 8, 8)) for k in devices]),
        slope(
            "samples of 20 devices (paper's CNN)",
            (45, 450, 4_500),
            [a_round(20, n, PaperCNN((1, 28, 28), 10), (1, 28, 28)) for n in (45, 450, 4_500)],
        ),
        slope(
            "parameters (784-h-10, h = 16 ... 1,024)",
            tuple(795 * h + 10 for h in (16, 128, 1_024)),
            [a_round(20, 100, mlp(h), (1, 28, 28)) for h in (16, 128, 1_024)],
        ),
    ]
    share = outside(20 if quick else 200)
    help_, info = start_up("--help"), start_up("info")
    print(f"\na run of {20 if quick else 200} rounds spends {share:.1%} outside the kernels")
    print(f"fedfilt --help {help_:.2f} s, fedfilt info {info:.2f} s")
    conclude(
        [
            ("cost grows no steeper than size^1.2", 1.2 / max(steepest), 1.0),
            ("at most 30 % outside the kernels", 0.3 / share, 1.0),
            ("fedfilt --help under 0.3 s", 0.3 / help_, 1.0),
            ("fedfilt info under 1 s", 1 / info, 1.0),
        ]
    )


if __name__ == "__main__":
    with threadpool_limits(1):
        main()
