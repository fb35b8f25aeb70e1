"""A run, or a comparison of runs, as one HTML file that opens in any browser without a network."""

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from fedfilt import __version__, figures
from fedfilt.checkpoint import write_atomically
from fedfilt.checks import check_choice
from fedfilt.records import Records, find_runs
from fedfilt.seeds import differences, furthest, groups, seeds_of

PAPER = "https://doi.org/10.1109/JIOT.2022.3228727"
FORMATS = ("png", "svg", "pdf")
ROWS = 200  # devices in a table; the CSV file has all

GLOSSARY = {
    "local test": "How well a device's own model does on data like its own: only the labels that the device holds.",
    "global test": "How well a device's own model does on everybody's data, all labels.",
    "worst device": "The device with the lowest accuracy: a mean can hide it.",
    "mu": "The strength μ of mixing. μ = 0 keeps purely personal models, μ → ∞ gives one shared model.",
    "fedavg": "One shared model: the mean of all devices' models, weighted by their samples. The paper's baseline.",
    "local": "Purely personal models: nobody learns from anybody.",
    "G-Fedfilt": "The paper's rule: models pass a low-pass filter on the graph of the devices, so that devices that "
    "are linked learn more from each other.",
    "graph frequency": "λ, an eigenvalue of the graph's Laplacian: 0 for what all linked devices share, large for what "
    "differs between neighbours.",
    "filter response": "h(λ) = 1 / (1 + μλ) for the paper's filter: how much is kept of each graph frequency.",
    "mixing matrix": "Row i says what device i's new model is made of: its share of every device's trained model.",
    "deadline": "T, the moment by which a round's updates are to be there.",
    "plan outcome": "How the scheduler could fill the time: sync (ready exactly at the deadline), idle_saturated (does "
    "all it may and waits), idle_energy, idle_integer, infeasible_energy and infeasible_time (left out).",
    "latency": "I_6, simulated seconds until all rounds ended.",
    "desynchronisation": "I_7, simulated seconds between the first and the last device, summed over rounds.",
    "I_1 .. I_4": "Accuracy, macro precision, macro recall and F1 of the summed confusion matrix.",
    "joules, bytes": "Energy of computing and sending, and bytes sent, of all devices; all simulated.",
}


def write(paths: Iterable[str | Path], out: str | Path | None = None) -> Path:
    """Write the report of runs (run folders, or folders of a comparison) and give its path.

    Without `out` it is `report.html` in the folder, or here if there are several. Nothing is written on an error.
    """
    given = [Path(path) for path in paths]
    runs = readable(given)
    target = Path(out) if out is not None else (given[0] if len(given) == 1 else Path()) / "report.html"
    if target.is_dir():
        raise ValueError(f"--out must be a file, such as {target / 'report.html'}, got the folder {target}")
    target = target.resolve()  # what a link points to is written, not the link
    if target.suffix not in (".html", ".htm"):
        raise ValueError(f"--out must end in .html, got {target}")
    target.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(target, page(runs).encode())
    return target


def readable(paths: Sequence[Path]) -> list[Records]:
    """The runs in the folders; ValueError if there is nothing in them to report on."""
    for path in paths:
        if not path.is_dir():
            raise ValueError(f"no run folder {path}")
    runs = find_runs(paths)
    if not any(run.rounds for run in runs):
        why = "; ".join(dict.fromkeys(note for run in runs for note in run.notes))
        raise ValueError(f"nothing to report: {why}")
    return runs


