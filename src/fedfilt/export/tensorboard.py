"""Curves of every run as event files for TensorBoard."""

from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from pathlib import Path

import numpy as np
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from fedfilt._files import replacing
from fedfilt.export._writing import Wanted, check_free, places
from fedfilt.runs.numbers import moments, numbers
from fedfilt.runs.records import Records

OUT = "tensorboard"
DEVICES = False
LARGEST = float(np.finfo(np.float32).max)
FILE = "events.out.tfevents.fedfilt"  # TensorBoard knows event files by the middle of their name


def write(runs: Sequence[Records], target: str, wanted: Wanted) -> str:
    """Write a folder per run with one event file: one scalar per number (as float32), one step per round."""
    folder = Path(target)
    paths = [folder / name / FILE for name in places(run.name for run in runs)]
    check_free([(folder.parent, path) for path in paths], wanted.force)
    for run, path in zip(wanted.watch(runs), paths, strict=True):
        ended = moments(run)
        with replacing(path) as file:
            record = RecordWriter(file)
            record.write(Event(wall_time=min(ended.values()), file_version="brain.Event:2").SerializeToString())
            for round, group in groupby(numbers(run, wanted.devices), attrgetter("round")):
                values = [Summary.Value(tag=number.key, simple_value=_single(number.value)) for number in group]
                event = Event(wall_time=ended[round], step=round, summary=Summary(value=values))
                record.write(event.SerializeToString())
    return target


def _single(value: float) -> float:
    """A number that float32 can hold."""
    return max(-LARGEST, min(float(value), LARGEST))
