"""What the page shows: components and texts made from records. Reactions to the reader are in `app`."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from dash import dcc, html

from fedfilt._parts import find, names
from fedfilt.runs.advice import kept
from fedfilt.runs.groups import furthest, groups
from fedfilt.runs.records import Records
from fedfilt.show import figures
from fedfilt.show.dashboard.folders import run_key
from fedfilt.show.dashboard.steering import complaint
from fedfilt.show.shares import taken
from fedfilt.show.words import dated, heading, last, metric_of
from fedfilt.training.client import is_personal
from fedfilt.training.goal import ACCURACY

EVENTS, CURVES, NEIGHBOURS = 60, 12, 8  # shown at most
LOW, HIGH = -2, 4  # of log10 mu
WORDS = {
    "running": "running",
    "stopping": "will stop after this round",
    "stopped": "stopped",
    "finished": "finished",
    "waiting": "waiting for its first files",
    "missing": "missing",
}
GRAPH: Any = {"responsive": True, "displaylogo": False, "displayModeBar": False}


def layout(
    experiments: Mapping[str, Sequence[Records]], run: Records | None, marks: dict[str, Any], homes: bool = False
) -> Any:
    """The page as it opens, on one run; `marks` is what the reader has seen by then, `homes` whether homes exist."""
    choices = options(experiments)
    experiment = next((name for name, found in experiments.items() if run in found), "")
    last = run.rounds[-1]["round"] if run is not None and run.rounds else 1
    key = run_key(run) if run is not None else None
    controls = [
        _field("Run", dcc.Dropdown(choices, key, id="run", clearable=False, optionHeight="auto", maxHeight=420)),
        _field(
            "Compare with", dcc.Dropdown(choices, None, id="beside", placeholder="no other run", optionHeight="auto")
        ),
        html.Div(
            [
                html.Button("Stop", id="stop", disabled=True),
                html.Button("Resume", id="resume", disabled=True),
            ],
            className="buttons",
        ),
    ]
    return html.Div(
        [
            html.Header(
                [
                    html.H1("fedfilt"),
                    html.Div(status(run, experiment if len(experiments) > 1 else ""), id="status", role="status"),
                    html.A("the living home", href="/home", id="to-home", hidden=not homes),
                ]
            ),
            html.Div(controls, className="controls"),
            html.Div(notes(run), id="notes"),
            html.Div("", id="said", role="status"),
            html.Div(
                [
                    html.Label("Round", id="round-label"),
                    dcc.Slider(1, max(last, 2), 1, value=last, id="round", marks=None, updatemode="drag"),
                    html.Button("Latest", id="latest"),
                ],
                className="rounds",
            ),
            html.Main(
                [
                    html.Div([_building(run), html.Div(id="curves", className="stack")], className="stack"),
                    html.Div(
                        [
                            _device(run),
                            _runs(experiments, run),
                            _panel("Advice", [html.Div(advice(run), id="advice")]),
                            _panel("Events", [html.Pre(events(run), id="events", tabIndex=0, role="log")]),
                        ],
                        className="stack",
                    ),
                ]
            ),
            html.Div(id="below", className="below"),
            dcc.Store(id="ready", data=None),
            dcc.Store(id="seen", data=marks),
            dcc.Store(id="tests", data=marks.get("tests")),
            dcc.Store(id="played", data=marks.get("played")),
            dcc.Store(id="shown", data=None),
            dcc.Store(id="visible", data=None),
            dcc.Store(id="pulse", data=None),
        ]
    )


def lower(runs: Sequence[Records], run: Records | None) -> tuple[list[Any], list[Any]]:
    """The rest of the page, from the curves down: loaded once the first view is drawn."""
    below = [
        _what_if(run),
        _panel("Who learns how much from whom", [_graph("mixing", figures.empty("…", 460))]),
        _panel("The chosen device learns from", [_graph("learns-from", figures.empty("…", 460))]),
    ]
    return [_accuracy(runs, run), _timeline(run)], below


def building_picture(run: Records | None) -> Any:
    """The building as the page opens."""
    return figures.empty("no run", 520) if run is None else figures.building(run, device=0)


def _building(run: Records | None) -> Any:
    picture = building_picture(run)
    pictures = html.Div(
        [
            _graph("building", picture),
            html.Div(_graph("building-beside", figures.empty("", 520)), id="beside-panel", hidden=True),
        ],
        id="buildings",
        tabIndex=0,
        role="group",
        **_named("The building. Left and right arrow keys choose a device."),
    )
    known = figures.colours(ACCURACY if run is None else run.metric)
    choices = _radio("colour", {key: words for key, (words, _) in known.items()})
    return _panel("The building", [_field("Colour", choices), pictures])


def _runs(experiments: Mapping[str, Sequence[Records]], run: Records | None) -> Any:
    search = dcc.Input(id="search", type="search", placeholder="words in the name", debounce=False)
    shown = html.Div(table(experiments, run), id="table")
    return _panel("Runs", [_field("Search", search), shown])


def _accuracy(runs: Sequence[Records], run: Records | None) -> Any:
    drawn = curves(runs, run)
    both = [_graph(test, figures.accuracy(drawn, test)) for test in ("local", "global")]
    against = _radio("against", {key: figures.axis_of(drawn, key) for key in figures.AGAINST})
    words = heading(metric_of(drawn))
    return _panel(words, [_field("Against", against), html.Div(both, className="pair")])


def _timeline(run: Records | None) -> Any:
    figure = figures.empty("no run") if run is None else figures.round_timeline(run)
    return _panel("Timeline of the round", [_graph("timeline", figure)])


def _device(run: Records | None) -> Any:
    last = max(run.count - 1, 0) if run is not None else 0
    number = dcc.Input(0, type="number", min=0, max=last, step=1, id="device")
    curve = _graph("device-curve", figures.device_curve([run] if run is not None else [], 0))
    told = html.Div(plan(run, 0, None), id="plan"), curve, html.Div(neighbours(run, 0, None), id="neighbours")
    return _panel("Device", [_field("Number", number), *told])


def _what_if(run: Records | None) -> Any:
    ticks: Any = {n: f"{10.0**n:g}" for n in range(LOW, HIGH + 1)}
    more: Any = {"marks": ticks, "updatemode": "drag", "allow_direct_input": False}
    return _panel(
        "What if μ were different?",
        [
            html.P("Computed on the graph; the run itself does not change.", className="soft"),
            html.Label("μ", id="mu-label"),
            dcc.Slider(LOW, HIGH, 0.05, value=strength(run), id="mu", **more),
            html.P("", id="mu-words"),
            _graph("response", figures.empty("…", 340)),
        ],
    )


def options(experiments: Mapping[str, Sequence[Records]]) -> list[dict[str, str]]:
    """The runs that can be chosen."""
    several = len(experiments) > 1
    return [
        {"label": f"{name}: {run.name}" if several and run.config else run.name, "value": run_key(run)}
        for name, found in experiments.items()
        for group in groups(found).values()
        for run in group
    ]


def strength(run: Records | None) -> float:
    """log10 of the run's own μ, or 0."""
    kind = run.config.get("aggregator") if run is not None else None
    mu = kind["filter"].get("mu") if isinstance(kind, dict) and isinstance(kind.get("filter"), dict) else None
    return float(np.clip(np.round(np.log10(mu), 2), LOW, HIGH)) if isinstance(mu, int | float) and mu > 0 else 0.0


