"""The page of a report: one HTML text with its style, script, figures and numbers."""

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any

import numpy as np

from fedfilt._trust import code_in
from fedfilt._version import __version__
from fedfilt.runs.groups import differences, groups
from fedfilt.runs.lines import MAIN
from fedfilt.runs.names import short, told
from fedfilt.runs.records import Records
from fedfilt.runs.rules import SHARED
from fedfilt.show import figures
from fedfilt.show.figures.curves import by_seed
from fedfilt.show.report.tables import ROWS, csv_files, device_rows, summary, swatch, table
from fedfilt.show.report.terms import GLOSSARY, anchor, term
from fedfilt.show.words import KEYS, dated, found_in_words, heading, metric_of, scores, sentence, unlike
from fedfilt.training.goal import ACCURACY

NAMES, TITLED = 8, 2  # most names in a list, and most keys in a title
PAPER = "https://doi.org/10.1109/JIOT.2022.3228727"


def page(runs: Sequence[Records]) -> str:
    """The report as HTML. Figures are drawn when they come into view."""
    shown = [run for run in runs if run.rounds]
    several = len(groups(shown)) > 1
    drawn = all_figures(shown)
    template = next(iter(drawn.values())).to_plotly_json()["layout"]["template"]
    tables = csv_files(shown)
    stored = script_json({"template": template, **_unlike(drawn), "csv": tables, "devices": _devices(shown)})
    odd = unlike(shown)
    about = [
        *(_each(name, values) for name, values in list(differences(shown).items())[:KEYS]),
        _each("data", (_data(run) for run in shown)),
        _each("devices", (run.count for run in shown)),
        _each("rounds", (run.planned for run in shown)),
        _each("seed", (run.seed for run in shown)),
    ]
    parts = [
        f"<h1>{escape(_title(shown))}</h1><p class='lead'>{escape(' · '.join(dict.fromkeys(about)))}</p>",
        "<nav aria-label='Contents'><a href='#short'>In short</a><a href='#guide'>How to read this</a>"
        f"<a href='#accuracy'>{heading(metric_of(shown))}</a>"
        + ("<a href='#against'>Rules compared</a>" if several else "")
        + "<a href='#detail'>One run in detail</a><a href='#numbers'>Numbers</a>"
        "<a href='#made'>How it was made</a><a href='#terms'>Terms</a></nav>",
        _notes(runs),
        f"<h2 id='short'>In short</h2><p>{escape(sentence(shown))}</p>",
        f"<p>{escape(odd)}</p>" if odd else "",
        *(f"<p>{escape(words)}</p>" for words in list(dict.fromkeys(filter(None, map(found_in_words, shown))))[:NAMES]),
        summary(shown),
        _guide(several and not odd, any(run.real_time for run in shown)),
        _accuracy(shown),
        _against(shown) if several else "",
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
            # The page may not contact any host
            "<meta http-equiv='Content-Security-Policy' content=\"default-src 'none'; script-src 'unsafe-inline'; "
            "style-src 'unsafe-inline'; img-src data: blob:\">",
            f"<title>{escape(_title(shown))}</title><link rel='icon' href='data:,'>",
            f"<style>{here.joinpath('report.css').read_text(encoding='utf-8')}</style></head><body>",
            *parts,
            f"<script type='application/json' id='stored'>{stored}</script>",
            f"<script>{plotly_js()}</script><script>{here.joinpath('report.js').read_text(encoding='utf-8')}</script>",
            "<noscript><p class='notes'>The figures need JavaScript; the numbers above do not.</p></noscript>",
            "</body></html>",
        ]
    )


def _title(runs: Sequence[Records]) -> str:
    """What is compared: the rules, and the keys that differ, with their values."""
    if len(runs) == 1:
        return f"Run {runs[0].name}"
    rules = list(dict.fromkeys(run.rule for run in runs))
    listed = [*rules[:NAMES], *([f"{len(rules) - NAMES} more rules"] if len(rules) > NAMES else [])]
    found = differences(runs)
    words = short(found)
    keys = [f"{words[key]} {told(values)}" for key, values in list(found.items())[:TITLED]]
    more = [f"{len(found) - TITLED} more keys"] if len(found) > TITLED else []
    return f"Comparison of {', '.join(listed)}" + (f" with {' and '.join([*keys, *more])}" if keys else "")


def _data(run: Records) -> str:
    data = run.config.get("data") or {}
    return str(data.get("name", "?") if isinstance(data, dict) else data)


def _each(name: str, values: Iterable[Any]) -> str:
    """A word with the value that all runs share, or with the value of each."""
    return f"{name}: {told(list(values))}"


