"""How scores and losses develop and what that costs; rules compared over seeds and device by device."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from fedfilt._checks import check_choice
from fedfilt._types import Array
from fedfilt.runs.groups import differences, furthest, groups, looks_of, seeds_of
from fedfilt.runs.names import looks
from fedfilt.runs.paired import SURE, Paired
from fedfilt.runs.paired import paired as paired_scores
from fedfilt.runs.records import Records
from fedfilt.runs.rules import ORANGE, Look, rule_order
from fedfilt.show.figures.style import BLUE, FAINT, INK, LEGEND, blank, empty, plain, styled, wrapped
from fedfilt.show.words import difference, metric_of
from fedfilt.training.goal import ACCURACY, Metric

AGAINST = {"rounds": "round", "seconds": "simulated seconds", "joules": "joules", "bytes": "megabytes sent"}
STAGES = {"mixed": "after mixing", "trained": "after local training"}
LOSSES = {"training": "training loss", "local": "loss on the local test", "global": "loss on the global test"}
Values = Callable[[Records], dict[int, float]]  # a number for each round of a run that has one


# --- against rounds and costs -------------------------------------------------------------------------------------


def accuracy_curves(curves: Mapping[str, Array], title: str, metric: Metric = ACCURACY) -> Any:
    """Accuracy, or another score, against rounds; `curves` has an array of (round, mean score) for every name."""
    figure, shown = blank(), looks({name: name for name in curves})
    for name, points in curves.items():
        figure.add_trace(_curve(name, points[:, 0], points[:, 1], shown[name], metric.form))
    return _framed(figure, title, "round", metric)


def accuracy(
    runs: Sequence[Records],
    test: str = "local",
    against: str = "rounds",
    number: int | None = None,
    stage: str = "mixed",
) -> Any:
    """Mean score over devices against rounds, seconds, joules or megabytes; a single run also shows the devices' std.

    After mixing, or ("trained") after a device has trained on its own data, as fine-tuning would.
    """
    check_choice("against", against, AGAINST)
    check_choice("stage", stage, STAGES)
    metric, figure = metric_of(runs), blank()
    tested = runs[0].tested(test, stage=stage) if len(runs) == 1 else []
    if tested:
        run, found = runs[0], [r[stage][test] for r in tested]
        x = spent(run, against, [r["round"] for r in tested])
        mean, std = (np.array([one.get(key, 0.0) for one in found]) for key in ("mean", "std"))
        edges = mean + std, mean - std
        if metric.share:
            edges = np.minimum(edges[0], 1), np.maximum(edges[1], 0)
        band = {"x": np.concatenate([x, x[::-1]]), "y": np.concatenate([edges[0], edges[1][::-1]])}
        figure.add_trace(
            go.Scatter(**band, fill="toself", mode="none", opacity=0.18, name="± std of devices", hoverinfo="skip")
        )
        figure.data[-1].fillcolor = run.look.colour
        worst, line = [one.get("worst") for one in found], {"color": ORANGE, "dash": "dot"}
        figure.add_trace(go.Scatter(x=x, y=worst, mode="lines", name="worst device", line=line))
    _grown(
        figure, runs, lambda run: {r["round"]: r[stage][test]["mean"] for r in run.tested(test, stage=stage)}, against
    )
    if not figure.data:
        return empty("not tested yet" if stage == "mixed" else f"not tested {STAGES[stage]}")
    if number is not None and against == "rounds":
        figure.add_vline(x=number, line={"color": "#777777", "width": 1})
    title = f"{metric.words} on the {test} test" + (f" {STAGES[stage]}" if stage != "mixed" else "")
    return _framed(figure, title + _over(runs), axis_of(runs, against), metric)


def loss(runs: Sequence[Records], kind: str = "training", against: str = "rounds") -> Any:
    """Mean loss over devices, in training or in a test after mixing, on a logarithmic axis."""
    check_choice("loss", kind, LOSSES)

    def values(run: Records) -> dict[int, float]:
        if kind == "training":
            return {r["round"]: r["loss"] for r in run.rounds if "loss" in r}
        return {r["round"]: found["loss"] for r in run.tested(kind) if "loss" in (found := r["mixed"][kind])}

    figure = blank()
    _grown(figure, runs, values, against, ".4g")
    if not figure.data:
        return empty(f"no {LOSSES[kind]} was recorded")
    _framed(figure, LOSSES[kind] + _over(runs), axis_of(runs, against), Metric("loss", "loss", lower=True, form=".4g"))
    # The range may contain no power of ten
    return figure.update_yaxes(type="log", rangemode="normal", dtick="D2", exponentformat="none")


def axis_of(runs: Sequence[Records], against: str) -> str:
    """The title of an axis; seconds are simulated unless devices are real."""
    if against != "seconds" or not any(run.real_time for run in runs):
        return AGAINST[against]
    return "seconds" if all(run.real_time for run in runs) else "seconds (simulated in some runs)"


def _over(runs: Sequence[Records]) -> str:
    return ", mean over seeds" if any(len(group) > 1 for group in groups(runs).values()) else ""


def _grown(figure: Any, runs: Sequence[Records], values: Values, against: str, form: str = "") -> None:
    """One curve per rule: the mean over the seeds that are furthest along, at the rounds that all of them have.

    If there is only one rule, its seeds are drawn too, as thin lines.
    """
    form, alike = form or metric_of(runs).form, groups(runs)
    shown = looks_of(alike)
    for name, group in alike.items():
        known = {run: found for run in group if (found := values(run))}
        last = max((max(found) for found in known.values()), default=0)
        some = [run for run, found in known.items() if max(found) == last]
        numbers = sorted(set.intersection(*(set(known[run]) for run in some))) if some else []
        if not numbers:
            continue
        words = f"{name} ({seeds_of(some, group)})" if len(group) > 1 else group[0].name
        x = [spent(run, against, numbers) for run in some]
        y = np.array([[known[run][n] for n in numbers] for run in some])
        if len(alike) == 1 and len(some) > 1:
            for run, one, seed in zip(some, x, y, strict=True):
                thin = _curve(f"seed {run.seed}", one, seed, shown[name], form)
                figure.add_trace(thin.update(mode="lines", opacity=0.45, line={"width": 1}, showlegend=False))
        curve = _curve(words, np.mean(x, axis=0), y.mean(axis=0), shown[name], form)
        figure.add_trace(curve.update(legendgroup=plain(name)))


def spent(run: Records, against: str, numbers: Sequence[int]) -> Array:
    """Positions of rounds on an axis: their number, or what was used up to and including them."""
    if against == "rounds":
        return np.array(numbers, dtype=float)
    column = {"seconds": "latency", "joules": "joules", "bytes": "bytes"}[against]
    totals = dict(zip((r["round"] for r in run.rounds), run.spent(column), strict=True))
    return np.array([totals[n] for n in numbers]) / (1e6 if against == "bytes" else 1)


def device_curve(runs: Sequence[Records], device: int, test: str = "local") -> Any:
    """One device's score against rounds in every run; the thin line is the mean of all devices."""
    figure, metric, shown = blank(), metric_of(runs), looks_of({run.name: [run] for run in runs})
    for run in runs:
        tested = [r for r in run.tested(test) if len(r["mixed"][test]["devices"]) > device]
        if not tested:
            continue
        x = [r["round"] for r in tested]
        y = [float(r["mixed"][test]["devices"][device]) for r in tested]
        figure.add_trace(_curve(run.name, x, y, shown[run.name], metric.form))
        if len(runs) == 1:
            mean = [r["mixed"][test]["mean"] for r in tested]
            line = {"color": "#777777", "width": 1, "dash": "dot"}
            figure.add_trace(go.Scatter(x=x, y=mean, mode="lines", name="mean of all", line=line))
    if not figure.data:
        return empty("not tested yet", 320)
    return _framed(figure, f"device {device}: {test} {metric.words}", "round", metric, 320)


