"""How accuracy grows, and what it costs; local against global accuracy."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from fedfilt._checks import check_choice
from fedfilt._types import Array
from fedfilt.runs.groups import differences, furthest, groups, seeds_of
from fedfilt.runs.records import Records
from fedfilt.runs.rules import ORANGE, look, rule_order
from fedfilt.show.figures.style import BLUE, blank, empty, plain, styled

AGAINST = {"rounds": "round", "seconds": "simulated seconds", "joules": "joules", "bytes": "megabytes sent"}
LEGEND = {"orientation": "h", "y": 0, "yanchor": "bottom", "yref": "container", "x": 0}


def accuracy_curves(curves: Mapping[str, Array], title: str) -> Any:
    """Accuracy against rounds: for every name an array of (round, mean accuracy)."""
    figure = blank()
    for name, points in curves.items():
        figure.add_trace(_curve(name, points[:, 0], points[:, 1]))
    return _framed(figure, title, "round")


def accuracy(runs: Sequence[Records], test: str = "local", against: str = "rounds", number: int | None = None) -> Any:
    """Mean accuracy over devices against rounds, simulated seconds, joules or megabytes; the band is one std."""
    check_choice("against", against, AGAINST)
    figure = blank()
    seeds = groups(runs)
    if len(seeds) > 1 and any(len(group) > 1 for group in seeds.values()):
        return _over_seeds(seeds, test, against)
    for run in runs:
        tested = run.tested(test)
        if not tested:
            continue
        x = spent(run, against, [r["round"] for r in tested])
        mean = np.array([r["mixed"][test]["mean"] for r in tested])
        if len(runs) == 1:
            spread = np.array([r["mixed"][test].get("std", 0.0) for r in tested])
            edges = np.minimum(mean + spread, 1), np.maximum(mean - spread, 0)
            band = {"x": np.concatenate([x, x[::-1]]), "y": np.concatenate([edges[0], edges[1][::-1]])}
            figure.add_trace(
                go.Scatter(**band, fill="toself", mode="none", opacity=0.18, name="± std of devices", hoverinfo="skip")
            )
            figure.data[-1].fillcolor = look(run.rule).colour
            worst = [r["mixed"][test].get("worst") for r in tested]
            figure.add_trace(
                go.Scatter(x=x, y=worst, mode="lines", name="worst device", line={"color": ORANGE, "dash": "dot"})
            )
        figure.add_trace(_curve(run.name, x, mean, run.rule))
    if not figure.data:
        return empty("not tested yet")
    if number is not None and against == "rounds":
        figure.add_vline(x=number, line={"color": "#777777", "width": 1})
    return _framed(figure, f"mean accuracy on the {test} test", AGAINST[against])


def _over_seeds(seeds: Mapping[str, Sequence[Records]], test: str, against: str) -> Any:
    """A curve per rule: mean over the seeds that have come furthest, at the rounds that all of them tested."""
    figure = blank()
    for name, group in seeds.items():
        runs = furthest(group, test)
        found = [{r["round"]: r["mixed"][test]["mean"] for r in run.tested(test)} for run in runs]
        numbers = sorted(set.intersection(*map(set, found))) if found else []
        if numbers:
            x = np.mean([spent(run, against, numbers) for run in runs], axis=0)
            mean = np.mean([[means[n] for n in numbers] for means in found], axis=0)
            figure.add_trace(_curve(f"{name} ({seeds_of(runs, group)})", x, mean, group[0].rule))
    if not figure.data:
        return empty("not tested yet")
    return _framed(figure, f"mean accuracy on the {test} test, mean over seeds", AGAINST[against])


def spent(run: Records, against: str, numbers: Sequence[int]) -> Array:
    """Where rounds lie on an axis: their number, or what was used up to and including them."""
    if against == "rounds":
        return np.array(numbers, dtype=float)
    column = {"seconds": "latency", "joules": "joules", "bytes": "bytes"}[against]
    totals = dict(zip((r["round"] for r in run.rounds), run.spent(column), strict=True))
    return np.array([totals[n] for n in numbers]) / (1e6 if against == "bytes" else 1)


def pareto(runs: Sequence[Records]) -> Any:
    """Local against global accuracy at the last test: the path from Local over rising mu to FedAvg."""
    points: dict[str, list[tuple[float, float]]] = {}
    counts: dict[str, str] = {}
    for name, group in groups(runs).items():
        both = [run for run in furthest(group, "local") if run.tested("global")]
        if both:
            points[name] = [tuple(run.tested(t)[-1]["mixed"][t]["mean"] for t in ("global", "local")) for run in both]
            counts[name] = seeds_of(both, group)
    if not points:
        return empty("not tested on both tests yet")
    means = {name: np.mean(found, axis=0) for name, found in points.items()}
    strengths = sorted((name for name in means if rule_order(name)[0] == 2), key=rule_order)
    path = [*(r for r in ("local",) if r in means), *strengths, *(r for r in ("fedavg",) if r in means)]
    figure = blank()
    if len(path) > 1 and not differences(runs):
        x, y = np.array([means[name] for name in path]).T
        line = {"color": BLUE, "width": 1.5, "dash": "dot"}
        figure.add_trace(go.Scatter(x=x, y=y, mode="lines", line=line, hoverinfo="skip", showlegend=False))
    for name, found in points.items():
        style = look(name)
        spread = np.std(found, axis=0, ddof=1) if len(found) > 1 else np.zeros(2)
        errors = {
            f"error_{axis}": {"array": [s], "visible": len(found) > 1} for axis, s in zip("xy", spread, strict=True)
        }
        hover = f"{plain(name)}: local %{{y:.1%}}, global %{{x:.1%}} ({counts[name]})<extra></extra>"
        marker = {"color": style.colour, "symbol": style.symbol, "size": 12}
        x, y = [[value] for value in means[name]]
        figure.add_trace(
            go.Scatter(x=x, y=y, mode="markers", name=plain(name), marker=marker, hovertemplate=hover, **errors)
        )
    return styled(
        figure,
        "local against global accuracy",
        460,
        xaxis={"title": "global accuracy (all labels)", "tickformat": "~%"},
        yaxis={"title": "local accuracy (own labels)", "tickformat": "~%"},
        legend=LEGEND,
        margin={"l": 64, "r": 16, "t": 48, "b": 90},
    )


def device_curve(runs: Sequence[Records], device: int, test: str = "local") -> Any:
    """One device's accuracy against rounds, in every run; thin: the mean of all devices."""
    figure = blank()
    for run in runs:
        tested = [r for r in run.tested(test) if len(r["mixed"][test]["devices"]) > device]
        if not tested:
            continue
        x = [r["round"] for r in tested]
        figure.add_trace(_curve(run.name, x, [float(r["mixed"][test]["devices"][device]) for r in tested], run.rule))
        if len(runs) == 1:
            mean = [r["mixed"][test]["mean"] for r in tested]
            line = {"color": "#777777", "width": 1, "dash": "dot"}
            figure.add_trace(go.Scatter(x=x, y=mean, mode="lines", name="mean of all", line=line))
    if not figure.data:
        return empty("not tested yet", 320)
    return _framed(figure, f"device {device}: {test} accuracy", "round", 320)


def _curve(name: str, x: Any, y: Any, rule: str | None = None) -> Any:
    style = look(name if rule is None else rule)
    marker = {"symbol": style.symbol, "size": 7 if len(x) <= 40 else 4}
    line = {"color": style.colour, "dash": style.dash, "width": 2}
    hover = "%{x:.6g}: %{y:.1%}<extra>" + plain(name) + "</extra>"
    x, y = np.asarray(x, np.float32), np.asarray(y, np.float32)  # half the size in a page
    return go.Scatter(x=x, y=y, name=plain(name), mode="lines+markers", line=line, marker=marker, hovertemplate=hover)


def _framed(figure: Any, title: str, x: str, height: int = 420) -> Any:
    return styled(
        figure,
        title,
        height,
        xaxis={"title": x, "rangemode": "tozero"},
        yaxis={"title": "accuracy", "tickformat": "~%", "rangemode": "nonnegative"},
        legend=LEGEND,
        margin={"l": 60, "r": 16, "t": 48, "b": 90},
    )
