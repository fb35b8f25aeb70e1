"""What a round costs if a tenth of 1,000 devices takes part, compared with all of them: time and memory.

Every device holds some of 20,000 random images and trains the paper's CNN on them; G-Fedfilt mixes all 1,000 models.
Rounds of both take turns, on one core, without tests and checkpoints, which cost the same for any fraction. Seconds are
those of the processor, so that others on the machine count little. Memory is the peak of a process of its own, with all
packages.
Usage: python benchmarks/participation.py [--devices 1000] [--samples 100] [--fraction 0.1] [--rounds 3]
           [--rule gfedfilt]
"""

import argparse
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np

from common import conclude, heading, peak_memory
from fedfilt.data import FederatedData
from fedfilt.rounds.play import play
from fedfilt.runs.build import Run
from fedfilt.runs.config import from_table

POOL, BEGIN = 20_000, 3  # images; rounds until memory has its full size


def run_of(options, fraction):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (POOL, 1, 28, 28), np.uint8)
    train = tuple(rng.integers(0, POOL, options.samples) for _ in range(options.devices))
    data = FederatedData("random", x, rng.integers(0, 10, POOL), 10, train, None, np.arange(100))
    table = {
        "graph": {"name": "nearest", "rooms": options.devices // 5, "devices": options.devices},
        "rounds": 10_000,
        "evaluation": {"every": 10_000},
        "engine": {"workers": 1},
        "aggregator": options.rule,
        "participation": {"fraction": fraction},
    }
    return Run(from_table(table), data=data)


class Timed:
    """An engine that keeps the seconds of training, round by round."""

    def __init__(self, inner):
        self._inner, self.seconds, self.test = inner, 0.0, inner.test

    def train(self, jobs, deadline):
        start = time.process_time()
        replies = list(self._inner.train(jobs, deadline))
        self.seconds = time.process_time() - start
        return replies


def memory(options):
    """The peak of this process in some rounds, in MB."""
    run = run_of(options, options.memory)
    Path("/proc/self/clear_refs").write_text("5")  # the peak of building the run does not count
    with run.experiment() as experiment:
        rounds = play(run.start(), experiment)
        for _ in range(BEGIN + 1):
            next(rounds)
    print(peak_memory() // 2**20)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=1000)
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--fraction", type=float, default=0.1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rule", default="gfedfilt")
    parser.add_argument("--memory", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory:
        memory(options)
        return
    heading()
    fractions = (options.fraction, 1.0)
    took = {fraction: [] for fraction in fractions}  # (the whole round, training) of each
    with ExitStack() as stack:
        played = {}
        for fraction in fractions:
            run = run_of(options, fraction)
            experiment = stack.enter_context(run.experiment())
            engine = Timed(experiment.engine)
            played[fraction] = engine, play(run.start(), replace(experiment, engine=engine))
        for number in range(BEGIN + options.rounds):
            for fraction, (engine, rounds) in played.items():
                start = time.process_time()
                next(rounds)
                if number >= BEGIN:
                    took[fraction].append((time.process_time() - start, engine.seconds))
    words = [sys.executable, __file__, *sys.argv[1:]]
    print(f"{options.devices} devices with {options.samples} samples, {options.rule}, a round:")
    for fraction in fractions:
        peak = int(subprocess.run([*words, "--memory", str(fraction)], capture_output=True, check=True).stdout)
        whole, training = min(took[fraction])
        parts = f"{training:.3f} s training and {whole - training:.3f} s the rest"
        print(f"{fraction:6.0%}: {whole:.3f} s, {parts}; {peak} MB")
    (few, training), (everybody, all_training) = (min(took[fraction]) for fraction in fractions)
    conclude(
        [
            ("training of all takes so many times as long", all_training / training, 0.8 / options.fraction),
            ("a round of all takes so many times as long", everybody / few, 0.4 / options.fraction),
        ]
    )


if __name__ == "__main__":
    main()