def _curve(name: str, x: Any, y: Any, style: Look, form: str) -> Any:
    marker = {"symbol": style.symbol, "size": 8 if len(x) <= 40 else 5, "maxdisplayed": 40}
    line = {"color": style.colour, "dash": style.dash, "width": 2}
    hover = f"%{{x:.6g}}: %{{y:{form}}}<extra>" + plain(name) + "</extra>"
    x, y = np.asarray(x, np.float32), np.asarray(y, np.float32)  # halves the size of the page
    return go.Scatter(
        x=x, y=y, name=wrapped(name, 40), mode="lines+markers", line=line, marker=marker, hovertemplate=hover
    )


def _framed(figure: Any, title: str, x: str, metric: Metric, height: int = 420) -> Any:
    return styled(
        figure,
        title,
        height,
        xaxis={"title": x, "rangemode": "tozero"},
        yaxis={
            "title": metric.words,
            "tickformat": metric.ticks,
            "rangemode": "nonnegative" if metric.share else "normal",
        },
        legend=LEGEND,
        margin={"l": 60, "r": 16, "t": 48, "b": 90},
    )


# --- rules against each other -------------------------------------------------------------------------------------


def pareto(runs: Sequence[Records]) -> Any:
    """Local against global score at the last test: the path from Local through rising mu to FedAvg."""
    metric = metric_of(runs)
    points: dict[str, list[tuple[float, float]]] = {}
    counts: dict[str, str] = {}
    alike = groups(runs)
    shown = looks_of(alike)
    for name, group in alike.items():
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
        spread = np.std(found, axis=0, ddof=1) if len(found) > 1 else np.zeros(2)
        errors = {
            f"error_{axis}": {"array": [s], "visible": len(found) > 1, "thickness": 1.2}
            for axis, s in zip("xy", spread, strict=True)
        }
        hover = (
            f"{plain(name)}: local %{{y:{metric.form}}}, global %{{x:{metric.form}}} ({counts[name]})<extra></extra>"
        )
        marker = {"color": shown[name].colour, "symbol": shown[name].symbol, "size": 12}
        x, y = [[value] for value in means[name]]
        words = {"name": wrapped(name, 40), "legendgroup": plain(name), "hovertemplate": hover}
        figure.add_trace(go.Scatter(x=x, y=y, mode="markers", marker=marker, **words, **errors))
    return styled(
        figure,
        f"local against global {metric.words}",
        460,
        xaxis={"title": f"global {metric.words}{' (all labels)' * metric.share}", "tickformat": metric.ticks},
        yaxis={"title": f"local {metric.words}{' (own labels)' * metric.share}", "tickformat": metric.ticks},
        legend=LEGEND,
        margin={"l": 64, "r": 16, "t": 48, "b": 90},
    )


