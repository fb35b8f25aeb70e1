"""The page of a report: one HTML text with its style, script, figures and numbers."""

import json
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from typing import Any

from fedfilt._trust import code_in
from fedfilt._version import __version__
from fedfilt.runs.groups import differences
from fedfilt.runs.records import Records
from fedfilt.show import figures
from fedfilt.show.report.tables import ROWS, csv_files, device_rows, summary
from fedfilt.show.report.terms import GLOSSARY, anchor, term
from fedfilt.show.words import dated, sentence

PAPER = "https://doi.org/10.1109/JIOT.2022.3228727"


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
        f"<h2 id='short'>In short</h2><p>{escape(sentence(shown))}</p>{summary(shown)}",
        _guide(many and not odd),
        _accuracy(many),
        _detail(shown),
        _numbers(shown, tables),
        _made(shown),
        "<h2 id='terms'>Terms</h2><dl>",
        *(f"<dt id='{anchor(term)}'>{escape(term)}</dt><dd>{escape(text)}</dd>" for term, text in GLOSSARY.items()),
        f"</dl><p>The terms are those of the paper: Rasti-Meymandi et al., <a href='{PAPER}'><cite>Graph Federated "
        "Learning for CIoT Devices in Smart Home Applications</cite></a>, IEEE Internet of Things Journal, 2022.</p>",
    ]
    here = files("fedfilt.show.report")
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


def _notes(notes: Sequence[tuple[str, str]]) -> str:
    if not notes:
        return ""
    items = "".join(f"<li>{escape(name)}: {escape(note)}</li>" for name, note in notes)
    return f"<div class='notes' role='note'><strong>Please note</strong><ul>{items}</ul></div>"


def _guide(many: bool) -> str:
    steps = [
        f"Every device keeps its data and its own model. Look first at the {term('local test')} (does it serve its "
        f"owner?), then at the {term('global test')} (has it learnt from others?), then at the "
        f"{term('worst device')}.",
        "In the building a lighter yellow is more, a darker blue is less; the red ring is the worst device.",
        f"Who learns from whom is the {term('mixing matrix')}; the {term('filter response')} says the same in "
        f"{term('graph frequency', 'graph frequencies')}.",
        f"Costs are simulated from clocks, radios and batteries: {term('latency')}, "
        f"{term('joules, bytes', 'joules')}; idle time is waiting for the {term('deadline')}.",
    ]
    if many:
        text = f"Between {term('local')} and {term('fedavg')} lies {term('G-Fedfilt')}: {term('mu')} slides from "
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
        items = "".join(f"<li>{escape(dated(event))}</li>" for event in run.events[-ROWS:])
        parts.append(f"<details><summary>Events of {escape(run.name)}</summary>{more}<ul>{items}</ul></details>")
    names = ["device", "room", "samples", "local", "global"]
    names += [f"{name}, last round" for name in ("seconds", "joules", "bytes", "outcome")]
    for run in runs:
        rows = device_rows(run)
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
        config = run.config_text or "config.toml cannot be read"
        lines = [f"<tr><td>{escape(str(k))}</td><td>{escape(str(v))}</td></tr>" for k, v in run.environment.items()]
        code = code_in(run.config)
        again = f"fedfilt run {run.folder}/config.toml --out NEW_FOLDER" + (" --trust-code" if code else "")
        warning = (
            f" It runs code from outside fedfilt, {', '.join(sorted(code))}: only if you trust that." if code else ""
        )
        parts.append(
            f"<details><summary>{escape(run.name)}: seed {run.seed}, config and versions</summary>"
            f"<p>Run it again: <code>{escape(again)}</code>{escape(warning)}</p><div class='scroll'><table><tbody>"
            f"{''.join(lines)}</tbody></table></div><pre>{escape(config)}</pre></details>"
        )
    return "".join(parts)


def _figure(name: str, caption: str, wide: bool = False) -> str:
    kind = " class='wide'" if wide else ""
    inside = f"<div class='plot'></div><figcaption>{escape(caption)}</figcaption>"
    return f"<figure{kind} data-figure='{name}'>{inside}</figure>"


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