def page(runs: Sequence[Records]) -> str:
    """The report as HTML: figures are drawn when they come into view."""
    shown = [run for run in runs if run.rounds]
    many = len(shown) > 1
    drawn = all_figures(shown)
    template = next(iter(drawn.values())).to_plotly_json()["layout"]["template"]
    tables = csv_files(shown)
    lean = {name: _lean(figure) for name, figure in drawn.items()}
    stored = script_json({"template": template, "figures": lean, "csv": tables})
    notes = [(run.name, note) for run in runs for note in run.notes]
    first, odd = shown[0], differences(shown)
    if odd:
        notes.insert(0, ("these runs", f"differ in more than rule and seed ({', '.join(odd)}): mind what you compare"))
    about = [
        _each("data", (_data(run) for run in shown)),
        _each("devices", (run.count for run in shown)),
        _each("rounds", (run.planned for run in shown)),
        _each("seed", (run.seed for run in shown)),
    ]
    title = "Comparison of " + ", ".join(dict.fromkeys(r.rule for r in shown)) if many else f"Run {first.name}"
    parts = [
        f"<h1>{escape(title)}</h1><p class='lead'>{escape(' · '.join(about))}</p>",
        "<nav aria-label='Contents'><a href='#short'>In short</a><a href='#guide'>How to read this</a>"
        "<a href='#accuracy'>Accuracy</a><a href='#detail'>One run in detail</a><a href='#numbers'>Numbers</a>"
        "<a href='#made'>How it was made</a><a href='#terms'>Terms</a></nav>",
        _notes(notes),
        f"<h2 id='short'>In short</h2><p>{escape(sentence(shown))}</p>{_summary(shown)}",
        _guide(many and not odd),
        _accuracy(many),
        _detail(shown),
        _numbers(shown, tables),
        _made(shown),
        "<h2 id='terms'>Terms</h2><dl>",
        *(f"<dt id='{_anchor(term)}'>{escape(term)}</dt><dd>{escape(text)}</dd>" for term, text in GLOSSARY.items()),
        f"</dl><p>The terms are those of the paper: Rasti-Meymandi et al., <a href='{PAPER}'><cite>Graph Federated "
        "Learning for CIoT Devices in Smart Home Applications</cite></a>, IEEE Internet of Things Journal, 2022.</p>",
    ]
    here = files("fedfilt")
    return "\n".join(
        [
            "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
            "<meta name='viewport' content='width=device-width, initial-scale=1'>",
            # The page may reach no host at all
            "<meta http-equiv='Content-Security-Policy' content=\"default-src 'none'; script-src 'unsafe-inline'; "
            "style-src 'unsafe-inline'; img-src data: blob:\">",
            f"<title>{escape(title)}</title><link rel='icon' href='data:,'>",
            f"<style>{here.joinpath('report.css').read_text(encoding='utf-8')}</style></head><body>",
            *parts,
            f"<script type='application/json' id='stored'>{stored}</script>",
            f"<script>{plotly_js()}</script><script>{here.joinpath('report.js').read_text(encoding='utf-8')}</script>",
            "<noscript><p class='notes'>The pictures need JavaScript; the numbers above do not.</p></noscript>",
            "</body></html>",
        ]
    )


def _data(run: Records) -> str:
    data = run.config.get("data") or {}
    return str(data.get("name", "?") if isinstance(data, dict) else data)


def _each(name: str, values: Iterable[Any]) -> str:
    """A word and what all runs have of it, or each has."""
    return f"{name}: {', '.join(map(str, sorted(set(values))))}"


def all_figures(runs: Sequence[Records]) -> dict[str, Any]:
    """Every figure of a report by name."""
    found = {
        f"accuracy-{test}-{against}": figures.accuracy(runs, test, against)
        for test in ("local", "global")
        for against in figures.AGAINST
    }
    found["pareto"] = figures.pareto(runs)
    for i, run in enumerate(runs):
        for colour in figures.COLOURS:
            found[f"building-{colour}-{i}"] = figures.building(run, colour)
        tested = run.tested("local")
        device = int(tested[-1]["mixed"]["local"].get("worst_device", 0)) if tested else 0
        found[f"learns_from-{i}"] = figures.learns_from(run, device)
        found[f"device_bars-local-{i}"] = figures.device_bars(run, "local")
        found[f"device_bars-global-{i}"] = figures.device_bars(run, "global")
        found[f"timeline-{i}"] = figures.round_timeline(run)
        found[f"response-{i}"] = figures.response(run)
        found[f"mixing-{i}"] = figures.mixing(run)
        found[f"confusion-{i}"] = figures.confusion(run)
        found[f"labels-{i}"] = figures.labels(run)
    return found


