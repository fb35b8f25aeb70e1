"""The cost of making a device's work a part: the paper's job by a client against the same calls by hand, and Ditto.

Usage: python benchmarks/clients.py [--samples 45] [--turns 300]
"""

import argparse

import numpy as np

from common import conclude, heading, interleaved
from fedfilt.clients import Ditto, Plain
from fedfilt.models import PaperCNN
from fedfilt.sparsifiers import TopK
from fedfilt.system.orders import Job, Plan
from fedfilt.training.sgd import Training
from fedfilt.training.trainer import Trainer
from fedfilt.training.work import Desk, Own, work


def by_hand(job, own, desk, row):
    """The same job without a client: train, subtract, pack."""
    row[:] = job.model
    samples = job.plan.samples(len(own.rows))
    where = {"seed": desk.seed, "round": job.round, "device": job.device}
    desk.trainer.train(row, *own, **where, epochs=job.plan.epochs, samples=samples)
    row -= job.model
    return desk.sparsifier(row, None, job.plan.density)


def main(samples, turns):
    heading()
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (samples, 1, 28, 28), dtype=np.uint8)
    y = rng.integers(0, 10, len(x))
    trainer = Trainer(PaperCNN((1, 28, 28), 10), Training(), (1, 28, 28))
    first, row = trainer.start(0), np.empty(trainer.layout.size, np.float32)
    own, job = Own(x, y, np.arange(samples)), Job(1, 0, first, Plan(epochs=3))

    def job_of(client, do=work):
        desk = Desk(trainer, TopK(), 0, 10, client)
        return lambda: do(job, own, desk, row)

    rivals = {"by hand": job_of(Plain(), by_hand), "plain": job_of(Plain()), "ditto": job_of(Ditto())}
    best = interleaved(rivals, turns)  # one job at a time: short enough for a busy machine
    print(f"| job of a device with {samples} samples, one core | ms | times |\n|---|---|---|")
    for name, seconds in best.items():
        print(f"| {name} | {1000 * seconds:.2f} | {seconds / best['by hand']:.3f} |")
    conclude(
        [
            ("1.02 less the plain client in jobs by hand", 1.02 - best["plain"] / best["by hand"], 0),
            ("2.1 less Ditto in jobs of the plain client", 2.1 - best["ditto"] / best["plain"], 0),
        ]
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=45)
    parser.add_argument("--turns", type=int, default=300)
    given = parser.parse_args()
    main(given.samples, given.turns)
