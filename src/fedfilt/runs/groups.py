"""Which runs belong together: the seeds of one experiment and rule, and how far each has got."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedfilt.runs.names import besides, looks
from fedfilt.runs.records import Records
from fedfilt.runs.rules import Look

SEED = re.compile(r"seed-\d+")  # the folder of a run in a comparison


def groups(runs: Iterable[Records]) -> dict[str, list[Records]]:
    """Runs that differ only in the seed, by their label, with the folder if labels are not unique."""
    alike: dict[str, list[Records]] = {}
    for run in runs:
        key = run.experiment
        if any(run.seed == other.seed for other in alike.get(key, [])):
            key += str(run.folder)  # a copy of a run is not another seed
        alike.setdefault(key, []).append(run)
    names = [found[0].label for found in alike.values()]
    unlike = [
        name if names.count(name) == 1 else f"{name} ({found[0].folder.parent if len(found) > 1 else found[0].folder})"
        for name, found in zip(names, alike.values(), strict=True)
    ]
    return dict(zip(unlike, alike.values(), strict=True))


def looks_of(alike: Mapping[str, Sequence[Records]]) -> dict[str, Look]:
    """The looks of groups, replaced if two share one: their experiments may not have been looked at together."""
    own = {name: group[0].look for name, group in alike.items()}
    if len({found.colour for found in own.values()}) == len(own):
        return own
    return looks({name: group[0].rule for name, group in alike.items()})


def experiments(runs: Iterable[Records]) -> dict[str, list[Records]]:
    """Runs by the name of their experiment, newest first: the folder of a comparison, or a run with its seeds."""
    found: dict[Path, list[Records]] = {}
    for run in runs:
        found.setdefault(_experiment(run), []).append(run)
    newest = sorted(found, key=lambda place: max(run.changed for run in found[place]), reverse=True)
    names = [place.name for place in newest]
    return {place.name if names.count(place.name) == 1 else str(place): found[place] for place in newest}


def _experiment(run: Records) -> Path:
    """The folder above those of seed, rule and sweep values; runs/NAME-seed-3 belongs to runs/NAME."""
    place = run.folder
    if not SEED.fullmatch(place.name):
        return place.with_name(re.sub(r"(?<=.)-seed-\d+$", "", place.name)) if place.name else place
    while place.name == run.rule or "=" in place.name or SEED.fullmatch(place.name):
        place = place.parent
    return place


def differences(runs: Iterable[Records]) -> dict[str, list[Any]]:
    """The keys in which the configs of runs differ, except rule and seed, with the value of each run."""
    return besides([run.resolved for run in runs])


def crossed(runs: Sequence[Records]) -> bool:
    """Whether every rule has been run with every combination of the keys that differ, as in a sweep."""
    found = differences(runs)
    combinations = [json.dumps(values, default=str) for values in zip(*found.values(), strict=True)]
    pairs = {(run.rule, one) for run, one in zip(runs, combinations, strict=True)} if found else set()
    return len(pairs) == len({run.rule for run in runs}) * len(set(combinations))


def furthest(runs: Sequence[Records], test: str) -> list[Records]:
    """The seeds of a rule that have been tested in the latest round of any: some may still train."""
    reached = [run.tested(test)[-1]["round"] if run.tested(test) else 0 for run in runs]
    return [run for run, last in zip(runs, reached, strict=True) if last and last == max(reached)]


def seeds_of(some: Sequence[Records], of: Sequence[Records]) -> str:
    """How many seeds: "3 seeds", or "2 of 3 seeds" if others have not got as far."""
    return f"{f'{len(some)} of ' * (len(some) < len(of))}{len(of)} seed{'s' * (len(of) > 1)}"
