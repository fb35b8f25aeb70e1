"""The runs behind the items: what is trained, how often it is tested, and about how long that takes."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from fedfilt._checks import check_choice, check_count
from fedfilt.runs.rules import aggregator_table

STRENGTHS = ("mu=0.1", "mu=1", "mu=10", "mu=100")
TABLE = ("fedavg", *STRENGTHS)  # the rows of the paper's tables
SETS = ("mnist_10", "mnist_4", "mnist_2", "writers")  # their columns; digits by writer stand in for EMNIST
SIZES = {45: 5, 450: 5}  # training samples per device: number of seeds
POPULATIONS = {0.31: 1.92, 0.54: 3.17, 0.65: 6.83}  # heterogeneity H: latency of the slowest device / the fastest
# How the deadline is set, and whether devices end at it (C1 of P') or by it (C1 of P)
SCHEDULES = {
    "`slowest_minimum`": ("slowest_minimum", False),
    "`fastest_full`, = T": ("fastest_full", True),
    "`fastest_full`, <= T": ("fastest_full", False),
}
QUICK = 10  # rounds
OFTEN = 5  # rounds between the points of a curve, which begins before the first
PART = 2000  # of the test pictures: what curves are tested on

_DATA: dict[str, tuple[str, dict[str, Any]]] = {
    "mnist_10": ("mnist", {"name": "labels", "per_device": 10}),
    "mnist_4": ("mnist", {"name": "labels", "per_device": 4}),  # also the paper's Setup 2
    "mnist_2": ("mnist", {"name": "labels", "per_device": 2}),
    "setup_1": ("mnist", {"name": "room_labels", "per_device": 4, "shared": 3}),
    "writers": ("mnist_writers", {"name": "writers", "similar_rooms": True}),
    "writers_at_random": ("mnist_writers", {"name": "writers", "similar_rooms": False}),
    "emnist": ("emnist", {"name": "labels", "per_device": 10}),
    "femnist": ("femnist", {"name": "writers", "similar_rooms": True}),
}


@dataclass(frozen=True)
class Case:
    """One run, named by all that matters. With a heterogeneity H > 0, costs and a schedule by that deadline rule.

    >>> Case("mnist_2", "mu=10", seed=3).name
    'mnist_2-45-mu=10-rounds-200-seed-3'
    """

    data: str = "mnist_2"
    rule: str = "fedavg"
    samples: int = 45
    rounds: int = 200
    seed: int = 0
    signal: str = "models"  # or "updates": what G-Fedfilt filters
    heterogeneity: float = 0.0
    deadline: str = ""  # no schedule: every device does everything
    equality: bool = False  # devices end at the deadline, as C1 is printed, not only by it
    density: float = 1.0  # without a schedule: the share of an update that is sent
    feedback: bool = True  # what is not sent is added to the next update
    shuffled: bool = False  # the graph's links given to other devices
    weights: str = "trained"  # or "held": the samples that a device counts for
    model: str = "paper_cnn"
    variability: float = 0.0  # spread of a device's speed and rate from round to round
    energy: float = 0.0  # joules that a device may spend in a round; 0: as many as it likes

    def __post_init__(self) -> None:
        check_choice("data of a case", self.data, _DATA)

    @property
    def source(self) -> str:
        """The data set it needs."""
        return _DATA[self.data][0]

    @property
    def every(self) -> int:
        """Rounds between tests on everything: as few as its items need, for testing costs more than training."""
        if self.model != "paper_cnn" or self.variability or (self.deadline and not self.heterogeneity):
            return self.rounds
        if self.heterogeneity:
            half = max(1, self.rounds // 2)
            drawn = (self.equality or not self.deadline) and half % 5 == 0  # against simulated seconds
            return self.rounds if self.density < 1 else half // 5 if drawn else half
        if self.rule == "fedavg":
            return max(5, self.rounds // 20)  # one model for all devices: tested in a twentieth of the time
        drawn = self.data in ("mnist_2", "mnist_4", "setup_1") or self.rule == "mu=1e4"
        return max(5, self.rounds // 10) if drawn and self.samples == 45 and self.rule != "local" else self.rounds

    @property
    def drawn(self) -> bool:
        """Whether a picture shows its curve: then it is tested every `OFTEN` rounds too, on a part of the test set."""
        if self.samples != 45 or self.shuffled or self.weights != "trained" or self.every == self.rounds:
            return False
        if self.heterogeneity:
            return True
        limit = self.data in ("writers", "mnist_2") and self.rule in ("fedavg", "mu=1e4")
        return limit or self.data in ("mnist_2", "mnist_4", "setup_1")

    @property
    def name(self) -> str:
        """Readable, and different for different cases."""
        words = [self.data, str(self.samples), self.rule, "updates" if self.signal == "updates" else ""]
        words += [f"H-{self.heterogeneity}" if self.heterogeneity else "", self.deadline]
        words += ["equality" if self.equality else "", f"density-{self.density}" if self.density < 1 else ""]
        words += ["" if self.feedback else "no-feedback", "shuffled" if self.shuffled else ""]
        words += [self.weights if self.weights != "trained" else "", self.model if self.model != "paper_cnn" else ""]
        words += [f"varying-{self.variability}" if self.variability else ""]
        words += [f"energy-{self.energy}" if self.energy else ""]
        return "-".join(word for word in [*words, f"rounds-{self.rounds}", f"seed-{self.seed}"] if word)

    def table(self) -> dict[str, Any]:
        """The experiment, with every key that its numbers depend on."""
        source, partition = _DATA[self.data]
        if partition["name"] == "writers":
            partition = {**partition, "per_device": max(1, self.samples // 90)}  # a writer has about 111 digits
        aggregator = aggregator_table(self.rule)
        if "filter" in aggregator:
            aggregator["signal"] = self.signal
        table: dict[str, Any] = {
            "seed": self.seed,
            "rounds": self.rounds,
            "data": {"name": source},
            "partition": partition,
            "samples": {"train": self.samples, "local_test": "whole", "global_test": "whole"},
            "graph": {"name": "paper"},
            "model": {"name": self.model},
            "training": {"learning_rate": 0.02, "batch_size": 32, "momentum": 0.0, "decay": 1.0},
            "scheduler": {"name": "everything", "epochs": 3, "data_fraction": 1.0, "density": 1.0},
            "aggregator": aggregator,
            "evaluation": {"every": self.every, "trained": False},
        }
        if self.heterogeneity or self.deadline:
            table["devices"] = self._devices()
            table["sparsifier"] = {"name": "top_k", "error_feedback": self.feedback}
            table["scheduler"]["density"] = self.density
            if self.deadline:
                table["scheduler"] = {"name": "same_deadline", "deadline": self.deadline}
        if self.equality:
            table["scheduler"]["equality"] = True
        if self.shuffled:
            table["graph"]["shuffle"] = True
        if self.weights != "trained":
            table["weights"] = self.weights
        return table

    def _devices(self) -> dict[str, Any]:
        """The population: of a prescribed heterogeneity, or else drawn from the paper's table of parameters."""
        if not self.heterogeneity:
            return {"name": "paper", **({"energy_limit": self.energy} if self.energy else {})}
        found = {"name": "prescribed", "heterogeneity": self.heterogeneity, "ratio": POPULATIONS[self.heterogeneity]}
        return found | ({"variability": self.variability} if self.variability else {})

    @property
    def key(self) -> str:
        """Hash of the experiment: the same run has the same key, whoever asks for it, drawn as a curve or not."""
        return hashlib.sha256(json.dumps(self.table(), sort_keys=True).encode()).hexdigest()[:16]

    @property
    def seconds(self) -> float:
        """About how many seconds of one core it takes with the compiled training core.

        Fitted to the runs in results/paper, which shared their cores with other work: alone they take about half.
        """
        work = {"": 1.0, "slowest_minimum": 0.35, "fastest_full": 0.9}[self.deadline]
        trained = 20 * self.samples * 3 * self.rounds * work
        pictures = -(-self.rounds // self.every) * 10_000 + ((self.rounds // OFTEN + 1) * PART if self.drawn else 0)
        light = 0.15 if self.model == "mlp" else 1.0
        return 16 + light * (4.1e-6 * trained + 7.6e-6 * pictures * (1 if self.rule == "fedavg" else 20))


@dataclass(frozen=True)
class Scope:
    """How much is computed: rounds, and for each size (training samples per device) a number of seeds.

    >>> Scope.of(quick=True).sizes
    ((45, 1), (450, 1))
    """

    rounds: int = 200
    sizes: tuple[tuple[int, int], ...] = tuple(SIZES.items())

    @classmethod
    def of(cls, seeds: int = 0, rounds: int = 0, quick: bool = False, samples: int = 0) -> "Scope":
        """From the options of the command; 0: the paper's rounds and its five seeds."""
        if samples and samples not in SIZES:
            raise ValueError(f"samples must be {' or '.join(map(str, SIZES))}, got {samples}")
        check_count("rounds", rounds, low=0)
        check_count("seeds", seeds, low=0)
        chosen = {size: seeds or (1 if quick else number) for size, number in SIZES.items() if samples in (0, size)}
        return cls(rounds or (QUICK if quick else 200), tuple(chosen.items()))

    @property
    def small(self) -> int:
        """The size for items that need only one."""
        return self.sizes[0][0]

    def seeds(self, case: Case) -> list[Case]:
        """The case with every seed of its size."""
        return [replace(case, seed=seed) for seed in range(dict(self.sizes)[case.samples])]

    def grid(self, sets: Iterable[str], rules: Iterable[str], **options: Any) -> list[Case]:
        """Every data set under every rule, at the small size, with every seed."""
        given = {"samples": self.small, "rounds": self.rounds, **options}
        return [one for data in sets for rule in rules for one in self.seeds(Case(data, rule, **given))]
