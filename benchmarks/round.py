"""The paper's round (20 devices x 450 samples x 3 epochs, batch 32) against a plain PyTorch loop and Keras `fit`.

All variants alternate in one run; each figure is the best of several. One core each, but for "fedfilt, 2 workers".
Keras takes part if TensorFlow is installed. Then the memory of training 1,000 devices.
Usage: python benchmarks/round.py [--quick]
"""

import copy
import math
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import fedfilt
from fedfilt.config import from_table
from fedfilt.rounds import Job, Plan
from fedfilt.runs import Run

EPOCHS, BATCH, RATE = 3, 32, 0.02


def naive(run):
    """A module, an optimiser and a DataLoader per device, as tutorials do it."""
    sets = [
        TensorDataset(torch.from_numpy(run.data.x[rows]).float() / 255, torch.from_numpy(run.data.y[rows]))
        for rows in run.data.train
    ]
    models = [copy.deepcopy(run.module) for _ in sets]

    def round():
        for model, samples in zip(models, sets, strict=True):
            optimiser = torch.optim.SGD(model.parameters(), lr=RATE)
            for _ in range(EPOCHS):
                for x, y in DataLoader(samples, batch_size=BATCH, shuffle=True):
                    optimiser.zero_grad()
                    functional.cross_entropy(model(x), y).backward()
                    optimiser.step()

    return round


def keras_fit(run):
    """The authors' way: a Keras model per device and its fit()."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    layers = tf.keras.layers
    models = []
    for _ in run.data.train:
        model = tf.keras.Sequential(
            [
                layers.Input((28, 28, 1)),
                layers.Conv2D(32, 3, 2, "same", activation="relu"),
                layers.MaxPooling2D(2),
                layers.Conv2D(64, 3, 2, "same", activation="relu"),
                layers.MaxPooling2D(2),
                layers.Flatten(),
                layers.Dense(128, activation="relu"),
                layers.Dense(10, activation="softmax"),
            ]
        )
        model.compile(tf.keras.optimizers.SGD(RATE), "sparse_categorical_crossentropy")
        models.append(model)
    sets = [
        (run.data.x[rows].transpose(0, 2, 3, 1).astype(np.float32) / 255, run.data.y[rows]) for rows in run.data.train
    ]

    def round():
        for model, (x, y) in zip(models, sets, strict=True):
            model.fit(x, y, batch_size=BATCH, epochs=EPOCHS, verbose=0)

    return round


def ours(run, engine):
    state = run.start()
    jobs = [Job(0, device, state.models[device], Plan(EPOCHS)) for device in range(run.graph.count)]
    return lambda: list(engine.train(jobs, math.inf))


def config(**changes):
    table = {"samples": {"train": 450, "local_test": 100, "global_test": 100}, "training": {"learning_rate": RATE}}
    return from_table({**table, **changes})


def peak_memory():
    """Largest memory (shared pages counted once) of a process with 2 workers that trains 1,000 devices for 2 rounds."""
    code = """
from pathlib import Path
from fedfilt.config import from_table
from fedfilt.runs import Run, play_in_folder
import sys
if __name__ == "__main__":
    samples = {"train": 45, "local_test": 20, "global_test": 100}
    graph = {"name": "nearest", "devices": 1000, "rooms": 200}
    table = {"graph": graph, "samples": samples, "rounds": 2, "engine": {"workers": 2}, "evaluation": {"every": 1}}
    run = Run(from_table(table))
    for line in play_in_folder(run, Path(sys.argv[1])):
        pass
"""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "many.py"
        script.write_text(code)
        process = subprocess.Popen([sys.executable, str(script), str(Path(folder) / "run")])
        peak = 0
        while process.poll() is None:
            peak = max(peak, sum(_proportional(pid) for pid in [process.pid, *_children(process.pid)]))
            time.sleep(0.2)
        assert process.returncode == 0
    return peak


def _children(pid):
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _proportional(pid):
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    except (OSError, StopIteration):
        return 0


def main():
    quick = "--quick" in sys.argv[1:]
    torch.set_num_threads(1)
    print(
        f"fedfilt {fedfilt.__version__}, torch {torch.__version__}, Python {platform.python_version()}, "
        f"{platform.processor() or platform.machine()}\n"
    )
    one, two = Run(config(engine={"workers": 1})), Run(config(engine={"workers": 2}))
    with one.engine() as alone, two.engine() as pair:
        variants = {
            "plain PyTorch loop": naive(one),
            "fedfilt, 1 worker": ours(one, alone),
            "fedfilt, 2 workers": ours(two, pair),
        }
        try:
            variants["Keras fit per device"] = keras_fit(one)
        except ImportError:
            print("TensorFlow is not installed: Keras `fit` is left out\n")
        best = dict.fromkeys(variants, math.inf)
        for repetition in range(3 if quick else 7):
            for name, round in variants.items():
                start = time.perf_counter()
                round()
                if repetition:  # the first is for warming up
                    best[name] = min(best[name], time.perf_counter() - start)
    for name, seconds in best.items():
        print(f"{name:22} {seconds:7.3f} s a round   {seconds / best['fedfilt, 1 worker']:6.2f}x")
    checks = [
        ("1 worker at least 1.5x as fast as a plain loop", best["plain PyTorch loop"] / best["fedfilt, 1 worker"], 1.5),
        ("2 workers at least 1.8x as fast as 1", best["fedfilt, 1 worker"] / best["fedfilt, 2 workers"], 1.8),
    ]
    peak = peak_memory()
    print(f"\n1,000 devices of the paper's CNN, 2 workers: peak {peak / 1e9:.2f} GB\n")
    checks.append(("1,000 devices in under 3 GB", 3e9 / peak, 1.0))
    for text, found, wanted in checks:
        print(f"{'holds ' if found >= wanted else 'FAILS '} {text}: {found:.2f}")
    sys.exit(not all(found >= wanted for _, found, wanted in checks))


if __name__ == "__main__":
    main()
