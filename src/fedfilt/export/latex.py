"""The last scores of every rule as a LaTeX table (booktabs), with the spread over seeds."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedfilt._files import write_atomically
from fedfilt._version import __version__
from fedfilt.export._writing import Wanted, check_free
from fedfilt.runs.groups import furthest, groups, seeds_of
from fedfilt.runs.numbers import numbers
from fedfilt.runs.records import Records

OUT = "summary.tex"
DEVICES = False
SHOWN = ("mean", "worst")
SPECIAL = {
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    '"': r"\textquotedbl{}",
}

Column = tuple[str, str, str]  # test, score, mean or worst


def write(runs: Sequence[Records], target: str, wanted: Wanted) -> str:
    """Write a tabular with a line per rule."""
    path = Path(target)
    check_free([(path.parent, path)], wanted.force)
    write_atomically(path, table(list(wanted.watch(runs)), wanted.title).encode())
    return target


def table(runs: Sequence[Records], title: str) -> str:
    """The table: for each rule, the seeds that are furthest along, at their last test."""
    last = {run.folder: _last(run) for run in runs}
    columns = list(dict.fromkeys(column for found in last.values() for column in found))
    lines = [
        f"% {escaped(title)}: written by fedfilt {__version__}; needs \\usepackage{{booktabs}}",
        rf"\begin{{tabular}}{{l{'r' * (1 + len(columns))}}}",
        r"\toprule",
        " & ".join(["rule", "round", *(escaped(_head(column)) for column in columns)]) + r" \\",
        r"\midrule",
    ]
    for name, group in groups(runs).items():
        chosen = furthest(group, "local") or furthest(group, "global") or group
        cells = [escaped(name), str(chosen[0].rounds[-1]["round"])]
        for column in columns:
            cells.append(spread([last[run.folder][column] for run in chosen if column in last[run.folder]], column[1]))
        lines.append(" & ".join(cells) + rf" \\ % {seeds_of(chosen, group)}")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def spread(values: Sequence[float], score: str) -> str:
    """Mean over seeds, with the standard deviation if there are several.

    >>> spread([0.9, 0.92], "accuracy"), spread([2.5], "rmse"), spread([], "accuracy")
    ('$91.0 \\\\pm 1.4$', '$2.5$', '--')
    """
    if not values:
        return "--"
    form, times = (".1f", 100) if score == "accuracy" else (".4g", 1)
    mean = format(times * float(np.mean(values)), form)
    return f"${mean}$" if len(values) == 1 else f"${mean} \\pm {times * float(np.std(values, ddof=1)):{form}}$"


def escaped(text: str) -> str:
    r"""Foreign text, escaped for LaTeX.

    >>> escaped("self_blend & 50%")
    'self\\_blend \\& 50\\%'
    """
    return "".join(SPECIAL.get(letter, letter) for letter in text if letter.isprintable())


def _last(run: Records) -> dict[Column, float]:
    """Scores of the last test of mixed models."""
    return {
        (number.test, number.score, number.device): number.value
        for number in numbers(run, frozenset())
        if number.stage == "mixed" and number.device in SHOWN and number.score != "loss"
    }


def _head(column: Column) -> str:
    test, score, which = column
    unit = " (%)" if score == "accuracy" else ""
    return f"{test} {score}{unit}" if which == "mean" else f"worst device{unit}"