def all_figures(runs: Sequence[Records]) -> dict[str, Any]:
    """Every figure of a report by name."""
    stages = [stage for stage in figures.STAGES if stage == "mixed" or _trained(runs)]
    found = {
        f"accuracy-{test}-{against}-{stage}": figures.accuracy(runs, test, against, stage=stage)
        for test in MAIN
        for against in figures.AGAINST
        for stage in stages
    }
    for kind in _losses(runs):
        found |= {f"loss-{kind}-{against}": figures.loss(runs, kind, against) for against in figures.AGAINST}
    found["pareto"] = figures.pareto(runs)
    alike = groups(runs)
    if len(alike) > 1:
        one, other = _opposed(runs)
        for test in MAIN:
            found[f"scatter-{test}"] = figures.device_scatter(alike[one], alike[other], test)
            for i, name in enumerate(alike):
                found[f"paired-{test}-{i}"] = figures.paired_differences(runs, name, test)
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


def _trained(runs: Sequence[Records]) -> bool:
    """Whether any run was also tested after local training."""
    return any(run.tested(test, stage="trained") for run in runs for test in MAIN)


def _losses(runs: Sequence[Records]) -> list[str]:
    """The kinds of loss that runs recorded."""
    tested = {test for test in MAIN for run in runs for r in run.tested(test) if "loss" in r["mixed"][test]}
    return ["training", *(test for test in MAIN if test in tested)]


def _opposed(runs: Sequence[Records]) -> tuple[str, str]:
    """The two rules that are compared first: FedAvg (or else the first rule), and the best on the local test."""
    names = list(alike := groups(runs))
    one = next((name for name in names if alike[name][0].rule == SHARED), names[0])
    means = {name: float(np.mean(values)) for name, values in scores(runs, "local").items() if values and name != one}
    best = metric_of(runs).best(means.values(), default=None)
    return one, next((name for name, mean in means.items() if mean == best), next(n for n in names if n != one))


def _devices(runs: Sequence[Records]) -> dict[str, list[dict[int, list[float | None]]]]:
    """The scores of all devices by rule and seed, from which the page compares any two rules."""
    return {test: [by_seed(group, test) for group in groups(runs).values()] for test in MAIN}


def _unlike(drawn: Mapping[str, Any]) -> dict[str, Any]:
    """The figures without repetition, and for every name the number of its figure: seeds and rules share many."""
    texts = {name: json.dumps(_lean(figure), separators=(",", ":")) for name, figure in drawn.items()}
    numbers = {text: number for number, text in enumerate(dict.fromkeys(texts.values()))}
    return {
        "figures": [json.loads(text) for text in numbers],
        "names": {name: numbers[text] for name, text in texts.items()},
    }


def _notes(runs: Sequence[Records]) -> str:
    """What is wrong or unusual, each note once for all runs it applies to."""
    notes: dict[str, list[str]] = {}
    for run in runs:
        for note in run.notes:
            notes.setdefault(note, []).append(run.name)
    if not notes:
        return ""
    items = []
    for note, names in notes.items():
        more = [f"{len(names) - NAMES} more runs"] if len(names) > NAMES else []
        items.append(f"<li>{escape(', '.join([*names[:NAMES], *more]))}: {escape(note)}</li>")
    return f"<div class='notes' role='note'><strong>Please note</strong><ul>{''.join(items)}</ul></div>"


def _guide(many: bool, real: bool) -> str:
    costs = "Costs are simulated from clock speeds, radios and batteries"
    costs = f"{costs}, except for the seconds of real devices" if real else costs
    steps = [
        f"Every device keeps its data and has its own model. Look first at the {term('local test')} (does the model "
        f"serve its owner?), then at the {term('global test')} (has it learnt from others?), then at the "
        f"{term('worst device')}.",
        "In the building, yellow is high and dark blue is low; a red ring marks the worst device.",
        f"The {term('mixing matrix')} shows who learns from whom; the {term('filter response')} shows the same by "
        f"{term('graph frequency')}.",
        f"{costs}: {term('latency')}, "
        f"{term('joules, bytes', 'joules')}. Idle time is spent waiting for the {term('deadline')}.",
    ]
    if many:
        text = f"{term('G-Fedfilt')} lies between {term('local')} and {term('fedavg')}: {term('mu')} slides from one "
        text += "to the other. With the same seed, all rules saw the same data, initial models and batches."
        steps.insert(1, text)
    items = "".join(f"<li>{step}</li>" for step in steps)
    zoom = "Drag to zoom into a figure; double-click to reset it."
    return f"<h2 id='guide'>How to read this</h2><ul>{items}</ul><p>{zoom}</p>"