def curves(runs: Sequence[Records], run: Records | None, beside: Records | None = None) -> list[Records]:
    """The runs whose curves are drawn: the chosen ones with all their seeds, then others of the experiment."""
    first = [r for r in (run, beside) if r is not None]
    together = [*runs, *(r for r in first if r not in runs)]
    alike = list(groups(r for r in together if r.rounds or r in first).values())
    kept = sorted(alike, key=lambda group: not any(r in group for r in first))[:CURVES]
    return [r for r in together if any(r in group for group in kept)]


def progress(run: Records | None, experiment: str = "") -> dict[str, str]:
    """How far a run has got; its experiment is named if there are several."""
    if run is None:
        return {"words": "no run yet", "state": "waiting", "done": "0", "planned": "1"}
    done = run.rounds[-1]["round"] if run.rounds else 0
    words = f"{f'{experiment}, ' if experiment else ''}{run.name}: {WORDS.get(run.status, run.status)}"
    text = f"{words}, round {done} of {run.planned}" if run.planned else words
    spent = (run.rounds[-1].get("privacy") or {}).get("epsilon") if run.rounds else None
    if spent is not None:
        text += f", epsilon {spent:.3g}"
    return {"words": text, "state": run.status, "done": str(done), "planned": str(max(run.planned, 1))}


def status(run: Records | None, experiment: str = "") -> Any:
    """One line on how far a run has got."""
    now = progress(run, experiment)
    bar = html.Progress(id="status-bar", value=now["done"], max=now["planned"], **_named("rounds played"))
    return [html.Span(now["words"], id="status-words", className=f"state {now['state']}"), bar]