def write_images(runs: Sequence[Records], folder: Path, form: str) -> list[Path]:
    """Every figure as a PNG, SVG or PDF file; needs the extra fedfilt[pictures] and Chrome or Chromium."""
    check_choice("image format", form, FORMATS)
    drawn = all_figures(runs)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.{form}" for name in drawn]
    import plotly.io

    try:
        plotly.io.write_images(list(drawn.values()), paths, width=900)
    except (ValueError, RuntimeError) as error:
        if not any(folder.iterdir()):
            folder.rmdir()
        words = str(error).lower()
        if "chrome" in words or "browser" in words:
            raise ValueError(
                f"{form.upper()} files need Chrome or Chromium, and none was found: install one (on Debian, apt-get "
                "install chromium) or name it in BROWSER_PATH. The HTML report needs none."
            ) from None
        if "kaleido" in words:
            raise ValueError(
                f"{form.upper()} files need: pip install 'fedfilt[pictures]'. The HTML report does not."
            ) from None
        raise
    return paths


# --- parts of the page ------------------------------------------------------------------------------------------------


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
            f"{_percent(own)} of data like its own and on {_percent(everybody)} of everybody's; the worst, device "
            f"{device}, reaches {_percent(worst)} on its own."
        )
    best = {test: max(_scores(runs, test), key=lambda found: found[1]) for test in ("local", "global")}
    return (
        f"On its own data a device does best with {best['local'][0]} ({_spread(best['local'][2])}), on everybody's "
        f"with {best['global'][0]} ({_spread(best['global'][2])})."
    )


def _scores(runs: Sequence[Records], test: str) -> list[tuple[str, float, list[float]]]:
    """Of every rule its name, mean and each seed's accuracy at the last test; -1 if it has not been tested."""
    found = []
    for name, group in groups(runs).items():
        values = [last(run, test, "mean") for run in furthest(group, test)]
        found.append((name, float(np.mean(values)) if values else -1.0, values))
    return found


def _spread(values: Sequence[float]) -> str:
    """Mean over seeds, with the standard deviation if there are several."""
    if not len(values):
        return "–"
    return _percent(float(np.mean(values))) + (f" ± {np.std(values, ddof=1):.1%}" if len(values) > 1 else "")


def csv_files(runs: Sequence[Records]) -> dict[str, str]:
    """The numbers as CSV: a line per run, per run and round, per run and device, per event."""
    per_round: list[list[Any]] = [
        ["run", "rule", "seed", "round", "loss", "latency_seconds", "desync_seconds", "joules", "bytes"]
    ]
    per_round[0] += ["local", "local_std", "local_worst", "global", "global_std", "global_worst"]
    per_device: list[list[Any]] = [["run", "rule", "seed", "device", "room", "samples", "local", "global"]]
    per_device[0] += [f"last_round_{name}" for name in ("seconds", "joules", "bytes", "outcome")]
    for run in runs:
        head: list[Any] = [run.name, run.rule, run.seed]
        for r in run.rounds:
            time, mixed = r["time"], r.get("mixed", {})
            costs = [time.get(key) for key in ("latency", "desync", "joules", "bytes")]
            scores = [mixed.get(test, {}).get(key) for test in ("local", "global") for key in ("mean", "std", "worst")]
            per_round.append([*head, r["round"], *map(_short, [r.get("loss"), *costs, *scores])])
        per_device += [[*head, *row] for row in _device_rows(run)]
    names, rows = _summary_rows(runs)
    return {
        "summary.csv": _csv([names, *rows]),
        "rounds.csv": _csv(per_round),
        "devices.csv": _csv(per_device),
        "events.csv": _csv([["run", "round", "device", "event"], *([r.name, *e] for r in runs for e in r.events)]),
    }


