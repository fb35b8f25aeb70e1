"""The store of results: a small file per run, named by what it is and by the hash of its experiment."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedfilt._reading import read_json
from fedfilt._types import Array
from fedfilt._version import __version__
from fedfilt.paper._cases import Case, Scope
from fedfilt.runs.lines import read_lines

FORMAT = 1
CURVE = "curve.jsonl"  # in the folder of a run whose curve is drawn


class OtherVersion(ValueError):
    """A store that another version of fedfilt has written."""


@dataclass(frozen=True)
class Results:
    """The records of runs in a folder, as far as they are there."""

    folder: Path
    scope: Scope = Scope()
    _read: dict[str, dict[str, Any]] = field(default_factory=dict)

    def path(self, case: Case) -> Path:
        """Where the record of a run is kept."""
        return self.folder / f"{case.name}-{case.key}.json"

    def record(self, case: Case) -> dict[str, Any] | None:
        """The record of a run, None if it has not been made."""
        if case.key not in self._read:
            try:
                found = read_json(self.path(case))
            except FileNotFoundError:
                return None
            except ValueError as error:
                raise ValueError(f"{self.path(case)} is damaged ({error}); delete it to compute it again") from None
            check_format(self.path(case), found)
            self._read[case.key] = found
        return self._read[case.key]

    def forget(self, case: Case) -> None:
        """Read the record again when it is wanted next: it may be another one now."""
        self._read.pop(case.key, None)

    def check_version(self, cases: Iterable[Case]) -> None:
        """Refuse to mix new results with those of another version."""
        for case in cases:
            found = self.record(case)
            if found is not None and found["environment"]["fedfilt"] != __version__:
                raise OtherVersion(
                    f"{self.folder} holds results of fedfilt {found['environment']['fedfilt']}, this is {__version__}; "
                    "choose a new --store, or delete the old one to compute everything again"
                )

    def missing(self, cases: Iterable[Case]) -> list[Case]:
        """Those without a record, or without the curve that a picture shows, each once."""
        return [case for case in dict.fromkeys(cases) if not self.complete(case)]

    def complete(self, case: Case) -> bool:
        """Whether nothing of a run is left to compute."""
        found = self.record(case)
        return found is not None and ("drawn" in found or not case.drawn)

    def seeds(self, case: Case) -> list[dict[str, Any]]:
        """The records of a case over its seeds, as far as they are there."""
        size = dict(self.scope.sizes)
        cases = self.scope.seeds(case) if case.samples in size else []
        return [found for one in cases if (found := self.record(one)) is not None]

    def values(self, case: Case, test: str, key: str, round: int = 0) -> dict[int, float]:
        """A score in percent by seed: after the last round, or after the given one."""
        return {r["seed"]: 100 * score_at(r, round)[test][key] for r in self.seeds(case)}

    def curve(self, case: Case, test: str, key: str = "mean", often: bool = False) -> Array:
        """(tests, 2 + seeds): round, mean over seeds, and each seed's score in percent; `often` as pictures show it."""
        records = self.seeds(case)
        if not records:
            return np.zeros((0, 2))
        if often:
            rounds = records[0]["drawn"]["round"]
            scores = 100 * np.array([record["drawn"][f"{test} {key}"] for record in records]).T
        else:
            rounds = [point["round"] for point in records[0]["curve"]]
            scores = np.array([[100 * point[test][key] for point in record["curve"]] for record in records]).T
        return np.column_stack([rounds, scores.mean(axis=1), scores])

    def often(self, cases: Iterable[Case]) -> bool:
        """Whether all curves of a picture can be drawn from the same rounds: every few, from before the first."""
        return all("drawn" in record for case in cases for record in self.seeds(case))


def check_format(path: Path, record: Any) -> None:
    """Refuse a file that this version cannot read."""
    got = record.get("format") if isinstance(record, Mapping) else None
    if got != FORMAT:
        raise OtherVersion(
            f"{path} is of format {got}, this version reads {FORMAT}: it was written by another version of fedfilt; "
            "choose a new --store, or delete the old one to compute everything again"
        )


def score_at(record: Mapping[str, Any], round: int = 0) -> dict[str, Any]:
    """What was measured after a round (0: the last)."""
    for point in record["curve"]:
        if point["round"] == (round or record["curve"][-1]["round"]):
            return dict(point)
    raise ValueError(f"{record['name']} was not tested after round {round}")


def drawn_of(folder: Path, seconds: Mapping[int, float]) -> dict[str, dict[str, list[float]]]:
    """The curve of a run, column by column, if it has one (see `fedfilt.paper._watching`), with simulated seconds."""
    path = folder / CURVE
    if not path.exists():
        return {}
    points = {point["round"]: point for point in map(json.loads, path.read_text().splitlines())}  # some came twice
    ordered = [{**points[round], "seconds": float(f"{seconds[round]:.7g}")} for round in sorted(points)]
    return {"drawn": {key: [point[key] for point in ordered] for key in ordered[0]}}


def record_of(case: Case, folder: Path) -> dict[str, Any]:
    """The record of a finished run, from its folder: what items need, without models."""
    result = read_json(folder / "result.json")
    environment = read_json(folder / "environment.json")
    totals = dict.fromkeys(("flops", "latency", "desync", "joules", "bytes"), 0.0)
    curve, seconds = [], {0: 0.0}
    for line in read_lines(folder):
        for key in totals:
            totals[key] += line["time"][key]
        seconds[line["round"]] = totals["latency"]
        if "mixed" in line:
            point: dict[str, Any] = {"round": line["round"]}
            for test, scores in line["mixed"].items():
                keep = ("mean", "std", "worst", "I_1", "I_2", "I_3", "I_4")
                point[test] = {key: round(scores[key], 6) for key in keep}
            point["totals"] = {key: float(f"{value:.7g}") for key, value in totals.items()}
            curve.append(point)
            last = line["mixed"]
    hidden = ("platform", "processor", "seed")
    return {
        "format": FORMAT,
        "name": case.name,
        "key": case.key,
        "seed": case.seed,
        "wall_seconds": result["wall_seconds"],
        "environment": {key: value for key, value in environment.items() if key not in hidden},
        "models_sha256": result["models_sha256"],
        "curve": curve,
        **drawn_of(folder, seconds),
        "devices": {test: [value and round(value, 4) for value in scores["devices"]] for test, scores in last.items()},
    }