def notes(run: Records | None) -> Any:
    """What is wrong or unusual."""
    if run is None:
        return html.P(
            "There is no run in the given folders yet; this page will show the first that starts.", className="note"
        )
    found = [text for text in [*run.notes, complaint(run)] if text]
    return [html.P(text, className="note") for text in found]


def advice(run: Records | None) -> Any:
    """The advice of `fedfilt advise` and what it measured, or how to get advice if there is none."""
    found = None if run is None else kept(run.folder)
    if found is None:
        place = "RUN" if run is None else run.folder
        words = "To find out whether a graph helps here and which rule to use, run "
        return html.P([words, html.Code(f"fedfilt advise {place}")], className="soft")
    rows = [html.Tr([html.Th(name), html.Td(value)]) for name, value in found["measured"].items()]
    return [*map(html.P, found["sentences"]), html.Table(html.Tbody(rows), className="plan")]


def events(run: Records | None) -> str:
    """What happened to devices, newest first, one line each."""
    if run is None or not run.events:
        return "Nothing yet: devices that join, leave, come late, are rejected or left out will appear here."
    recent = [dated(event) for event in run.events[: -EVENTS - 1 : -1]]
    more = len(run.events) - len(recent)
    return "\n".join([*recent, *([f"and {more} before"] if more else [])])


def table(experiments: Mapping[str, Sequence[Records]], chosen: Records | None) -> Any:
    """All runs side by side, by experiment, with the seeds of a rule below their mean.

    A script (assets/runs.js) folds experiments and seeds, searches, and lets a click choose a run.
    """
    runs = [run for found in experiments.values() for run in found]
    real = [run.real_time for run in runs]
    seconds = "real" if real and all(real) else "real on real devices, else simulated" if any(real) else "simulated"
    names = ("run", "round", "local", "worst", "global", "time")
    bodies = []
    for number, (name, found) in enumerate(experiments.items()):
        if len(experiments) > 1:
            opened = chosen in found or (chosen is None and number == 0)
            title = _button(name, "experiment", expanded=opened)
            bodies.append(html.Tbody(html.Tr(html.Th(title, colSpan=len(names))), key=name, **_data(kind="experiment")))
        for label, group in groups(found).items():
            bodies.append(_group(name, label, group, chosen))
    caption = html.Caption(f"{metric_of(runs).words} at the last test; seconds are {seconds}")
    head = html.Thead(html.Tr([html.Th(words) for words in names]))
    return html.Table([caption, head, *bodies])


def _group(experiment: str, label: str, group: Sequence[Records], chosen: Records | None) -> Any:
    """A rule: its name across the whole width, the mean of its seeds, and each seed below."""
    one = len(group) == 1
    marked = "chosen" if chosen in group else ""
    key = run_key(group[0]) if one else f"{experiment} {label}"
    name = group[0].name if one or not group[0].config else label
    first = _button(name, run=run_key(group[0])) if one else html.Span(label)
    who = "" if one else _button(f"{len(group)} seeds", "seeds")
    rows = [html.Tr(html.Td(first, colSpan=6, className=f"name {marked}")), html.Tr([html.Td(who), *_cells(group)])]
    if not one:
        rows += [
            html.Tr(
                [html.Td(_button(f"seed {run.seed}", run=run_key(run))), *_cells([run])], hidden=True, **_data(seed="")
            )
            for run in group
        ]
    words = " ".join([experiment, label, *(f"seed {run.seed} {WORDS.get(run.status, '')}" for run in group)])
    return html.Tbody(rows, key=key, **_data(kind="group", of=experiment, words=words, key=key))


def _cells(group: Sequence[Records]) -> list[Any]:
    """How far runs have got, and the means of their scores and times."""
    metric = metric_of(group)
    played = [run.rounds[-1]["round"] if run.rounds else 0 for run in group]
    states = dict.fromkeys(WORDS.get(run.status, run.status) for run in group if run.status != "finished")
    cells = [" ".join([f"{min(played)}/{group[0].planned}", *([", ".join(states)] if states else [])])]
    for test, key in (("local", "mean"), ("local", "worst"), ("global", "mean")):
        values = [value for run in furthest(group, test) if np.isfinite(value := last(run, test, key))]
        cells.append(metric.text(float(np.mean(values))) if values else "–")
    spent = [float(run.spent("latency")[-1]) for run in group if run.rounds]
    cells.append(f"{np.mean(spent):.3g} s" if spent else "–")
    return [html.Td(cell) for cell in cells]


