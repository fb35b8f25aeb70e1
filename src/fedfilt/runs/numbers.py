"""All numbers of a run as rows of one long table, from which every export is made."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from itertools import accumulate
from typing import Any, NamedTuple

from fedfilt.runs.lines import TESTS
from fedfilt.runs.records import LOG, Records

STAGES = ("mixed", "trained")
OVERALL = ("mean", "std", "worst")  # of a score over all devices
LONGEST = 60  # letters of a score's name


class Number(NamedTuple):
    """A number from a round: a score of a test, or a cost of the round."""

    run: str
    rule: str
    seed: int
    round: int
    stage: str  # of the tested models: "mixed" or "trained"; "" if not from a test
    test: str  # "local" or "global"; "" if not from a test
    device: str  # its number; "mean", "std" or "worst" over devices; or "all"
    score: str  # accuracy, loss, bytes, compute_seconds, ...
    value: float

    @property
    def key(self) -> str:
        """A name for the curve that this is a point of, in letters that are allowed everywhere.

        >>> Number("a", "fedavg", 0, 3, "mixed", "local", "mean", "accuracy", 0.5).key
        'local/accuracy/mean'
        >>> Number("a", "fedavg", 0, 3, "", "", "7", "bytes", 4000).key
        'round/bytes/device-007'
        """
        device = f"device-{int(self.device):03d}" if self.device.isdecimal() else self.device
        words = [self.stage * (self.stage == "trained"), self.test or "round", self.score, device * (device != "all")]
        return "/".join(plain(word) for word in words if word)


def plain(text: str) -> str:
    """Foreign text as a name: letters, digits and a few signs with no meaning to a file system or parser.

    >>> plain("mu=10 seed 3"), plain("../../etc/passwd"), plain("")
    ('mu=10-seed-3', 'etc-passwd', '-')
    """
    letters = (letter if letter.isascii() and (letter.isalnum() or letter in "_.=") else "-" for letter in text[:200])
    return "-".join(word for word in "".join(letters).split("-") if word.strip(".")) or "-"


def numbers(run: Records, devices: Collection[int] | None = None) -> Iterator[Number]:
    """The numbers of a run, round by round; for single devices, only for these `devices` (None: all).

    Texts, lists of devices, confusion matrices and values that are not finite are left out.
    """
    about = run.name, run.rule, run.seed
    for known in run.rounds:
        for stage, test, device, score, value in _found(run.line(known["round"])):
            number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
            single = isinstance(device, int) and devices is not None and device not in devices
            if number and not single and len(score) <= LONGEST:
                yield Number(*about, known["round"], stage, test, str(device), score, value)


def moments(run: Records) -> dict[int, float]:
    """When each round of a run ended, in seconds since 1970, counted back from the time of the last line."""
    with suppress(OSError):
        end = (run.folder / LOG).lstat().st_mtime
        later = accumulate((float(known.get("seconds", 0)) for known in reversed(run.rounds)), initial=0.0)
        return {known["round"]: end - seconds for known, seconds in zip(reversed(run.rounds), later, strict=False)}
    return {known["round"]: 0.0 for known in run.rounds}  # the folder has just been deleted


def _found(line: Mapping[str, Any]) -> Iterator[tuple[str, str, int | str, str, Any]]:
    """(stage, test, device, score, value) of a line of metrics.jsonl; values may be anything."""
    time, privacy = (line.get(key) or {} for key in ("time", "privacy"))
    for key, value in {**line, **time, **privacy}.items():
        if key != "round":
            yield "", "", "mean" if key == "loss" else "all", key, value
    columns = {**(time.get("devices") or {}), "epsilon": privacy.get("devices"), "rounds": privacy.get("rounds")}
    for key, column in columns.items():
        for device, value in enumerate(column if isinstance(column, list) else ()):
            yield "", "", device, key, value
    for stage in STAGES:
        for test in TESTS:
            if found := (line.get(stage) or {}).get(test):
                yield from ((stage, test, *score) for score in _scores(found))


def _scores(found: Mapping[str, Any]) -> Iterator[tuple[int | str, str, Any]]:
    """(device, score, value) of a test."""
    main = str(found.get("metric", "accuracy"))
    more = found.get("scores")
    for key, value in {**found, **(more if isinstance(more, Mapping) else {})}.items():
        overall = key in OVERALL
        yield key if overall else "mean" if key == "loss" else "all", main if overall else key, value
    for device, value in enumerate(found.get("devices") or ()):
        yield device, main, value
