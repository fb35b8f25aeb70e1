"""How often `fedfilt advise` is right: kinds of data whose answer is known, five seeds each.

The answers are those of trained models: a graph helps if models mixed along it do clearly better on a device's own test
than models mixed along the same links between other devices, and are about as good as fine-tuning or better.
Thresholds were chosen on seeds 101 to 103.

    python benchmarks/advice.py [--seeds 5] [--first-seed 0] [--kinds watch,hapt] [--dsads ZIP]
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import fedfilt

EXPERIMENTS = Path(__file__).resolve().parent.parent / "experiments"
MNIST = ["training.learning_rate=0.1", "samples.local_test=50", "samples.global_test=200"]
ROTATED = [*MNIST, "partition=rotated"]


class Kind(NamedTuple):
    """An experiment and the right answers: whether the given and the found graph help; None: there is no answer."""

    file: str
    overrides: list[str]
    given: bool | None
    found: bool | None


KINDS = {
    "rotated rooms": Kind("mnist_2.toml", ROTATED, True, True),
    "rotated rooms, shuffled": Kind("mnist_2.toml", [*ROTATED, "graph.shuffle=true"], False, True),
    "watch, person": Kind("watch.toml", ["graph.inside=true"], False, True),
    "dsads, person": Kind("dsads.toml", ["graph.inside=true"], False, True),
    "dsads, same place": Kind("dsads.toml", ["graph.between=same_place"], True, True),
    "hapt": Kind("hapt.toml", [], None, False),
    "MNIST_2": Kind("mnist_2.toml", MNIST, False, False),
    "MNIST_4": Kind("mnist_2.toml", [*MNIST, "partition.per_device=4"], False, False),
}


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--seeds", type=int, default=5)
    words.add_argument("--first-seed", type=int, default=0)
    words.add_argument("--kinds", default="", help="names, or beginnings of names, with commas between")
    words.add_argument("--dsads", default="", help="the archive of Daily and Sports Activities, if not in the cache")
    words.add_argument("--out", type=Path, help="a JSON file for what was found")
    given = words.parse_args()
    wanted = tuple(given.kinds.split(",")) if given.kinds else ("",)
    told: list[dict[str, Any]] = []
    right = asked = 0
    for name, kind in KINDS.items():
        if not name.startswith(wanted):
            continue
        for seed in range(given.first_seed, given.first_seed + given.seeds):
            more = [f"data.archive={given.dsads}"] if given.dsads and name.startswith("dsads") else []
            overrides = [*kind.overrides, *more, f"seed={seed}"]
            begun = time.perf_counter()
            advice = fedfilt.advise(fedfilt.load(EXPERIMENTS / kind.file, overrides))
            row: dict[str, Any] = {"kind": name, "seed": seed, "seconds": round(time.perf_counter() - begun, 1)}
            for graph in ("given", "found"):
                answer, truth = advice.why[graph], getattr(kind, graph)
                if truth is not None:
                    asked += 1
                    right += (answer == "helps") == truth
                row[graph] = answer + ("" if truth is None or (answer == "helps") == truth else " (wrong)")
            links = advice.found
            row |= {"labels": None if advice.labels is None else round(advice.labels, 2)}
            row |= {
                "more": None if links is None else round(links.more, 4),
                "sure": None if links is None else links.sure,
            }
            row |= {"again": advice.again, "rule": advice.rules[0]}
            told.append(row)
            print(json.dumps(row), flush=True)
    print(f"{right} of {asked} answers are right")
    if given.out:
        given.out.write_text(json.dumps({"right": right, "asked": asked, "rows": told}, indent=1))


if __name__ == "__main__":
    main()
