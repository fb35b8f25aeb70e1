"""The page docs/paper.md from the items, and their pictures."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedfilt.paper import emnist
from fedfilt.paper._items import Item, Maker
from fedfilt.paper._printed import FIGURES
from fedfilt.paper._results import Results
from fedfilt.paper._tables import size_words
from fedfilt.show.pictures import write_images, write_page

ENDINGS = ("png", "svg", "pdf")
DOTS_PER_INCH = 300

HEAD = """# Reproducing the paper

This page reproduces every table and figure of *Graph Federated Learning for CIoT Devices in Smart Home Applications*
(Rasti-Meymandi et al., 2022) next to the printed numbers. Do not edit it: `fedfilt paper all` makes it from result
files, one per run, and a test checks that it matches them.

**The runs.** 20 devices on the paper's graph train its CNN ('same' padding, 53,002 parameters) with batches of 32, a
learning rate of 0.02, three local epochs and a Glorot initial model. Every label is held by at least one
device, and no sample by two. G-Fedfilt filters the models, weighted by samples.

**The tests** use all of MNIST's test set, after mixing. The local test is the mean recall over a device's own labels
(for digits by writer: the writer's digits that were not trained on). Digits by writer, which stand in for EMNIST, are
MNIST with QMNIST's writers: a device has one writer (five at 450 samples), and writers with a similar style share a
room, so that the graph knows something about them; in the controls, writers are placed at random. The paper states 450
training samples per device; this page also has 45, and the last item says which is closer to the paper's numbers.

**The numbers** are percentages after the last round, mean ± standard deviation over seeds. "Between devices" is the
standard deviation over the 20 devices, averaged over seeds; the paper's ± is of that kind. "To FedAvg" is the
difference on the same data, initial model and batches, mean ± standard deviation over seeds. A difference *reproduces*
if it has the paper's sign in every seed, *does not reproduce* if it has that sign in no seed or is below 0.1 points in
all of them, and is *unclear* if seeds disagree."""

SLIPS = """## Slips in the paper

These were found while reproducing it. Where they matter, the software follows the reading that works, and says so.

* The text has "up to 6.12 % for MNIST_2" on the local test; the table gives 95.62 - 79.50 = 16.12. The abstract's "up
  to 3.99 %" fits μ = 10 (83.49 - 79.50).
* The abstract has a latency of "44.61 %"; the table gives 47.61 % (400 rounds, H = 0.31: 680.34 to 356.46 s).
* The abstract joins computation "up to 70.21 %" and "the cost of 0.36 % accuracy". The table has 0.36 points at
  H = 0.31 (400 rounds). Under `fastest_full`, less computation goes with a larger H, where it has 1.76 (0.54) and 4.96
  points (0.65).
* "As the cut-off frequency decreases, so does the domain-agnostic" is the wrong way round: it increases.
* The aggregation rule as printed, H diag(κ) G with κ = 1/K and V of unit length, is K times too small: μ → ∞ gives
  FedAvg / K. The appendix hides that by writing the first column of V as ones.
* With unequal data sizes, rows no longer sum to 1 in the printed order (weights inside, filter outside).
* The equations filter updates, but the authors' program filters models; the tables fit the program.
* Algorithm 1 broadcasts the whole filtered matrix. Anyone who holds it can invert the filter and read every other
  device's update, although a device needs only its own row.
* Problem P'' is called convex, but α and q are multiplied in the computation time. For whole α it can be solved exactly
  without a solver.
* P asks devices to end by T, P' to end exactly at T, and the text uses both. Under `fastest_full` they differ: see
  the desynchronisation rows.
* With the printed minima (1, 0.3, 0.1) and baseline (3, 1, 1) the printed T_opt cuts latency by exactly 90 % for any
  devices. The table's deadline looks more like the fastest device doing everything: latency minus desynchronisation is
  181.9, 208.8 and 147.9 s before the schedule (H = 0.31, 0.54, 0.65; 200 rounds) and 181.3, 207.4 and 146.8 s after
  it.
* The printed parameters give about 16 s over 200 rounds, not 349 s, and "channel gain U(1, 2) dB" means a
  signal-to-noise ratio of 144 dB.
* ρ is U(1, 3.5) cycles per sample in the text and U(1, 5)·10⁴ in the table.
* The 400-round sums of seconds are not twice the 200-round ones: something varies from round to round, but the paper
  does not say what.
* H is defined for psi = 1 and chi = 1 (one sample, one byte). The ratios in its table fit H of full settings, of which
  random draws from the parameter table give at most 0.34; drawn for one sample and one byte, H is rarely below 0.35.
* "[.]" in psi is not defined, and chi counts only values, although sparse entries need their positions too.
* E_max, the learning rate, the batch size, the seeds and the padding of the CNN are not given (53,002 parameters with
  'same', 28,426 with 'valid').
* The highest frequency of the experiment graph is 8.028, but the text says 8.06; rooms hold five devices each, but
  the text draws 4 to 7.
* The local test of FedAvg has a spread between devices of 4.84 on MNIST_10, where all devices have all labels and one
  model: most of that is the noise of 100 test samples (3.5 points), and it is larger than most differences in the
  table.
* On the global test of MNIST_2 the paper has 78.45 at μ = 10, 74.95 at μ = 100 and 76.04 for FedAvg, although
  these filters make nearly the same models. This is more likely a difference between runs than between rules."""


def page(chosen: Sequence[Maker], made: Mapping[str, Item], results: Results, ending: str = "png") -> str:
    """All items on one page of Markdown: a function of the results."""
    parts = [HEAD, f"This page has {size_words(results)}. {_provenance(chosen, results)}"]
    for one in chosen:
        parts += [f"## {one.title} ({one.place})", made[one.name].text]
        for name in made[one.name].figures:
            path = f"paper/{name}.{ending}"
            vectors = ", ".join(f"[{other.upper()}](paper/{name}.{other})" for other in ENDINGS[1:])
            shown = f"![{one.title}]({path})\n\n*To print: {vectors}*"
            parts.append(shown if ending == "png" else f"[Picture: {name}]({path})")
            if name in FIGURES:
                parts.append(f"The paper's figure: {FIGURES[name]}")
        if one.cases(results.scope):
            parts.append(f"`fedfilt paper {one.name}`")
    return "\n\n".join([*parts, SLIPS]) + "\n"


def _provenance(chosen: Sequence[Maker], results: Results) -> str:
    """How many runs, how long, with what."""
    cases = list(dict.fromkeys(case for one in chosen for case in one.cases(results.scope)))
    records = [record for case in cases if (record := results.record(case)) is not None]
    if not records:
        return "No run has been made yet."
    left = [case for case in cases if results.record(case) is None]
    archives = sum(case.data in emnist.SETS for case in left)
    hours = sum(record["wall_seconds"] for record in records) / 3600
    names = ("fedfilt", "python", "numpy", "torch")
    versions = sorted({", ".join(f"{name} {record['environment'][name]}" for name in names) for record in records})
    text = f"It is made of {len(records)} runs, each on one core, {hours:.1f} hours in all ({'; '.join(versions)})."
    builds = {record["environment"].get("native_sources") for record in records}
    if len(builds) > 1 or None in builds:
        text += (
            " They were made with several builds of the native core, which differ in the last bits of their sums: if a "
            "single run is repeated, it moves by some tenths of a point, less than seeds differ."
        )
    if len(left) > archives:
        text += f" {len(left) - archives} more are not computed yet."
    if archives:
        text += f" {archives} more need the archives of EMNIST and FEMNIST."
    return text


def pictures(made: Mapping[str, Item], folder: Path, printed: bool) -> list[Path]:
    """Write the pictures of the items: as pages that can be explored, or to print, as PNG, SVG and PDF."""
    figures = {name: figure for item in made.values() for name, figure in item.figures.items()}
    endings = ENDINGS if printed else ("html",)
    paths = {folder / f"{name}.{ending}": figure for name, figure in figures.items() for ending in endings}
    if paths:
        folder.mkdir(parents=True, exist_ok=True)
    if printed and paths:
        _print(paths)
    for path, figure in paths.items() if not printed else ():
        write_page(figure, path, config={"displayModeBar": False})
    return list(paths)


def _print(paths: Mapping[Path, Any]) -> None:
    """All at once: a browser is started only once. PNGs are given few colours and told how large they are on paper."""
    scales = [DOTS_PER_INCH / 96 if path.suffix == ".png" else 1 for path in paths]
    try:
        from PIL import Image

        layouts = [figure.layout for figure in paths.values()]
        wide, high = [layout.width for layout in layouts], [layout.height for layout in layouts]
        write_images(list(paths.values()), list(paths), scale=scales, width=wide, height=high)
    except (ValueError, RuntimeError, ImportError) as error:
        names = ", ".join(path.name for path in list(paths)[:3])
        raise ValueError(
            f"cannot make {names}: {error}; PNG needs Chromium and `pip install 'fedfilt[pictures]'`, without --png "
            "pictures are HTML"
        ) from error
    for path in paths:
        if path.suffix == ".png":
            small = Image.open(path).convert("RGB").quantize(128, dither=Image.Dither.NONE)
            small.save(path, optimize=True, dpi=(DOTS_PER_INCH, DOTS_PER_INCH))
