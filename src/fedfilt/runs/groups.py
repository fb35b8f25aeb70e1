"""Which runs belong together: the seeds of one experiment and rule, and how far each has come."""

import json
from collections.abc import Iterable, Sequence

from fedfilt.runs.config import PLACE
from fedfilt.runs.records import Records


def groups(runs: Iterable[Records]) -> dict[str, list[Records]]:
    """Runs that differ in nothing but the seed, by a name: the rule; with a folder where that is not enough."""
    alike: dict[str, list[Records]] = {}
    for run in runs:
        table = {key: value for key, value in run.resolved.items() if key not in ("seed", *PLACE)}
        key = json.dumps(table, sort_keys=True, default=str)
        if any(run.seed == other.seed for other in alike.get(key, [])):
            key += str(run.folder)  # the same run again is not another seed
        alike.setdefault(key, []).append(run)
    rules = [found[0].rule for found in alike.values()]
    names = [
        rule if rules.count(rule) == 1 else f"{rule} ({found[0].folder.parent if len(found) > 1 else found[0].folder})"
        for rule, found in zip(rules, alike.values(), strict=True)
    ]
    return dict(zip(names, alike.values(), strict=True))


def differences(runs: Iterable[Records]) -> list[str]:
    """In which parts of their configs runs differ, other than the rule and the seed: what makes comparing them odd."""
    tables = [run.resolved for run in runs]
    keys = {key for table in tables for key in table} - {"aggregator", "seed", *PLACE}
    return sorted(key for key in keys if any(table.get(key) != tables[0].get(key) for table in tables))


def furthest(runs: Sequence[Records], test: str) -> list[Records]:
    """Of the seeds of a rule, those that have been tested in the latest round that any has: one may still train."""
    reached = [run.tested(test)[-1]["round"] if run.tested(test) else 0 for run in runs]
    return [run for run, last in zip(runs, reached, strict=True) if last and last == max(reached)]


def seeds_of(some: Sequence[Records], of: Sequence[Records]) -> str:
    """How many seeds: "3 seeds", or "2 of 3 seeds" where others have not come as far."""
    return f"{f'{len(some)} of ' * (len(some) < len(of))}{len(of)} seed{'s' * (len(of) > 1)}"