def _button(words: str, fold: str = "", expanded: bool = False, run: str = "") -> Any:
    """A button that folds part of the table or chooses a run."""
    more: Any = _data(run=run)
    if fold:
        more = {**_data(fold=fold, first=str(expanded).lower()), "aria-expanded": str(expanded).lower()}
    return html.Button(words, className="plain", **more)


def _data(**values: str) -> Any:
    return {f"data-{key}": value for key, value in values.items()}


def plan(run: Records | None, device: int, number: int | None) -> Any:
    """What a device was to do in a round, and what that cost."""
    columns = run.columns(number) if run is not None else {}
    if run is None or not run.rounds or not columns:
        return html.P("no round yet", className="soft")

    def cell(key: str, form: str) -> str:
        values = columns.get(key)
        return format(values[device], form) if isinstance(values, list) and device < len(values) else "–"

    rooms = None if run.graph is None else run.graph.rooms
    epochs = cell("epochs", "d")
    samples = run.weights()
    clock = "time" if run.real_time else "time, simulated"
    rows = {
        "room": "–" if rooms is None or device >= len(rooms) else str(rooms[device]),
        "samples": "–" if samples is None or device >= len(samples) else f"{samples[device]:.0f}",
        "plan": f"{epochs} epoch{'s' * (epochs != '1')} on {cell('data_fraction', '.0%')} of its data, "
        f"sends {cell('density', '.1%')}",
        "outcome": cell("outcome", "") or "–",
        clock: f"{cell('compute_seconds', '.3g')} s computing, {cell('send_seconds', '.3g')} s sending, "
        f"{cell('idle_seconds', '.3g')} s idle",
        "cost": f"{cell('joules', '.3g')} J, {cell('bytes', ',')} bytes",
    }
    for test in ("local", "global"):
        values = run.accuracies(test, number)
        if values is not None and device < len(values):
            rows[f"{test} {run.metric.words}"] = run.metric.text(float(values[device]))
    return html.Table(html.Tbody([html.Tr([html.Th(k), html.Td(v)]) for k, v in rows.items()]), className="plan")


def no_device(run: Records | None) -> Any:
    """The range of device numbers."""
    count = 0 if run is None else run.count
    return html.P(f"Devices are numbered 0 to {count - 1}." if count else "No device is known yet.", className="soft")


def neighbours(run: Records | None, device: int, number: int | None) -> Any:
    """The devices that a device takes most from, and how much."""
    if run is None or run.graph is None or device >= run.graph.count:
        return None
    try:
        found = taken(run, [device], number, NEIGHBOURS).get(device)
    except ValueError as error:
        return html.P(str(error), className="soft")
    if found is None:
        return html.P("It was away in this round.", className="soft")
    rows = []
    for one in found:
        who = "itself" if one.device == device else f"device {one.device}"
        how = "" if one.device == device else "linked" if one.linked else "through others"
        rows.append(html.Tr([html.Td(who), html.Td(f"{one.share:.1%}"), html.Td(how)]))
    return html.Table([html.Caption(_made_of(run)), html.Tbody(rows)], className="neighbours")


def _made_of(run: Records) -> str:
    """What the shares refer to: the model a device decides with, or the row from which its client makes one."""
    client = run.resolved.get("client", "plain")
    name = str(client.get("name", "plain") if isinstance(client, dict) else client)
    if ":" in name:  # do not run other people's code just to look at it
        return f"the row it received is made of (the client {name} may decide with another model)"
    if name in names("clients") and is_personal(find("clients", name)):
        return f"the row it received is made of (the client {name} decides with a model of its own)"
    return "its new model is made of"


def _named(words: str) -> Any:
    """The name that a screen reader gives an element."""
    return {"aria-label": words}


def _field(words: str, control: Any) -> Any:
    return html.Div([html.Span(words, className="label"), control], className="field")


def _radio(name: str, choices: dict[str, str]) -> Any:
    first = next(iter(choices))
    return dcc.RadioItems([{"label": w, "value": k} for k, w in choices.items()], first, id=name, inline=True)


def _graph(name: str, figure: Any) -> Any:
    return dcc.Graph(id=name, figure=figure, config=GRAPH, style=height(figure))


def height(figure: Any) -> dict[str, str]:
    """The height a figure needs; its width follows the page."""
    return {"height": f"{figure.layout.height or 420}px"}


def _panel(title: str, children: list[Any]) -> Any:
    return html.Section([html.H2(title), *children], className="panel")
