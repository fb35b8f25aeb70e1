"""Several runs side by side: the folder of a comparison."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedfilt import _parts
from fedfilt._brief import lines_of
from fedfilt._types import Table
from fedfilt.runs.history import frame_of, rows_of
from fedfilt.runs.records import Records, find_runs


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """The runs in a folder, together or one by one (`for run in comparison`).

    >>> import fedfilt, tempfile
    >>> table = {"data": "digits", "model": "logistic", "rounds": 1, "samples": {"train": 9, "local_test": 9}}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = fedfilt.compare(table, rules="fedavg,local", folder=folder, engine={"workers": 1})
    ...     [records.name for records in Comparison.of(folder)]
    ['fedavg', 'local']
    """

    folder: Path
    runs: tuple[Records, ...]

    @classmethod
    def of(cls, folder: str | Path) -> "Comparison":
        """The runs in a folder; ValueError if there is none."""
        runs = tuple(run for run in find_runs([folder]) if run.config)
        if not runs:
            raise ValueError(f"{folder} holds no run: there is no config.toml in it or in folders below it")
        return cls(Path(folder), runs)

    def __iter__(self) -> Iterator[Records]:
        return iter(self.runs)

    def __len__(self) -> int:
        return len(self.runs)

    def history(self, devices: bool = False) -> Any:
        """All rounds of all runs as a data frame: columns run, rule and seed, then those of `Records.history`."""
        return frame_of(_told(run) | row for run in self.runs for row in rows_of(run.rounds, devices))

    def table(self) -> Any:
        """The last tested round of every run as a data frame: one row per run, columns as in `history`."""
        tested = [(run, [line for line in run.rounds if line.get("mixed")]) for run in self.runs]
        return frame_of(_told(run) | row for run, lines in tested for row in rows_of(lines[-1:]))

    def plot(self, test: str = "local", against: str = "rounds") -> Any:
        """Mean accuracy over devices as a Plotly figure with one curve per rule; see `Records.plot`."""
        return _parts.figure("accuracy")(self.runs, test, against)

    def __repr__(self) -> str:
        words = ", ".join(f"{run.name} {_last(run)}" for run in self.runs)
        return lines_of(
            f"Comparison of {len(self.runs)} run{'s' * (len(self.runs) != 1)} in {self.folder}",
            f"  local test: {words}",
        )


def _told(run: Records) -> Table:
    return {"run": run.name, "rule": run.rule, "seed": run.seed}


def _last(run: Records) -> str:
    tested = run.tested("local")
    return f"{tested[-1]['mixed']['local']['mean']:.4g}" if tested else "not tested"