def _accuracy(runs: Sequence[Records]) -> str:
    alike, kinds, metric = groups(runs), _losses(runs), metric_of(runs)
    labelled = metric == ACCURACY
    choices = [_select("against", "Against", {key: figures.axis_of(runs, key) for key in figures.AGAINST})]
    if _trained(runs):
        choices.append(_select("stage", "Tested", figures.STAGES))
    if len(kinds) > 1:
        choices.append(_select("kind", "Loss", {kind: figures.LOSSES[kind] for kind in kinds}))
    stage, kind = "{stage}" if _trained(runs) else "mixed", "{kind}" if len(kinds) > 1 else kinds[0]
    tuned = "" if _trained(runs) else " Set evaluation.trained = true to test models after local training too."
    parts = [
        f"<h2 id='accuracy'>{heading(metric)}</h2><p class='choose'>{''.join(choices)}</p>",
        _legend(alike) if len(alike) > 1 else "",
        "<div class='grid'>",
        _figure(
            f"accuracy-local-{{against}}-{stage}", f"{'Own labels only. ' * labelled}Mean over devices.", shared=True
        ),
        _figure(
            f"accuracy-global-{{against}}-{stage}", f"{'All labels. ' * labelled}Mean over devices.{tuned}", shared=True
        ),
        _figure(f"loss-{kind}-{{against}}", "Mean over devices; the axis is logarithmic.", shared=True),
    ]
    if len(alike) > 1:
        words = "Up and right is better. One point per rule: the mean over seeds. Bars: one standard deviation."
        if metric.lower:
            words = words.replace("Up and right", "Down and left")
        parts.append(_figure("pareto", words, shared=True))
    return "".join([*parts, "</div>"])


def _legend(alike: Mapping[str, Sequence[Records]]) -> str:
    """The key to all curves of the section: a button for each curve, and a field to filter them."""
    keys = "".join(
        f"<button type='button' class='key' aria-pressed='true' data-group='{escape(figures.plain(name))}'>"
        f"{swatch(group[0].look)}<span>{escape(name)}{f' ({len(group)} seeds)' * (len(group) > 1)}</span></button>"
        for name, group in alike.items()
    )
    field = "<label for='only'>Show only</label><input type='search' id='only' placeholder='words in the name'>"
    return f"<div class='keys' role='group' aria-label='Curves shown'><p class='choose'>{field}</p>{keys}</div>"


def _against(runs: Sequence[Records]) -> str:
    names = dict(enumerate(groups(runs)))
    one, other = ({name: i for i, name in names.items()}[name] for name in _opposed(runs))
    seeds = {len(group) for group in groups(runs).values()}
    sure = "" if seeds == {1} else " Bar: its interval. If it crosses 0, the seeds cannot tell the rules apart."
    caption = f"Rings: seeds. Mark: their mean.{sure}"
    return "".join(
        [
            f"<h2 id='against'>Rules compared</h2><p>{term('paired difference', 'Paired differences')} are taken seed "
            "by seed, so that the effect of data, initial models and batches on both rules cancels out."
            + (" With one seed there is no interval." if 1 in seeds else ""),
            f"</p><p class='choose'>{_select('baseline', 'Difference from', names, one)}</p><div class='grid'>",
            *(_figure(f"paired-{test}-{{baseline}}", caption) for test in MAIN),
            f"</div><p class='choose'>{_select('horizontal', 'Device by device: across', names, one)}",
            f"{_select('vertical', 'up', names, other)}</p><div class='grid'>",
            *(
                _figure(f"scatter-{test}", "One dot per device and seed. On the line, both rules do equally well.")
                for test in MAIN
            ),
            "</div>",
        ]
    )


def _detail(runs: Sequence[Records]) -> str:
    # Most figures are about a filter: open on a run that has one
    opened = next((i for i, run in enumerate(runs) if "filter" in _table(run, "aggregator")), 0)
    choices: dict[str, dict[int, str]] = {}
    for i, run in enumerate(runs):
        choices.setdefault(run.label, {})[i] = run.name
    colours = {key: words for key, (words, _) in figures.colours(metric_of(runs)).items()}
    shown = [
        _figure("building-{colour}-{run}", "Rooms, links and devices, at the positions they were given or drawn."),
        _figure("learns_from-{run}", "The mixing matrix's row for the device that is worst on its own test."),
        _figure("device_bars-local-{run}", "Black: the worst device. Dotted: the mean."),
        _figure("device_bars-global-{run}", "Black: the worst device. Dotted: the mean."),
        _figure("timeline-{run}", "The last round: computing, sending, waiting."),
        _figure("mixing-{run}", "Each row's device learns from the devices in the columns."),
        _figure("response-{run}", "Dots are the frequencies of this graph."),
        _figure("confusion-{run}", "Summed over all devices' models; rows add up to 100 %."),
        _figure("labels-{run}", "What each device trains on.", wide=True),
    ]
    return (
        f"<h2 id='detail'>One run in detail</h2><p class='choose'>{_select('run', 'Run', choices, opened)}"
        f"{_select('colour', 'Colour the building by', colours)}</p><h3 id='chosen'>{escape(runs[opened].name)}</h3>"
        f"<div class='grid'>{''.join(shown)}</div>"
    )