def _device_rows(run: Records) -> list[list[Any]]:
    columns = run.columns()
    samples = run.weights()
    rooms = None if run.graph is None else run.graph.rooms
    own, everybody = run.accuracies("local"), run.accuracies("global")

    def cell(values: Any, i: int) -> Any:
        return values[i] if values is not None and i < len(values) else None

    rows = []
    for i in range(run.count):
        seconds = [cell(columns.get(key), i) for key in ("compute_seconds", "send_seconds")]
        total = None if None in seconds else seconds[0] + seconds[1]
        numbers = [cell(samples, i), cell(own, i), cell(everybody, i), total]
        numbers += [cell(columns.get(key), i) for key in ("joules", "bytes")]
        room = cell(rooms, i)
        rows.append([i, "" if room is None else room, *map(_short, numbers), cell(columns.get("outcome"), i) or ""])
    return rows


SUMMARY = ("run", "rounds", "local test", "std of devices", "worst device", "global test", "std of devices")
COSTS = ("latency", "desync", "joules", "bytes")


def _summary_rows(runs: Sequence[Records]) -> tuple[list[str], list[list[Any]]]:
    head = ["run", "rounds", "local", "local_std", "local_worst", "global", "global_std", "latency_seconds"]
    head += ["desync_seconds", "joules", "bytes"]
    rows = []
    for run in runs:
        scores = [last(run, "local", key) for key in ("mean", "std", "worst")]
        scores += [last(run, "global", key) for key in ("mean", "std")]
        costs = [float(run.spent(key)[-1]) for key in COSTS]
        rows.append([run.name, run.rounds[-1]["round"], *map(_short, scores), *map(_short, costs)])
    return head, rows


def _summary(runs: Sequence[Records]) -> str:
    seeds = groups(runs)
    words = "accuracy at the last test, costs of all rounds (simulated)"
    if all(len(group) == 1 for group in seeds.values()):
        return _summary_table({run.name: [run] for run in runs}, words)
    single = _summary_table({run.name: [run] for run in runs}, words)
    return (
        _summary_table(seeds, f"{words}; mean ± standard deviation over seeds")
        + f"<details><summary>Every seed</summary>{single}</details>"
    )


