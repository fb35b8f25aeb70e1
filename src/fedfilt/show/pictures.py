"""Pictures in the folder of a run or a comparison."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedfilt._reading import read_json
from fedfilt.runs.lines import TESTS, read_lines
from fedfilt.show.figures import accuracy_curves, label_counts


def write_pictures(folder: Path, runs: Mapping[str, Path] | None = None) -> None:
    """Pictures of a run, or of several `runs` by name: who holds which labels, and accuracy against rounds."""
    places = runs or {"": folder}
    figures = folder / "figures"
    figures.mkdir(exist_ok=True)
    partition = read_json(next(iter(places.values())) / "partition.json")
    counts = partition.get("label_counts")  # not known where devices have data of their own
    shown = {} if counts is None else {"labels": label_counts(np.array(counts))}
    tested = {
        name: [line["mixed"] | line for line in read_lines(place) if "mixed" in line] for name, place in places.items()
    }
    for test in TESTS:
        curves = {
            name: np.array([(line["round"], line[test]["mean"]) for line in lines if test in line]).reshape(-1, 2)
            for name, lines in tested.items()
        }
        shown[test] = accuracy_curves(curves, f"mean accuracy on the {test} test")
    for name, figure in shown.items():
        figure.write_html(figures / f"{name}.html", include_plotlyjs="directory")