def _select(name: str, words: str, choices: Mapping[Any, Any], chosen: Any = None) -> str:
    """A drop-down field; choices may be grouped."""

    def option(key: Any, text: str) -> str:
        return f"<option value='{key}'{' selected' * (key == chosen)}>{escape(text)}</option>"

    inside = ""
    for key, value in choices.items():
        if isinstance(value, Mapping) and len(value) > 1:
            inside += f"<optgroup label='{escape(key)}'>{''.join(option(*one) for one in value.items())}</optgroup>"
        else:
            inside += "".join(option(*one) for one in (value.items() if isinstance(value, Mapping) else [(key, value)]))
    return f"<span class='field'><label for='{name}'>{words}</label><select id='{name}'>{inside}</select></span>"


def _table(run: Records, key: str) -> Mapping[str, Any]:
    found = run.resolved.get(key)
    return found if isinstance(found, Mapping) else {}


def _numbers(runs: Sequence[Records], tables: dict[str, str]) -> str:
    buttons = "".join(f"<button data-csv='{name}'>Download {name}</button>" for name in tables)
    parts = [f"<h2 id='numbers'>Numbers</h2><p>{buttons}</p>"]
    for run in (run for run in runs if run.events):
        more = f"<p>The last {ROWS} of {len(run.events)}; events.csv has all.</p>" if len(run.events) > ROWS else ""
        items = "".join(f"<li>{escape(dated(event))}</li>" for event in run.events[-ROWS:])
        parts.append(f"<details><summary>Events of {escape(run.name)}</summary>{more}<ul>{items}</ul></details>")
    names = [(name, "") for name in ("device", "room", "samples", "local", "global")]
    names += [(f"{name}, last round", "") for name in ("seconds", "joules", "bytes", "outcome")]
    found = []
    for run in runs:
        rows = device_rows(run)
        more = f"<p>The first {ROWS} of {len(rows)} devices; devices.csv has all.</p>" if len(rows) > ROWS else ""
        body = [[(escape(str(cell)), "") for cell in row] for row in rows[:ROWS]]
        found.append(f"<details><summary>Devices of {escape(run.name)}</summary>{more}{table(names, body)}</details>")
    return "".join([*parts, _folded(found, f"Devices of {len(found)} runs")])


def _folded(parts: Sequence[str], words: str) -> str:
    """Parts that unfold one by one; if there are many, under one heading."""
    return "".join(parts) if len(parts) <= NAMES else f"<details><summary>{words}</summary>{''.join(parts)}</details>"


def _made(runs: Sequence[Records]) -> str:
    parts = []
    for run in runs:
        config = run.config_text or "config.toml cannot be read"
        lines = [f"<tr><th>{escape(str(k))}</th><td>{escape(str(v))}</td></tr>" for k, v in run.environment.items()]
        code = code_in(run.config)
        again = f"fedfilt run {run.folder}/config.toml --out NEW_FOLDER" + (" --trust-code" if code else "")
        warning = (
            f" This runs code from outside fedfilt, {', '.join(sorted(code))}; do so only if you trust it."
            if code
            else ""
        )
        parts.append(
            f"<details><summary>{escape(run.name)}: seed {run.seed}, config and versions</summary>"
            f"<p>Run it again: <code>{escape(again)}</code>{escape(warning)}</p><table class='pairs'><tbody>"
            f"{''.join(lines)}</tbody></table><pre>{escape(config)}</pre></details>"
        )
    head = f"<h2 id='made'>How it was made</h2><p>Report written by fedfilt {escape(__version__)}.</p>"
    return head + _folded(parts, f"Config and versions of {len(parts)} runs")


def _figure(name: str, caption: str, wide: bool = False, shared: bool = False) -> str:
    """A place for a figure; a `shared` one uses the key of its section instead of its own."""
    kind = " class='wide'" * wide + " data-shared" * shared
    inside = f"<div class='plot'></div><figcaption>{escape(caption)}</figcaption>"
    return f"<figure{kind} data-figure='{name}'>{inside}</figure>"


def _lean(figure: Any) -> dict[str, Any]:
    """A figure without its template, which the page holds once, and without a width: the page decides that."""
    table = json.loads(figure.to_json())
    table["layout"].pop("template", None)
    table["layout"].pop("width", None)
    return {"data": table["data"], "layout": table["layout"]}


def plotly_js() -> str:
    """plotly.js as shipped with plotly.py."""
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())


def script_json(value: Any) -> str:
    """JSON that cannot close the script element around it.

    >>> script_json({"name": "</script>"})
    '{"name":"\\\\u003c/script>"}'
    """
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")