def paired(runs: Sequence[Records], baseline: str, test: str = "local") -> list[Paired]:
    """Differences of every rule from a baseline at the last test, seed by seed: see `fedfilt.runs.paired`."""
    last = {
        name: {run.seed: float(run.tested(test)[-1]["mixed"][test]["mean"]) for run in furthest(group, test)}
        for name, group in groups(runs).items()
    }
    return paired_scores(last, baseline)


def paired_differences(runs: Sequence[Records], baseline: str, test: str = "local") -> Any:
    """How far every rule is above a baseline: seeds as rings, their mean, and its confidence interval."""
    rows, metric = paired(runs, baseline, test), metric_of(runs)
    if not rows:
        return empty("no other rule was tested with the same seeds")
    unit = 100 if metric.share else 1  # differences of percentages are in points
    figure, shown = blank(), looks_of(groups(runs))
    figure.add_vline(x=0, line={"color": INK, "width": 1.5}, layer="below")
    place = -1.0
    for row in rows:
        style, group, name = shown[row.name], plain(row.name), wrapped(row.name, 46)
        place += 1 + 0.35 * name.count("<br>")
        own = {"legendgroup": group, "showlegend": False}
        said = f"{group}: {difference(metric, row.mean)}"
        if len(row.seeds) > 1:
            said += f" ({difference(metric, row.low)} to {difference(metric, row.high)}, {len(row.seeds)} seeds)"
            ends, line = [unit * row.low, unit * row.high], {"color": style.colour, "width": 3}
            figure.add_trace(go.Scatter(x=ends, y=[place] * 2, mode="lines", line=line, hoverinfo="skip", **own))
        rings = {"symbol": "circle-open", "size": 7, "color": style.colour}
        each = [f"seed {seed}: {difference(metric, value)}" for seed, value in zip(*row[1:3], strict=True)]
        x = [unit * value for value in row.differences]
        figure.add_trace(go.Scatter(x=x, y=[place] * len(x), mode="markers", marker=rings, text=each, **own))
        figure.data[-1].hovertemplate = "%{text}<extra></extra>"
        dot = {"symbol": style.symbol, "size": 12, "color": style.colour}
        figure.add_trace(go.Scatter(x=[unit * row.mean], y=[place], mode="markers", marker=dot, name=group, **own))
        figure.data[-1].hovertemplate = said + "<extra></extra>"
        # Above its line, not beside the axis: on a phone, long names do not fit there
        at = {"x": 0, "xref": "paper", "xanchor": "left", "y": place - 0.2, "yanchor": "bottom", "showarrow": False}
        box = {"bgcolor": "rgba(255,255,255,0.85)", "borderpad": 0}
        figure.add_annotation(text=name, align="left", font={"size": 12}, **at, **box)
    return styled(
        figure,
        f"{test} {metric.words}: difference from {baseline}, {SURE:.0%} interval",
        round(156 + 46 * place),
        xaxis={
            "title": f"difference in {test} {metric.words}{', points' * metric.share}",
            "tickformat": "+~g",
            "nticks": 6,
        },
        yaxis={"visible": False, "range": [place + 0.4, -0.75], "fixedrange": True},
        margin={"l": 16, "r": 16, "t": 48, "b": 52},
    )