def _summary_table(rows: Mapping[str, Sequence[Records]], caption: str) -> str:
    """A row per name: of one run, or of the seeds of a rule that have come furthest."""
    names = [*SUMMARY, "latency", "desynchronisation", "energy", "sent"]
    head = "".join(f"<th>{_term(name, {'desynchronisation': 'desync'}.get(name, name))}</th>" for name in names)
    columns = [("local", "mean"), ("local", "std"), ("local", "worst"), ("global", "mean"), ("global", "std")]
    chosen = {name: furthest(group, "local") or furthest(group, "global") or group for name, group in rows.items()}
    scores = {
        name: [[v for v in (last(run, *column) for run in group) if np.isfinite(v)] for column in columns]
        for name, group in chosen.items()
    }
    best = [max((np.mean(found[i]) for found in scores.values() if found[i]), default=None) for i in (0, 3)]
    body = []
    for name, group in chosen.items():
        done = f"{min(run.rounds[-1]['round'] for run in group)} of {group[0].planned}"
        if len(rows[name]) > 1:
            done += f", {seeds_of(group, rows[name])}"
        cells = [f"<td>{escape(name)}</td><td>{done}</td>"]
        for i, values in enumerate(scores[name]):
            top = len(rows) > 1 and i in (0, 3) and values and np.mean(values) == best[i // 3]
            cells.append(f"<td{' class=best' if top else ''}>{_spread(values)}</td>")
        latency, desync, joules, sent = (float(np.mean([run.spent(key)[-1] for run in group])) for key in COSTS)
        cells.append(
            f"<td>{latency:.4g} s</td><td>{desync:.3g} s</td><td>{joules:.3g} J</td><td>{sent / 1e6:.4g} MB</td>"
        )
        body.append("<tr>" + "".join(cells) + "</tr>")
    return (
        f"<div class='scroll'><table><caption>{caption}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def _notes(notes: Sequence[tuple[str, str]]) -> str:
    if not notes:
        return ""
    items = "".join(f"<li>{escape(name)}: {escape(note)}</li>" for name, note in notes)
    return f"<div class='notes' role='note'><strong>Please note</strong><ul>{items}</ul></div>"


def _guide(many: bool) -> str:
    steps = [
        f"Every device keeps its data and its own model. Look first at the {_term('local test')} (does it serve its "
        f"owner?), then at the {_term('global test')} (has it learnt from others?), then at the "
        f"{_term('worst device')}.",
        "In the building a lighter yellow is more, a darker blue is less; the red ring is the worst device.",
        f"Who learns from whom is the {_term('mixing matrix')}; the {_term('filter response')} says the same in "
        f"{_term('graph frequency', 'graph frequencies')}.",
        f"Costs are simulated from clocks, radios and batteries: {_term('latency')}, "
        f"{_term('joules, bytes', 'joules')}; idle time is waiting for the {_term('deadline')}.",
    ]
    if many:
        text = f"Between {_term('local')} and {_term('fedavg')} lies {_term('G-Fedfilt')}: {_term('mu')} slides from "
        steps.insert(1, text + "one to the other. All rules saw the same data, start and batches for the same seed.")
    items = "".join(f"<li>{step}</li>" for step in steps)
    return (
        f"<h2 id='guide'>How to read this</h2><ul>{items}</ul><p>Figures can be zoomed; a double click resets them.</p>"
    )


def _accuracy(many: bool) -> str:
    options = "".join(f"<option value='{key}'>{words}</option>" for key, words in figures.AGAINST.items())
    figure = [
        "<h2 id='accuracy'>Accuracy</h2><p class='choose'><label for='against'>Against</label>"
        f"<select id='against'>{options}</select></p><div class='grid'>",
        _figure("accuracy-local-{against}", "Own labels only. Mean over devices, tested after mixing."),
        _figure("accuracy-global-{against}", "All labels. Mean over devices, tested after mixing."),
    ]
    if many:
        words = "Up and right is better. A point per rule, mean over seeds; bars: one standard deviation over seeds."
        figure.append(_figure("pareto", words, wide=True))
    return "".join([*figure, "</div>"])


def _detail(runs: Sequence[Records]) -> str:
    names = "".join(f"<option value='{i}'>{escape(run.name)}</option>" for i, run in enumerate(runs))
    colours = "".join(f"<option value='{key}'>{words}</option>" for key, (words, _) in figures.COLOURS.items())
    shown = [
        _figure("building-{colour}-{run}", "Rooms, links and devices as they were drawn or placed."),
        _figure("learns_from-{run}", "The row of the mixing matrix of the device that is worst on its own test."),
        _figure("device_bars-local-{run}", "Black: the worst device. Dotted: the mean."),
        _figure("device_bars-global-{run}", "Black: the worst device. Dotted: the mean."),
        _figure("timeline-{run}", "The last round: computing, sending, waiting."),
        _figure("mixing-{run}", "Row: who learns. Column: from whom."),
        _figure("response-{run}", "Dots are the frequencies of this graph."),
        _figure("confusion-{run}", "Summed over all devices' models; rows add up to 100 %."),
        _figure("labels-{run}", "What each device trains on.", wide=True),
    ]
    return (
        "<h2 id='detail'>One run in detail</h2><p class='choose'><label for='run'>Run</label>"
        f"<select id='run'>{names}</select><label for='colour'>Colour the building by</label>"
        f"<select id='colour'>{colours}</select></p><div class='grid'>{''.join(shown)}</div>"
    )


def _numbers(runs: Sequence[Records], tables: dict[str, str]) -> str:
    buttons = "".join(f"<button data-csv='{name}'>Download {name}</button>" for name in tables)
    parts = [f"<h2 id='numbers'>Numbers</h2><p>{buttons}</p>"]
    for run in (run for run in runs if run.events):
        more = f"<p>The last {ROWS} of {len(run.events)}; events.csv has all.</p>" if len(run.events) > ROWS else ""
        items = "".join(f"<li>{escape(str(event))}</li>" for event in run.events[-ROWS:])
        parts.append(f"<details><summary>Events of {escape(run.name)}</summary>{more}<ul>{items}</ul></details>")
    names = ["device", "room", "samples", "local", "global"]
    names += [f"{name}, last round" for name in ("seconds", "joules", "bytes", "outcome")]
    for run in runs:
        rows = _device_rows(run)
        more = f"<p>The first {ROWS} of {len(rows)} devices; devices.csv has all.</p>" if len(rows) > ROWS else ""
        head = "".join(f"<th>{name}</th>" for name in names)
        body = "".join("<tr>" + "".join(f"<td>{escape(str(c))}</td>" for c in row) + "</tr>" for row in rows[:ROWS])
        parts.append(
            f"<details><summary>Devices of {escape(run.name)}</summary>{more}<div class='scroll'><table><thead><tr>"
            f"{head}</tr></thead><tbody>{body}</tbody></table></div></details>"
        )
    return "".join(parts)


def _made(runs: Sequence[Records]) -> str:
    parts = [f"<h2 id='made'>How it was made</h2><p>Report by fedfilt {escape(__version__)}.</p>"]
    for run in runs:
        try:
            config = (run.folder / "config.toml").read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            config = "config.toml cannot be read"
        lines = [f"<tr><td>{escape(str(k))}</td><td>{escape(str(v))}</td></tr>" for k, v in run.environment.items()]
        again = f"fedfilt run {run.folder}/config.toml --out NEW_FOLDER"
        parts.append(
            f"<details><summary>{escape(run.name)}: seed {run.seed}, config and versions</summary>"
            f"<p>Run it again: <code>{escape(again)}</code></p><div class='scroll'><table><tbody>"
            f"{''.join(lines)}</tbody></table></div><pre>{escape(config)}</pre></details>"
        )
    return "".join(parts)


def _figure(name: str, caption: str, wide: bool = False) -> str:
    kind = " class='wide'" if wide else ""
    inside = f"<div class='plot'></div><figcaption>{escape(caption)}</figcaption>"
    return f"<figure{kind} data-figure='{name}'>{inside}</figure>"


def _term(term: str, words: str = "") -> str:
    """A word with a link to its meaning, if the glossary has it."""
    text = escape(words or term)
    return f"<a href='#{_anchor(term)}'>{text}</a>" if term in GLOSSARY else text


def _anchor(term: str) -> str:
    return "term-" + "".join(c if c.isalnum() else "-" for c in term.lower())


def _lean(figure: Any) -> dict[str, Any]:
    """A figure without the template, which the page holds once, nor a width, which is the page's."""
    table = json.loads(figure.to_json())
    table["layout"].pop("template", None)
    table["layout"].pop("width", None)
    return {"data": table["data"], "layout": table["layout"]}


def plotly_js() -> str:
    """plotly.js as plotly.py brings it."""
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())


def script_json(value: Any) -> str:
    """JSON that cannot end the script element it stands in.

    >>> script_json({"name": "</script>"})
    '{"name":"\\\\u003c/script>"}'
    """
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


def _csv(rows: Iterable[Sequence[Any]]) -> str:
    table = io.StringIO()
    csv.writer(table, lineterminator="\n").writerows([_cell(value) for value in row] for row in rows)
    return table.getvalue()


def _cell(value: Any) -> Any:
    """A cell that no spreadsheet takes for a formula.

    >>> _cell("=1+1"), _cell("kitchen"), _cell("-0.5")
    ("'=1+1", 'kitchen', '-0.5')
    """
    if not isinstance(value, str) or value[:1] not in ("=", "+", "-", "@", "\t", "\r"):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def _short(value: Any) -> Any:
    """A number with the digits it has, at most ten, and nothing for what is not known."""
    if value is None or (isinstance(value, float | np.floating) and not np.isfinite(value)):
        return ""
    if isinstance(value, np.float32):
        return f"{value:.6g}"
    return f"{round(float(value), 12):.10g}" if isinstance(value, float | np.floating) else value


def _percent(value: float) -> str:
    return f"{value:.1%}" if np.isfinite(value) else "–"
