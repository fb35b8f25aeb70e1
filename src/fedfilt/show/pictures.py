"""Pictures in the folder of a run or a comparison."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from plotly.offline import get_plotlyjs

from fedfilt._files import write_atomically
from fedfilt._reading import read, read_json
from fedfilt._types import Table
from fedfilt.runs.lines import TESTS, read_lines
from fedfilt.show.figures import accuracy_curves, label_counts
from fedfilt.training.goal import named


def write_pictures(folder: Path, runs: Mapping[str, Path] | None = None) -> None:
    """Write pictures of a run, or of several `runs` by name: labels per device, and accuracy against rounds."""
    places = runs or {"": folder}
    figures = folder / "figures"
    figures.mkdir(exist_ok=True)
    partition = read_json(next(iter(places.values())) / "partition.json")
    counts = partition.get("label_counts")  # unknown if devices have data of their own
    shown = {} if counts is None else {"labels": label_counts(np.array(counts))}
    tested = {
        name: [line["mixed"] | line for line in read_lines(place) if "mixed" in line] for name, place in places.items()
    }
    held_out = any("validation" in line for lines in tested.values() for line in lines)
    for test in TESTS if held_out else TESTS[:2]:
        curves = {
            name: np.array([(line["round"], line[test]["mean"]) for line in lines if test in line]).reshape(-1, 2)
            for name, lines in tested.items()
        }
        last: Table = next((lines[-1][test] for lines in tested.values() if lines and test in lines[-1]), {})
        metric = named(last.get("metric", "accuracy"), bool(last.get("lower")))
        shown[test] = accuracy_curves(curves, f"mean {metric.words} on the {test} test", metric)
    for name, figure in shown.items():
        write_page(figure, figures / f"{name}.html")


def write_page(figure: Any, path: Path, **options: Any) -> None:
    """A page with a figure, and plotly.js beside it; the folder may be somebody else's, as may a plotly.js in it."""
    write_atomically(path, figure.to_html(include_plotlyjs="directory", **options).encode())
    script, content = path.with_name("plotly.min.js"), get_plotlyjs().encode()
    try:
        known = read(script, len(content)) == content
    except OSError:
        known = False
    if not known:
        write_atomically(script, content)


def write_images(drawn: Sequence[Any], paths: Sequence[Path], **options: Any) -> None:
    """Figures as PNG, SVG or PDF, by the names of their files: drawn elsewhere, then put in their places."""
    import plotly.io

    with TemporaryDirectory() as place:
        made = [Path(place) / f"{number}{path.suffix}" for number, path in enumerate(paths)]
        plotly.io.write_images(list(drawn), made, **options)
        for one, path in zip(made, paths, strict=True):
            write_atomically(path, one.read_bytes())
