"""Runs in words: what happened to a device, how the rules compare."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedfilt._types import Array
from fedfilt.graph import Graph
from fedfilt.graph.similarity import clusters
from fedfilt.rounds.types import Happening
from fedfilt.runs.groups import crossed, differences, furthest, groups
from fedfilt.runs.lines import MAIN
from fedfilt.runs.names import told
from fedfilt.runs.records import Records
from fedfilt.runs.rules import strength
from fedfilt.training.goal import ACCURACY, Metric

SIZES = 8  # clusters that a sentence names
KEYS = 6  # most keys, of those in which runs differ, that a sentence names

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
    "clipped": "sent an update that was too large and was clipped:",
    "quarantined": "is quarantined for updates that were too large:",
    "released": "is out of quarantine, on probation",
    "setback": "most devices went bad at once: the models returned to a good state, without the largest updates of",
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


def clusters_in_words(graph: Graph, member: Array, modularity: float) -> str:
    """The number and sizes of a graph's clusters, how distinct they are, and whether they match its rooms.

    >>> graph = Graph.from_rooms([0, 0, 0, 1, 1, 1])
    >>> clusters_in_words(graph, np.array([0, 0, 0, 1, 1, 1]), 0.5)
    '2 clusters of 3 and 3 devices (modularity 0.50), 100% of 6 links within a room'
    """
    sizes = sorted(np.bincount(member).tolist(), reverse=True)
    if not len(graph.edges):
        return "no links: every device is on its own"
    listed = [str(size) for size in sizes[:SIZES]] + (["more"] if len(sizes) > SIZES else [])
    words = f"{len(sizes)} clusters of {', '.join(listed[:-1])} and {listed[-1]} devices"
    if len(sizes) == 1:
        words = f"one cluster of {sizes[0]} devices"
    text = f"{words} (modularity {modularity:.2f})"
    if graph.rooms is None:
        return text
    inside = np.mean(graph.rooms[graph.edges[:, 0]] == graph.rooms[graph.edges[:, 1]])
    return f"{text}, {inside:.0%} of {len(graph.edges)} links within a room"


def found_in_words(run: Records) -> str:
    """What a graph that was found looks like; "" for a graph that was given."""
    table, now = run.resolved.get("graph"), run.moment()
    name = table.get("name") if isinstance(table, Mapping) else None
    if now is None or not isinstance(table, Mapping) or table.get("control") in ("complete", "empty"):
        return ""
    if name != "found" and not (name == "homes" and (table.get("between") == "updates" or table.get("reweigh"))):
        return ""
    when = f" in round {now.round}" if now.round > 1 else " before round 1"
    return (
        f"The graph was found{when} from what devices had learnt: {clusters_in_words(now.graph, *clusters(now.graph))}."
    )


class Score(NamedTuple):
    """The scores of a rule that a sentence needs."""

    rule: str
    local: float
    everybody: float


def comparison(rows: Sequence[Score], metric: Metric = ACCURACY) -> str:
    """One sentence that sums up a table of rules judged by a metric.

    >>> comparison([Score("fedavg", 0.855, 0.797), Score("local", 0.957, 0.192)])
    "On its own data a device does best with local (95.7%), on everybody's with fedavg (79.7%)."
    >>> comparison([Score("fedavg", 0.855, 0.797), Score("mu=1", 0.957, 0.8), Score("mu=2", 0.95, 0.8)])
    "A device does best with mu=1, on its own data (95.7%) and on everybody's (80.0%)."
    >>> comparison([Score("fedavg", 0.852, 0.827), Score("finetune", 0.935, 0.756), Score("mu=1", 0.921, 0.589)])
    "On its own data a device does best with finetune (93.5%), on everybody's with fedavg (82.7%)."
    """
    texts = {row.rule: [named(metric, value) for value in (row.local, row.everybody)] for row in rows}
    best = _best([(row.rule, row.local) for row in rows], metric)
    wide = _best([(row.rule, row.everybody) for row in rows], metric)
    text = _bests(best, wide, texts)
    known, sign = {row.rule: row for row in rows}, -1 if metric.lower else 1
    between = [
        r
        for r in rows
        if strength(r.rule) is not None
        and sign * r.local > sign * known[wide].local
        and sign * r.everybody > sign * known[best].everybody
    ]
    if between:
        kept = _best([(r.rule, r.local + r.everybody) for r in between], metric)
        text += f"; in between, {kept} reaches {' and '.join(texts[kept])}"
    return text + "."


def _best(scored: Sequence[tuple[str, float]], metric: Metric) -> str:
    """The name with the best score, or the first name if there is no score."""
    found = [one for one in scored if np.isfinite(one[1])] or [(scored[0][0], 0.0)]
    return str(metric.best(found, key=lambda one: one[1])[0])


def _bests(best: str, wide: str, texts: Mapping[str, Sequence[str]]) -> str:
    """Which rules serve devices best on their own data and on everybody's; `texts` holds the scores of each."""
    own, everybody = texts[best][0], texts[wide][1]
    if best == wide:
        return f"A device does best with {best}, on its own data ({own}) and on everybody's ({everybody})"
    return f"On its own data a device does best with {best} ({own}), on everybody's with {wide} ({everybody})"


