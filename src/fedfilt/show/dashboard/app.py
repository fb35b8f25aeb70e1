"""The page's reactions: what to redraw when the runs grow or the reader makes another choice."""

import hashlib
import logging
import time
from typing import Any

import flask
from dash import Dash, Input, Output, State, ctx, no_update, set_props

from fedfilt._version import __version__
from fedfilt.mixing import strength
from fedfilt.runs.records import Records
from fedfilt.runs.rules import filter_of, with_strength
from fedfilt.show import figures
from fedfilt.show.dashboard import opening, page, steering
from fedfilt.show.dashboard.folders import Watch, run_key
from fedfilt.show.dashboard.home import add_home

log = logging.getLogger("fedfilt")
HOLD = 15.0  # seconds between redraws of pictures while a run trains: drawing takes the CPU from training


def make_app(watch: Watch) -> Dash:
    """The Dash application for these runs."""
    app = Dash(
        __package__,  # its assets lie next to it
        title="fedfilt",
        update_title="",
        assets_folder="assets",
        assets_ignore=r"^home\.",  # assets of another page
        suppress_callback_exceptions=True,  # otherwise every page carries a second copy of itself
        on_error=_on_error,
        add_log_handler=False,
    )

    def layout() -> Any:
        watch.refresh()
        run = first(watch)
        return page.layout(watch.experiments, run, marks(watch, run), bool(watch.homes))

    def index(**parts: str) -> str:
        watch.refresh()
        if watch.only_homes:
            flask.abort(flask.redirect("/home"))
        return opening.html(first(watch), parts, of(watch, first(watch)))

    app.layout = layout
    app.interpolate_index = index  # type: ignore[method-assign,assignment]
    app.server.add_url_rule(f"/{opening.PLOTLY}", view_func=opening.plotly)
    add_home(app.server, watch)
    _follow(app, watch)
    _draw(app, watch)
    _steer(app, watch)
    return app


def first(watch: Watch) -> Records | None:
    """The run to open with: one that is running, else one with rounds, else any; of several, the newest."""
    running = ("running", "stopping")
    return max(watch.runs, key=lambda r: (r.status in running, bool(r.rounds), r.changed), default=None)


def of(watch: Watch, run: Records | None) -> str:
    """The experiment of a run, or "" if there is only one."""
    return watch.experiment(run)[0] if len(watch.experiments) > 1 else ""


def marks(watch: Watch, run: Records | None) -> dict[str, Any]:
    """What a reader of this run has seen, as stored in the page."""
    tests = [len(r.tested("local")) + len(r.tested("global")) for r in watch.runs]
    return {
        "state": "" if run is None else run.status,
        "run": None if run is None else run_key(run),
        "runs": [f"{run_key(r)} {r.name}" for r in watch.runs],
        "tests": f"{None if run is None else run_key(run)} {tests} {run is not None and run.graph is not None}",
        "played": None if run is None else f"{run_key(run)} {run.rounds[-1]['round'] if run.rounds else 0}",
    }


