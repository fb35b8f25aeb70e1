"""All numbers as one long table in a CSV file, for pandas, R and spreadsheets."""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fedfilt._files import replacing
from fedfilt.export._writing import Wanted, check_free
from fedfilt.runs.numbers import Number, numbers
from fedfilt.runs.records import Records

OUT = "metrics.csv"
DEVICES = True


def write(runs: Sequence[Records], target: str, wanted: Wanted) -> str:
    """Write one line per number, with enough digits to restore its bits."""
    path = Path(target)
    check_free([(path.parent, path)], wanted.force)
    with replacing(path) as file:
        text = io.TextIOWrapper(file, "utf-8", newline="", write_through=True)
        lines = csv.writer(text, lineterminator="\n")
        lines.writerow(Number._fields)
        for run in wanted.watch(runs):
            lines.writerows(map(cell, number) for number in numbers(run, wanted.devices))
        text.detach()
    return target


def csv_text(rows: Iterable[Sequence[Any]]) -> str:
    """Rows as the text of a CSV file."""
    table = io.StringIO()
    csv.writer(table, lineterminator="\n").writerows([cell(value) for value in row] for row in rows)
    return table.getvalue()


def cell(value: Any) -> Any:
    """A cell that no spreadsheet interprets as a formula.

    >>> cell("=1+1"), cell("kitchen"), cell("-0.5")
    ("'=1+1", 'kitchen', '-0.5')
    """
    if not isinstance(value, str) or value[:1] not in ("=", "+", "-", "@", "\t", "\r"):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value