def named(metric: Metric, value: float) -> str:
    """A score, with its name unless it is accuracy.

    >>> named(ACCURACY, 0.855), named(Metric("rmse", "RMSE", lower=True, form=".4g"), 0.5)
    ('85.5%', 'RMSE 0.5')
    """
    return metric.text(value) if metric == ACCURACY else f"{metric.words} {metric.text(value)}"


def heading(metric: Metric) -> str:
    """The name of a score at the start of a line.

    >>> heading(ACCURACY)
    'Accuracy'
    """
    return metric.words[:1].upper() + metric.words[1:]


def metric_of(runs: Sequence[Records]) -> Metric:
    """The metric to show runs by: that of the first run that has been tested."""
    return next((run.metric for run in runs if run.tested("local") or run.tested("global")), ACCURACY)


def difference(metric: Metric, value: float) -> str:
    """How much higher one score is than another.

    >>> difference(ACCURACY, 0.0123), difference(Metric("rmse", "RMSE", lower=True, form=".4g"), -0.5)
    ('+1.2 points', '-0.5')
    """
    return f"{100 * value:+.1f} points" if metric.share else f"{value:+.3g}"


def spread(values: Sequence[float], metric: Metric = ACCURACY) -> str:
    r"""Mean over seeds, with the standard deviation if there are several.

    >>> spread([0.9, 0.92])
    '91.0% ±\xa01.4%'
    """
    if not len(values):
        return "–"
    between = f" ±\N{NO-BREAK SPACE}{metric.text(float(np.std(values, ddof=1)))}" if len(values) > 1 else ""
    return metric.text(float(np.mean(values))) + between


def last(run: Records, test: str, key: str, stage: str = "mixed") -> float:
    """A number of the last test, NaN if there is none."""
    tested = run.tested(test, stage=stage)
    return float(tested[-1][stage][test].get(key, np.nan)) if tested else float("nan")


def sentence(runs: Sequence[Records]) -> str:
    """The results in a sentence or two."""
    tested = [run for run in runs if run.tested("local") or run.tested("global")]
    if not tested:
        return "No round has been tested yet."
    metric = metric_of(tested)
    if len(tested) == 1:
        run = tested[0]
        own, everybody, worst = (
            metric.text(last(run, *which)) for which in (("local", "mean"), ("global", "mean"), ("local", "worst"))
        )
        device = int(last(run, "local", "worst_device")) if run.tested("local") else 0
        tested_at = (run.tested("local") or run.tested("global"))[-1]["round"]
        tuned = metric.text(last(run, "local", "mean", "trained"))
        better = f" ({'less' if metric.lower else 'more'} is better)" if metric != ACCURACY else ""
        return (
            f"After {tested_at} of {run.planned} rounds with {run.label}, a device's own model has {metric.words} "
            f"{own} on data like its own and {everybody} on everybody's{better}; the worst, device {device}, has "
            f"{worst} on its own."
            + (f" After local training, a device has {tuned} on its own." if tuned != "–" else "")
            + spent(run)
        )
    names = list(groups(tested))
    found = {test: {name: values for name, values in scores(tested, test).items() if values} for test in MAIN}
    means = {test: [(name, float(np.mean(values))) for name, values in found[test].items()] for test in MAIN}
    best, wide = (_best(means[test] or [(names[0], 0.0)], metric) for test in MAIN)
    texts = {name: [spread(found[test].get(name, []), metric) for test in MAIN] for name in names}
    text = _bests(best, wide, texts) + "."
    if metric == ACCURACY:
        return text
    return f"Judged by {metric.words} ({'less' if metric.lower else 'more'} is better), {text[:1].lower()}{text[1:]}"


def spent(run: Records) -> str:
    """A sentence on the privacy that a run has spent; "" if it keeps no account."""
    found = run.rounds[-1].get("privacy") if run.rounds else None
    if found is None or found["delta"] is None:
        return ""
    if found["epsilon"] is None:
        return " The noise on updates is too small to promise any differential privacy."
    return (
        f" Every device has differential privacy with epsilon {found['epsilon']:.3g} at delta {found['delta']:g} "
        f"after {run.rounds[-1]['round']} rounds."
    )


def scores(runs: Sequence[Records], test: str) -> dict[str, list[float]]:
    """Each seed's mean score at the last test, by rule; rules that have not been tested are missing."""
    return {name: [last(run, test, "mean") for run in furthest(group, test)] for name, group in groups(runs).items()}


def unlike(runs: Sequence[Records]) -> str:
    """A sentence on the keys in which runs differ, with their values; "" if they differ only in rule and seed."""
    found = differences(runs)
    if not found:
        return ""
    listed = [f"{key} ({told(values)})" for key, values in found.items()]
    more = [f"{len(listed) - KEYS} more keys"] if len(listed) > KEYS else []
    words = f"Besides rule and seed, these runs differ in {'; '.join([*listed[:KEYS], *more])}."
    return words if crossed(runs) else f"{words} Not every rule has every combination: compare with care."