def device_scatter(one: Sequence[Records], other: Sequence[Records], test: str = "local") -> Any:
    """Every device under two rules, one dot per device and seed; above the line, `other` serves the device better."""
    metric = metric_of([*one, *other])
    mine, theirs = by_seed(one, test), by_seed(other, test)
    seeds = sorted(set(mine) & set(theirs))
    pairs = [(a, b, seed, i) for seed in seeds for i, (a, b) in enumerate(zip(mine[seed], theirs[seed], strict=False))]
    pairs = [pair for pair in pairs if pair[0] is not None and pair[1] is not None]
    if not pairs:
        return empty("no device was tested under both with the same seed")
    x, y = np.array([pair[:2] for pair in pairs], float).T
    ends = [min(x.min(), y.min()), max(x.max(), y.max())] if not metric.share else [0, 1]
    line = {"color": FAINT, "width": 1.5}
    figure = blank(go.Scatter(x=ends, y=ends, mode="lines", line=line, hoverinfo="skip", showlegend=False))
    marker = {"color": other[0].look.colour, "symbol": other[0].look.symbol, "size": 8, "opacity": 0.65}
    hover = f"%{{text}}: %{{x:{metric.form}}} and %{{y:{metric.form}}}<extra></extra>"
    text = [f"device {device}, seed {seed}" for _, _, seed, device in pairs]
    figure.add_trace(go.Scatter(x=x, y=y, mode="markers", marker=marker, text=text, hovertemplate=hover))
    figure.data[-1].update(showlegend=False, meta=f"{'less' if metric.lower else 'more'} is better")
    better = int(((y < x) if metric.lower else (y > x)).sum())
    return styled(
        figure,
        f"{test} {metric.words}, device by device: {better} of {len(pairs)} do better on the vertical axis",
        480,
        xaxis={"title": {"text": wrapped(one[0].label, 40), "font": {"size": 12}}, "tickformat": metric.ticks},
        yaxis={"title": {"text": wrapped(other[0].label, 40), "font": {"size": 12}}, "tickformat": metric.ticks},
        margin={"l": 64, "r": 16, "t": 48, "b": 60},
    )


def by_seed(runs: Sequence[Records], test: str) -> dict[int, list[float | None]]:
    """The scores of all devices at the last test, by seed; None for devices that were not tested."""
    found = {run.seed: run.accuracies(test) for run in furthest(runs, test)}
    return {
        seed: [float(f"{value:.4g}") if np.isfinite(value) else None for value in values]
        for seed, values in found.items()
        if values is not None
    }