class Pulse:
    """What a page requests every four seconds. Its mark says when to redraw: not too often while a run trains."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._held: dict[str, tuple[float, str]] = {}  # run -> when its growth was last shown, and what it was

    def __call__(self, key: str) -> dict[str, Any]:
        """The line at the top, the latest events, and the mark."""
        self._watch.refresh()
        run = self._watch.run(key) or first(self._watch)
        now = marks(self._watch, run)
        name, growth = str(now["run"]), f"{now['tests']} {now['played']}"
        when, shown = self._held.get(name, (float("-inf"), ""))
        if time.monotonic() - when >= HOLD or run is None or run.status != "running":
            when, shown = self._held[name] = (time.monotonic() if growth != shown else when, growth)
        states = [r.status for r in self._watch.runs]
        said = [] if run is None else [*run.notes, steering.complaint(run)]
        mark = hashlib.sha256(repr((shown, now["runs"], states, said)).encode()).hexdigest()[:16]
        homes = bool(self._watch.homes)
        words = page.progress(run, of(self._watch, run))
        return {**words, "events": page.events(run), "mark": mark, "homes": homes}


def _follow(app: Dash, watch: Watch) -> None:
    pulse = Pulse(watch)
    app.server.add_url_rule("/_pulse", view_func=lambda: pulse(flask.request.args.get("run", "")))

    @app.callback(
        Output("notes", "children"),
        Output("advice", "children"),
        Output("table", "children"),
        Output("stop", "disabled"),
        Output("resume", "disabled"),
        Output("run", "options"),
        Output("beside", "options"),
        Output("run", "value"),
        Output("round", "max"),
        Output("round", "value"),
        Output("device", "max"),
        Output("tests", "data"),
        Output("played", "data"),
        Output("seen", "data"),
        Input("pulse", "data"),
        Input("run", "value"),
        State("seen", "data"),
        State("round", "value"),
        State("shown", "data"),
    )
    def follow(_: str, key: str, seen: dict[str, Any] | None, value: int, shown: int | None) -> Any:
        """Something is new, or another run was chosen: send what has changed."""
        seen = seen if isinstance(seen, dict) else {}
        run = watch.run(key) or first(watch)
        now = marks(watch, run)
        if now["state"] != seen.get("state"):
            set_props("said", {"children": ""})  # a message about the previous state
        chosen = now["run"] != seen.get("run")
        last = run.rounds[-1]["round"] if run is not None and run.rounds else 1
        new_value = last if shown is None or chosen else min(int(value or last), last)
        new_runs = page.options(watch.experiments) if now["runs"] != seen.get("runs") else no_update
        return [
            page.notes(run),
            page.advice(run),
            page.table(watch.experiments, run),
            run is None or run.status != "running",
            run is None or run.status != "stopped",
            new_runs,
            new_runs,
            now["run"] if now["run"] != key else no_update,
            max(last, 2),
            new_value if new_value != value else no_update,
            max((run.count if run is not None else 0) - 1, 0),
            now["tests"] if now["tests"] != seen.get("tests") else no_update,
            now["played"] if now["played"] != seen.get("played") else no_update,
            now,
        ]

    app.clientside_callback(  # type: ignore[no-untyped-call]
        "(run, said) => { window.fedfilt_run = run; if (window.fedfilt_look) window.fedfilt_look(); }",
        Input("run", "value"),
        Input("said", "children"),
    )

    @app.callback(
        Output("shown", "data"),
        Output("round-label", "children"),
        Input("round", "value"),
        Input("latest", "n_clicks"),
        State("round", "max"),
        State("run", "value"),
        State("shown", "data"),
    )
    def look_back(value: int | None, _: int, top: int, key: str, shown: int | None) -> Any:
        """Hold an earlier round; at the end of the slider, follow the run."""
        run = watch.run(key)
        last = run.rounds[-1]["round"] if run is not None and run.rounds else 1
        if ctx.triggered_id == "latest":
            set_props("round", {"value": last})
            value = last
        held = None if value is None or value >= min(last, top) else int(value)
        words = "Round (latest)" if held is None else f"Round {held}"
        return (held if held != shown else no_update), words


def _draw(app: Dash, watch: Watch) -> None:
    @app.callback(
        Output("curves", "children"),
        Output("below", "children"),
        Input("ready", "data"),
        State("run", "value"),
        prevent_initial_call=True,
    )
    def lower(ready: Any, key: str) -> Any:
        run = watch.run(key)
        return page.lower(watch.experiment(run)[1], run) if ready else [no_update] * 2

    @app.callback(
        Output("building", "figure"),
        Output("building-beside", "figure"),
        Output("beside-panel", "hidden"),
        Input("tests", "data"),
        Input("played", "data"),
        Input("colour", "value"),
        Input("shown", "data"),
        Input("device", "value"),
        Input("beside", "value"),
        Input("visible", "data"),
        State("run", "value"),
        prevent_initial_call=True,
    )
    def building(
        _: Any, __: Any, colour: str, shown: int | None, device: int | None, beside: str, seen: Any, key: str
    ) -> Any:
        changing = "tests.data" if colour in ("local", "global") else "played.data"
        if skip("building", seen) or (_triggers() <= GROWTH and not _triggers() & {changing, "visible.data"}):
            return [no_update] * 3
        run, other = watch.run(key), watch.run(beside)
        if run is None:
            return [figures.empty("no run", 520), no_update, True]
        pictures = [
            _titled(figures.building(r, colour, shown, _device(device)), r) for r in (run, other) if r is not None
        ]
        return [pictures[0], pictures[1] if other is not None else no_update, other is None]

    # Figures notice a resized window, but not a neighbour that comes or goes
    app.clientside_callback(  # type: ignore[no-untyped-call]
        "() => { setTimeout(() => window.dispatchEvent(new Event('resize')), 60); }",
        Input("beside-panel", "hidden"),
    )

    def _titled(figure: Any, run: Records) -> Any:
        if len(watch.runs) > 1:
            words = " ".join(figure.layout.title.text.split("<br>")).removeprefix("the building: ")
            figures.titled(figure, f"{run.name}: {words}")
        return figure

    @app.callback(
        Output("local", "figure"),
        Output("global", "figure"),
        Input("tests", "data"),
        Input("against", "value"),
        Input("shown", "data"),
        Input("beside", "value"),
        Input("visible", "data"),
        State("run", "value"),
        prevent_initial_call=True,
    )
    def accuracy(_: Any, against: str, shown: int | None, beside: str, seen: Any, key: str) -> Any:
        if skip("local", seen) and skip("global", seen):
            return [no_update] * 2
        run = watch.run(key)
        runs = page.curves(watch.experiment(run)[1], run, watch.run(beside))
        return [figures.accuracy(runs, test, against, shown) for test in ("local", "global")]

    @app.callback(
        Output("timeline", "figure"),
        Output("timeline", "style"),
        Input("played", "data"),
        Input("shown", "data"),
        Input("visible", "data"),
        State("run", "value"),
    )
    def timeline(_: Any, shown: int | None, seen: Any, key: str) -> Any:
        if skip("timeline", seen):
            return [no_update] * 2
        run = watch.run(key)
        figure = figures.empty("no run") if run is None else figures.round_timeline(run, shown)
        return figure, page.height(figure)

    @app.callback(
        Output("plan", "children"),
        Output("device-curve", "figure"),
        Output("neighbours", "children"),
        Input("device", "value"),
        Input("tests", "data"),
        Input("played", "data"),
        Input("shown", "data"),
        Input("beside", "value"),
        Input("visible", "data"),
        State("run", "value"),
        prevent_initial_call=True,
    )
    def device(chosen: int | None, _: Any, __: Any, shown: int | None, beside: str, seen: Any, key: str) -> Any:
        if skip("device-curve", seen):
            return [no_update] * 3
        run = watch.run(key)
        if not isinstance(chosen, int) or not 0 <= chosen < (run.count if run is not None else 0):
            return [page.no_device(run), figures.empty("no such device", 320), None]
        number = chosen
        only_played = _triggers() == {"played.data"}
        shares = no_update if only_played else page.neighbours(run, number, shown)
        runs = [r for r in (run, watch.run(beside)) if r is not None]
        curve = no_update if only_played else figures.device_curve(runs, number)
        return [page.plan(run, number, shown), curve, shares]

    @app.callback(
        Output("response", "figure"),
        Output("mixing", "figure"),
        Output("learns-from", "figure"),
        Output("mu-label", "children"),
        Output("mu-words", "children"),
        Input("mu", "value"),
        Input("device", "value"),
        Input("run", "value"),
    )
    def what_if(value: float, chosen: int | None, key: str) -> Any:
        run = watch.run(key)
        if run is None or run.graph is None or not isinstance(value, int | float):
            return [*[figures.empty("the graph is still unknown", 340)] * 3, "μ", ""]
        mu = 10.0 ** float(value)
        only_device = _triggers() == {"device.value"}
        now, weights = run.moment(), run.weights()
        assert now is not None
        held = weights[now.present] if weights is not None and len(weights) == run.graph.count else None
        words = ""
        if not only_device:
            try:
                kind = with_strength(filter_of(run.config), mu)
                words = (
                    f"With μ = {mu:.3g} {strength(now.among, kind, held if held is not None and held.any() else None)}."
                )
            except ValueError as error:
                words = str(error)
        return [
            no_update if only_device else figures.response(run, mu),
            no_update if only_device else figures.mixing(run, mu),
            figures.learns_from(run, _device(chosen), mu),
            f"μ = {mu:.3g}",
            no_update if only_device else words,
        ]


def _steer(app: Dash, watch: Watch) -> None:
    @app.callback(
        Output("device", "value"),
        Input("building", "clickData"),
        Input("building-beside", "clickData"),
        Input("learns-from", "clickData"),
        prevent_initial_call=True,
    )
    def click(*clicks: Any) -> Any:
        """Choose the device that was clicked."""
        try:
            chosen = next(c for c in ctx.triggered if c["value"])["value"]["points"][0]["customdata"]
        except (StopIteration, LookupError, TypeError):
            return no_update
        return chosen if isinstance(chosen, int) else no_update

    @app.callback(
        Output("said", "children"),
        Input("stop", "n_clicks"),
        Input("resume", "n_clicks"),
        State("run", "value"),
        prevent_initial_call=True,
    )
    def steer(_: Any, __: Any, key: str) -> Any:
        """Stop or resume the run shown."""
        run = watch.run(key)
        if run is None:
            return "there is no run to stop or resume"
        return steering.stop(run) if ctx.triggered_id == "stop" else steering.resume(run)


GROWTH = {"tests.data", "played.data", "visible.data"}


def _triggers() -> set[str]:
    return {trigger["prop_id"] for trigger in ctx.triggered}


def skip(name: str, visible: Any) -> bool:
    """Whether a figure need not be redrawn now: the run has grown, but the figure is out of sight."""
    return _triggers() <= GROWTH and isinstance(visible, list) and name not in visible


def _device(value: Any) -> int:
    return value if isinstance(value, int) and value >= 0 else 0


def _on_error(error: Exception) -> None:
    """Report an unexpected error on the page and in the log; the page stays as it was."""
    log.warning("dashboard %s: %s: %s", __version__, type(error).__name__, error)
    set_props("said", {"children": "Something could not be drawn; see the terminal for details."})
