"""All numbers as one long table in a Parquet file, for pandas, polars, DuckDB and R."""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import pyarrow
from pyarrow.parquet import ParquetWriter

from fedfilt._files import replacing
from fedfilt.export._writing import Wanted, check_free
from fedfilt.runs.numbers import Number, numbers
from fedfilt.runs.records import Records

OUT = "metrics.parquet"
DEVICES = True
AT_ONCE = 100_000  # rows in memory
KINDS = {"seed": pyarrow.int64(), "round": pyarrow.int64(), "value": pyarrow.float64()}
SCHEMA = pyarrow.schema([(name, KINDS.get(name, pyarrow.string())) for name in Number._fields])


def write(runs: Sequence[Records], target: str, wanted: Wanted) -> str:
    """Write a row per number."""
    path = Path(target)
    check_free([(path.parent, path)], wanted.force)
    with replacing(path) as file, ParquetWriter(file, SCHEMA) as writer:
        rows = (number for run in wanted.watch(runs) for number in numbers(run, wanted.devices))
        while chunk := list(islice(rows, AT_ONCE)):
            writer.write_table(pyarrow.table(list(zip(*chunk, strict=True)), schema=SCHEMA))
    return target
