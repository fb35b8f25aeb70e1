"""Runs in words: what happened to a device, how the rules compare."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedfilt.rounds.types import Happening
from fedfilt.runs.groups import furthest, groups
from fedfilt.runs.records import Records
from fedfilt.runs.rules import strength

HAPPENED = {
    "join": "joins",
    "leave": "leaves",
    "move": "moves",
    "offline": "is offline",
    "online": "is back online",
    "late": "late",
    "reject": "rejected",
    "absent": "absent",
    "left_out": "left out",
    "return": "takes part again",
    "clipped": "sent too large an update, which was clipped:",
    "quarantined": "is in quarantine for updates that were too large:",
    "released": "is out of quarantine, on probation",
    "setback": "most devices were spoilt at once: the models went back to a good state, without the largest updates of",
    "said": "",
}
DETAILS = {
    "words": "%s",
    "start": " from %s",
    "links": " to %s",
    "room": " in room %s",
    "why": " (%s)",
    "times": " %s times the median",
    "strike": ", strike %s",
    "suspects": " devices %s",
    "until": " until round %s",
}


def happening(event: Happening) -> str:
    """What happened to a device.

    >>> happening(Happening(3, 5, "offline", {"until": 9}))
    'device 5 is offline until round 9'
    """
    known = {key: event.details.get(key) for key in DETAILS}
    text = HAPPENED.get(event.what, event.what)
    text += "".join(DETAILS[key] % (value,) for key, value in known.items() if value not in (None, ""))
    return text if event.device is None else f"device {event.device} {text}"


def dated(event: Happening) -> str:
    """What happened, and in which round."""
    return f"round {event.round}: {happening(event)}"


class Score(NamedTuple):
    """How a rule did, as far as a sentence needs."""

    rule: str
    local: float
    everybody: float


def comparison(rows: Sequence[Score]) -> str:
    """One sentence that explains a table of rules.

    >>> comparison([Score("fedavg", 0.855, 0.797), Score("local", 0.957, 0.192)])
    "On its own data a device does best with local (95.7%), on everybody's with fedavg (79.7%)."
    """
    best, wide = max(rows, key=lambda r: r.local), max(rows, key=lambda r: r.everybody)
    text = (
        f"On its own data a device does best with {best.rule} ({best.local:.1%}), on everybody's with {wide.rule} "
        f"({wide.everybody:.1%})"
    )
    between = [r for r in rows if strength(r.rule) is not None]
    if between:
        kept = max(between, key=lambda r: r.local + r.everybody)
        text += f"; in between, {kept.rule} reaches {kept.local:.1%} and {kept.everybody:.1%}"
    return text + "."


def last(run: Records, test: str, key: str) -> float:
    """A number of the last test, NaN if there is none."""
    tested = run.tested(test)
    return float(tested[-1]["mixed"][test].get(key, np.nan)) if tested else float("nan")


def sentence(runs: Sequence[Records]) -> str:
    """What the numbers say, in a sentence or two."""
    tested = [run for run in runs if run.tested("local") or run.tested("global")]
    if not tested:
        return "No round has been tested yet."
    if len(tested) == 1:
        run = tested[0]
        own, everybody, worst = last(run, "local", "mean"), last(run, "global", "mean"), last(run, "local", "worst")
        device = int(last(run, "local", "worst_device")) if run.tested("local") else 0
        tested_at = (run.tested("local") or run.tested("global"))[-1]["round"]
        return (
            f"After {tested_at} of {run.planned} rounds with {run.rule} a device's own model is right on "
            f"{percent(own)} of data like its own and on {percent(everybody)} of everybody's; the worst, device "
            f"{device}, reaches {percent(worst)} on its own." + spent(run)
        )
    best = {test: max(scores(runs, test), key=lambda found: found[1]) for test in ("local", "global")}
    return (
        f"On its own data a device does best with {best['local'][0]} ({spread(best['local'][2])}), on everybody's "
        f"with {best['global'][0]} ({spread(best['global'][2])})."
    )


def spent(run: Records) -> str:
    """A sentence on the privacy that a run has spent; "" if it does not count it."""
    found = run.rounds[-1].get("privacy") if run.rounds else None
    if found is None or found["delta"] is None:
        return ""
    if found["epsilon"] is None:
        return " There is too little noise on updates to promise any differential privacy."
    return (
        f" Every device has differential privacy with epsilon {found['epsilon']:.3g} at delta {found['delta']:g} "
        f"after {run.rounds[-1]['round']} rounds."
    )


def scores(runs: Sequence[Records], test: str) -> list[tuple[str, float, list[float]]]:
    """Of every rule its name, mean and each seed's accuracy at the last test; -1 if it has not been tested."""
    found = []
    for name, group in groups(runs).items():
        values = [last(run, test, "mean") for run in furthest(group, test)]
        found.append((name, float(np.mean(values)) if values else -1.0, values))
    return found


def spread(values: Sequence[float]) -> str:
    """Mean over seeds, with the standard deviation if there are several."""
    if not len(values):
        return "–"
    return percent(float(np.mean(values))) + (f" ± {np.std(values, ddof=1):.1%}" if len(values) > 1 else "")


def percent(value: float) -> str:
    return f"{value:.1%}" if np.isfinite(value) else "–"
