"""The results of docs/methods.md, all methods on nine kinds of data: `python experiments/methods.py --jobs 2`.

Every method is tuned with the same number of runs, on training samples that were held out and on seeds from 100 on;
what was chosen plays seeds 0, 1, ... A rule that uses the graph plays the given and the found graph, each beside its
controls. A second start does only what is missing. `--estimate` says how long it takes, `--page` writes
docs/methods.md from the result files. A method of your own takes part by its name: `--rules mine` (a file of
fedfilt/clients or fedfilt/aggregators) plays only that one and adds its lines to what is there.
"""

import argparse
import json
import multiprocessing
import os
import shutil
import threading
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import fedfilt
from fedfilt._files import write_atomically
from fedfilt._progress import progress_bar, shown
from fedfilt.aggregators.local import Local
from fedfilt.calls import compared
from fedfilt.data.store import DataMissing, Store
from fedfilt.runs.compare import last_tests, play_variants
from fedfilt.runs.config import config_of
from fedfilt.runs.lines import read_lines
from fedfilt.runs.paired import interval
from fedfilt.runs.rules import rules, with_rule
from fedfilt.runs.sweep import uses_graph
from fedfilt.runs.tuning import FIRST_SEED, check_playable, validated
from fedfilt.show.figures.style import BLUE, FAINT, INK, WALL, blank, plain, styled
from fedfilt.training.client import example, extra, is_personal, passes, seldom, travels

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"
RESULTS = HERE.parent / "results" / "methods"
SEEDS, BUDGET = 5, 18  # of what is published
TUNING_SEEDS = 3  # with which a setting is tried: one alone chose rates by chance on watch
BASELINE = "finetune"
RECIPE = "two_level"
TOLD = (BASELINE, RECIPE, "local", "fedavg", "mu=1")  # named in every figure
CLOSE = 0.005  # how far the recipe may be from the best: less than seeds differ
NEIGHBOURS = 2  # of a device on a found graph
KEPT = ("fedfilt", "python", "numpy", "torch", "native_sources")  # of what a run folder says about its machine
BEGIN, END = "<!-- begin: experiments/methods.py --page -->", "<!-- end: experiments/methods.py --page -->"

RULES = [
    "fedavg",
    "fedprox",
    "local",
    BASELINE,
    "finetune:epochs=10",
    "finetune:epochs=30",
    "finetune:layers=head",
    "finetune:share=0.5",
    "averaged:client=finetune",
    "fedper",
    "fedrep",
    "lg_fedavg",
    "fedbn",
    "ditto",
    "pfedme",
    "apfl",
    "per_fedavg",
    "scaffold",
    "fedamp",
    "attention",
    "ifca",
    "label_prior",
    "room_average",
    RECIPE,
    "two_level:answers=personal",
    "two_level+empirical_bayes:links=true",
    "mu=1",
    "mu=10",
    "fedu",
    "sfl",
]


class Kind(NamedTuple):
    """A kind of data: an experiment, and what is changed in it."""

    title: str
    about: str
    file: str
    seconds: float  # of processor time for a round of a method that trains once, as measured: estimates begin with it
    changes: dict[str, Any] = {}  # noqa: RUF012 (never changed)


KINDS = {
    "mnist_2": Kind(
        "MNIST_2",
        "two digits and 45 samples a device; others: all digits. The given graph is the paper's",
        "mnist_4",
        0.08,
        {"partition.per_device": 2},
    ),
    "mnist_4": Kind("MNIST_4", "the same with four digits a device", "mnist_4", 0.08),
    "setup_1": Kind("Setup 1", "the devices of a room share three of their four digits", "setup_1", 0.08),
    "rotated": Kind("Rotated rooms", "all digits, turned by 90 degrees from room to room", "rotated", 0.085),
    "writers": Kind(
        "Writers", "the digits of one person a device; people who write alike share a room", "writers", 0.08
    ),
    "watch": Kind(
        "Watches",
        "eight people with a watch on each arm; others: two people whom nobody has trained on. The given graph links "
        "the watches of a person",
        "watch",
        0.03,
        {"graph.inside": True, "graph.between": "none"},
    ),
    "hapt": Kind(
        "HAPT",
        "the phones of 24 people; others: six people whom nobody has trained on. No graph is given",
        "hapt",
        0.07,
        {"graph.between": "none"},
    ),
    "dsads": Kind(
        "DSADS",
        "six people with five sensors each; others: two people whom nobody has trained on. The given graph links the "
        "same place of all people",
        "dsads",
        0.33,
        {"graph.between": "same_place"},
    ),
    "cold": Kind("Cold devices", "Setup 1, where six of 20 devices have 2 to 10 samples", "cold", 0.07),
}


class Job(NamedTuple):
    """A method on a kind and a graph: its tuning, and its runs with what was chosen."""

    kind: str
    graph: str  # "given" or "found"
    rule: str
    seeds: int
    budget: int
    out: Path

    @property
    def folder(self) -> Path:
        return self.out / self.kind / self.graph / self.rule

    def config(self) -> Any:
        """The experiment, tested at its end only."""
        kind = KINDS[self.kind]
        config = config_of(HERE / f"{kind.file}.toml", {"engine.workers": 1, **kind.changes})
        changes: dict[str, Any] = {"evaluation.every": config.rounds}
        if self.graph == "found":  # of the same devices in the same rooms, so that they have the same samples
            common = ("laplacian", "shuffle", "control")
            place = {key: value for key, value in config.table()["graph"].items() if key not in common}
            changes["graph"] = {"name": "found", "k": NEIGHBOURS, "graph": place}
        return config_of(config, changes)

    @property
    def key(self) -> dict[str, Any]:
        """What its result depends on."""
        return {"seeds": self.seeds, "budget": self.budget, "hash": with_rule(self.config(), self.rule).hash()}

    def done(self) -> dict[str, Any] | None:
        """Its result, if it is there."""
        path = self.folder / "result.json"
        found = json.loads(path.read_text()) if path.exists() else {}
        return found if found.get("key") == self.key else None

    def runs(self) -> int:
        """How many runs it is."""
        graphs = 1
        if uses_graph(with_rule(self.config(), self.rule).aggregator):
            graphs = 2 if self.graph == "found" and linked(self.kind) else 4
        return self.budget + self.seeds * graphs

    def seconds(self) -> float:
        """Processor time that is to be expected."""
        config = with_rule(self.config(), self.rule)
        wide = passes(config.client) + 0.4 * len(travels(config.client))  # wide rows take time, as measured
        return KINDS[self.kind].seconds * config.rounds * wide * self.runs()


def jobs_of(kind, names, seeds, budget, out):
    """The jobs of a kind, without those that a kind without links or shared rooms cannot have."""
    found = []
    given = Job(kind, "given", "", seeds, budget, out).config()
    graph = given.graph.graph(0)
    for rule in names:
        aggregator = with_rule(given, rule).aggregator
        on_links = uses_graph(aggregator)
        alone = rule == "room_average" and len(set(graph.rooms.tolist())) == graph.count
        graphs = [*(["given"] if linked(kind) else []), "found"] if on_links else [] if alone else ["given"]
        found += [Job(kind, one, rule, seeds, budget, out) for one in graphs]
    return found


def linked(kind):
    """Whether a kind has a given graph."""
    return len(Job(kind, "given", "", 1, 1, Path()).config().graph.graph(0).edges) > 0


# --- work ---------------------------------------------------------------------------------------------------------


def work(job):
    """Tune a method, play it with what was chosen, and keep the result; what was done before is not done again."""
    found = job.done()
    if found is None:
        found = {"key": job.key, **played(job)}
        write_atomically(job.folder / "result.json", json.dumps(found).encode())
        for heavy in [*job.folder.glob("*/*/*/checkpoint"), *job.folder.glob("*/*/*/models")]:
            shutil.rmtree(heavy)  # gigabytes, of which nothing is used any more
    return found


def played(job):
    """The rows of a method: itself, and its controls; or why this kind cannot have it."""
    config, store, seeds = job.config(), Store(), list(range(job.seeds))
    job.folder.mkdir(parents=True, exist_ok=True)
    try:
        check_playable(validated(config), [job.rule], FIRST_SEED, store)
    except DataMissing:
        raise
    except ValueError as error:
        return {"rows": [], "refused": str(error)}
    tuned = fedfilt.tune(
        config, [job.rule], job.budget, min(TUNING_SEEDS, job.budget), job.folder / "tune", resume=True, progress=False
    )
    variants = compared(config, [job.rule], (), tuned, seeds, controls=True)
    if job.graph == "found" and linked(job.kind):  # the given graph has the other controls, which are the same
        variants = [one for one in variants if one.config.graph.control in ("", "shuffled")]
    failed: dict[tuple[str, int], str] = {}
    place = job.folder / "compare"
    for _ in play_variants(variants, seeds, place, True, store, failed):
        pass
    rows = [
        row(job, one, place / one.name, seeds) for one in variants if all((one.name, s) not in failed for s in seeds)
    ]
    if job.rule not in [one["rule"] for one in rows if not one["control"]]:
        raise ValueError(f"{job.rule} on {job.kind}: {next(iter(failed.values()))}")
    chosen = tuned.rules[job.rule][0]
    for one in rows:
        one |= {"settings": dict(chosen.settings), "validation": round(chosen.validation, 6)}
    why = {name.removeprefix(f"{job.rule} graph="): words for (name, _), words in failed.items()}
    return {"rows": rows, "refused_controls": why}


def row(job, variant, place, seeds):
    """What a method scored and what it cost, from its run folders."""
    config, scores, spent, wall = variant.config, {}, [], 0.0
    for seed in seeds:
        tests = last_tests(place / f"seed-{seed}")
        numbers = tests["local"]["mean"], tests["local"]["worst"], tests["global"]["mean"]
        scores[str(seed)] = dict(zip(("own", "worst", "others"), (round(one, 6) for one in numbers), strict=True))
        lines = read_lines(place / f"seed-{seed}")
        spent.append(costs(config, [line["time"]["devices"] for line in lines]))
        wall += json.loads((place / f"seed-{seed}" / "result.json").read_text())["wall_seconds"]
    environment = json.loads((place / f"seed-{seeds[0]}" / "environment.json").read_text())
    epochs, up, down = np.mean(spent, axis=0)
    adapting, models = asked(config.client)
    return {
        "rule": job.rule,
        "graph": job.graph if uses_graph(config.aggregator) else "",
        "control": config.graph.control,
        "scores": scores,
        "epochs": round(float(epochs) + adapting, 3),
        "up_bytes": round(float(up)),
        "down_bytes": round(float(down)),
        "forward_passes": models,
        "wall_seconds": round(wall / len(seeds), 2),
        "config_hash": environment["config_hash"],
        "environment": {name: environment[name] for name in KEPT if name in environment},
    }


def costs(config, lines):
    """Of a device: epochs that it trains in all, and bytes that it sends and is given in a round, means over devices.

    A found graph costs an epoch and an update before round 1. What is sent down is a row as wide as what is sent up;
    where more travels in few rounds only, the personal model follows the shared one from then on.
    """
    epochs = passes(config.client) * sum(np.mean(line["epochs"]) for line in lines)
    sent = [float(np.mean(line["bytes"])) for line in lines]
    usual, rounds = min(sent), len(lines)
    personal = [extra(config.client, number, rounds) > 0 for number in range(1, rounds + 1)]
    later = rounds - 1 - personal.index(True) if seldom(config.client) and any(personal) else 0
    if isinstance(config.aggregator, Local):  # nothing has to be sent
        return epochs, 0.0, 0.0
    learned = bool(config.graph.learned)
    return epochs + learned, (sum(sent) + learned * usual) / rounds, usual * (1 + later / rounds)


def asked(client):
    """(epochs that a device trains before it decides, models that it asks then), found by trying a small task."""
    if not is_personal(client):
        return 0, 1
    task, counted, train = example(client), [], example(client).train

    def counting(row, **how):
        epochs = task.epochs if how.get("epochs") is None else how["epochs"]
        counted.append(epochs if how.get("batch") is None else 1 / task.steps(1))
        return train(row, **how)

    task.train = counting
    found = client.personal(task)
    return float(sum(counted)), len(np.atleast_2d(found))


def leave_with(parent):
    """End this process soon after the one that started it: nobody would look at what it does."""

    def watch():
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def compute(jobs, processes, results):
    """Do what is missing, the kinds one after the other, and write the result file of each when it is complete."""
    done, left, errors = [], [], []
    for job in jobs:
        (left if job.done() is None else done).append(job)
    for kind in dict.fromkeys(job.kind for job in jobs if job not in left):
        complete(kind, jobs, results)
    expected = {job: job.seconds() for job in left}
    total, spent, start = sum(expected.values()), 0.0, time.monotonic()
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the processes that begin now: each is one core
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, context, leave_with, (os.getpid(),))
    with progress_bar() as bar, pool:
        task = bar.add_task(f"{len(left)} of {len(jobs)} methods to do, about {words(total / processes)}", total=total)
        futures = {pool.submit(work, job): job for job in left}
        for count, future in enumerate(as_completed(futures), start=1):
            job = futures[future]
            spent += expected[job]
            ahead = (total - spent) * (time.monotonic() - start) / spent
            try:
                future.result()
                how = "done"
            except Exception as error:  # the others go on: hours of work
                errors.append(f"{job.kind}, {job.graph} graph, {job.rule}: {error}")
                how = "failed"
            said = f"{count}/{len(left)} {job.kind} {job.rule} {how}, about {words(ahead)} left"
            bar.update(task, completed=spent, description=shown(said))
            if not bar.console.is_terminal:
                bar.console.print(shown(said))
            complete(job.kind, jobs, results)
    return errors


def complete(kind, jobs, results):
    """Write the result file of a kind if all of its jobs are done; methods that were not asked for stay in it."""
    mine = [job for job in jobs if job.kind == kind]
    found = [job.done() for job in mine]
    if None in found:
        return
    path = results / f"{kind}.json"
    new = {
        "kind": kind,
        "seeds": list(range(mine[0].seeds)),
        "tuning_seed": FIRST_SEED,
        "budget": mine[0].budget,
        "rounds": mine[0].config().rounds,
        "rows": [one for result in found for one in result["rows"]],
        "refused": {job.rule: one["refused"] for job, one in zip(mine, found, strict=True) if "refused" in one},
        "refused_controls": {
            f"{job.rule}, {job.graph} graph, {control}": why
            for job, one in zip(mine, found, strict=True)
            for control, why in one.get("refused_controls", {}).items()
        },
    }
    old = json.loads(path.read_text()) if path.exists() else None
    if old is not None:
        for key in ("seeds", "budget", "rounds"):
            if old[key] != new[key]:
                raise ValueError(f"{path} has {key} = {old[key]}, these are {new[key]}: name another --results")
        played = {job.rule for job in mine}
        for key in ("refused", "refused_controls"):
            new[key] = {name: why for name, why in old[key].items() if name.split(", ")[0] not in played} | new[key]
        new["rows"] = [one for one in old["rows"] if one["rule"] not in played] + new["rows"]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (json.dumps(new, indent=1) + "\n").encode())


def words(seconds):
    """A duration for people."""
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{max(minutes, 1)} min"


def estimate(jobs, processes):
    """A table of how long the jobs of every kind take, those that are done included."""
    lines = [f"| kind | methods | runs | on {processes} quiet cores |", "|---|---|---|---|"]
    total = 0.0
    for kind in dict.fromkeys(job.kind for job in jobs):
        mine = [job for job in jobs if job.kind == kind]
        seconds = sum(job.seconds() for job in mine) / processes
        total += seconds
        lines.append(f"| {kind} | {len(mine)} | {sum(job.runs() for job in mine)} | {words(seconds)} |")
    return "\n".join([*lines, f"| all | {len(jobs)} | {sum(job.runs() for job in jobs)} | {words(total)} |"])


# --- page ---------------------------------------------------------------------------------------------------------


def mean(one, score):
    return float(np.mean([seed[score] for seed in one["scores"].values()]))


def difference(one, other, score):
    """(mean, low, high) of the differences, seed by seed."""
    each = [own[score] - other["scores"][seed][score] for seed, own in one["scores"].items()]
    return float(np.mean(each)), *interval(each)


def name_of(one):
    graph = f", {one['graph']} graph" if one["graph"] and not one["control"] else ""
    return one["rule"] + graph + (f", {one['graph']} graph, {one['control']}" if one["control"] else "")


def on_front(rows):
    """The methods to which no other is at least equal on both the own test and that of others, and better on one."""
    points = [(mean(one, "own"), mean(one, "others")) for one in rows]
    return [
        one
        for one, (own, others) in zip(rows, points, strict=True)
        if not any(a >= own and b >= others and (a, b) != (own, others) for a, b in points)
    ]


def methods_of(found):
    """The rows of a result that are not controls."""
    return [one for one in found["rows"] if not one["control"]]


def find(found, rule, graph=None, control=""):
    rows = [one for one in found["rows"] if (one["rule"], one["control"]) == (rule, control)]
    return next((one for one in rows if graph is None or one["graph"] == graph), None)


def table(found):
    """Markdown of all methods of a kind, the best own test first; under each graph rule its controls."""
    base, shared, front = find(found, BASELINE), find(found, "fedavg"), on_front(methods_of(found))
    lines = [
        "| method | own | worst | others | own, paired | others, paired | epochs | kB up / down | asks |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for method in sorted(methods_of(found), key=lambda one: -mean(one, "own")):
        controls = [one for one in found["rows"] if (one["rule"], one["graph"]) == (method["rule"], method["graph"])]
        for one in [method, *(one for one in controls if one["control"])]:
            name = f"**{name_of(one)}** ★" if one in front else name_of(one) if one is method else f"↳ {one['control']}"
            scores = [f"{100 * mean(one, score):.1f}" for score in ("own", "worst", "others")]
            pairs = [points(*difference(one, base, score)) if one is not base else "-" for score in ("own", "others")]
            cost = f"{one['epochs'] / shared['epochs']:.2f}"
            sent = f"{one['up_bytes'] / 1000:.0f} / {one['down_bytes'] / 1000:.0f}"
            lines.append(f"| {' | '.join([name, *scores, *pairs, cost, sent, str(one['forward_passes'])])} |")
    return "\n".join(lines)


def points(middle, low, high):
    """A difference in points, with its interval of confidence if there is one."""
    ends = f" ({100 * low:+.1f} to {100 * high:+.1f})" if np.isfinite([low, high]).all() else ""
    return f"{100 * middle:+.1f}{ends}"


def verdict(found):
    """What the numbers of a kind say, in sentences."""
    rows = methods_of(found)
    said = [f"On the front: {', '.join(f'`{name_of(one)}`' for one in on_front(rows))}."]
    for one in rows:
        shuffled = find(found, one["rule"], one["graph"], "shuffled") if one["graph"] else None
        if shuffled is not None:
            middle, low, high = difference(one, shuffled, "own")
            how = "beats" if low > 0 else "loses to" if high < 0 else "cannot be told from"
            sizes = f"own {points(middle, low, high)}, others {points(*difference(one, shuffled, 'others'))}"
            said.append(f"`{name_of(one)}` {how} its shuffled control: {sizes}.")
    if (recipe := find(found, RECIPE)) is not None:
        best, behind = rival(found)
        which = "it is the best itself" if best is recipe else f"`{name_of(best)}` is {100 * behind:.1f} points better"
        said.append(
            f"Is `{RECIPE}` within {100 * CLOSE:.1f} points of the best own test among methods that keep at least as "
            f"many points for others? **{'Yes' if behind <= CLOSE else 'No'}**: {which}."
        )
    return "\n".join(f"* {words}" for words in said)


def settings(found):
    """What was chosen for each method."""
    each = [
        f"`{name_of(one)}` "
        + ", ".join(f"{key.rpartition('.')[2]} {value:g}" for key, value in one["settings"].items())
        for one in methods_of(found)
    ]
    return "; ".join(each) + "."


def overview(known):
    """A line per kind: what its graphs are worth, and how the recipe does."""
    lines = [
        f"| kind | given graph | found graph | `{RECIPE}`: own, paired | others, paired | within {100 * CLOSE:.1f} |",
        "|---|---|---|---|---|---|",
    ]
    for name, kind in KINDS.items():
        found, cells = known.get(name), ["not computed yet", "", "", "", ""]
        if found is not None:
            cells = [gain(found, "given"), gain(found, "found"), "-", "-", "-"]
            if (recipe := find(found, RECIPE)) is not None:
                pairs = [points(*difference(recipe, find(found, BASELINE), score)) for score in ("own", "others")]
                cells[2:] = [*pairs, "yes" if rival(found)[1] <= CLOSE else "no"]
        lines.append(f"| {' | '.join([kind.title, *cells])} |")
    words = "The graph columns are the own test of `mu=1` minus that of its shuffled control."
    return "\n".join(lines) + f"\n\n{words} The last one is explained below each kind."


def gain(found, graph):
    """What `mu=1` has of the links of a graph."""
    one, shuffled = (find(found, "mu=1", graph, control) for control in ("", "shuffled"))
    return "-" if one is None or shuffled is None else points(*difference(one, shuffled, "own"))


def rival(found):
    """The best own test among methods that keep at least what the recipe keeps for others, and by how much it is so."""
    recipe = find(found, RECIPE)
    keeping = [one for one in methods_of(found) if mean(one, "others") >= mean(recipe, "others")]
    best = max(keeping, key=lambda one: mean(one, "own"))
    return best, mean(best, "own") - mean(recipe, "own")


def page(results):
    """The part of docs/methods.md between the markers: a function of the result files."""
    paths = {name: results / f"{name}.json" for name in KINDS}
    known = {name: json.loads(path.read_text()) for name, path in paths.items() if path.exists()}
    parts = ["## In short", overview(known)]
    for name, kind in KINDS.items():
        parts += [f"## {kind.title}", f"{kind.about[0].upper()}{kind.about[1:]}."]
        if name not in known:
            parts.append(f"Not computed yet: `python experiments/methods.py {name} --jobs 2`")
            continue
        found = known[name]
        hours = sum(one["wall_seconds"] * len(one["scores"]) for one in found["rows"]) / 3600
        versions = sorted({f"fedfilt {one['environment']['fedfilt']}" for one in found["rows"]})
        count = f"{len(found['seeds'])} seeds, {found['rounds']} rounds, {hours:.1f} hours for the runs of this table"
        parts += [
            verdict(found),
            f"![Own test against that of others: {kind.title}](methods/{name}.svg)",
            table(found),
            f"{count} ({', '.join(versions)}).",
            f"<details><summary>Settings that were chosen, with {found['budget']} runs each</summary>\n\n"
            f"{settings(found)}\n\n</details>",
        ]
        cannot = {**found["refused"], **found["refused_controls"]}
        if cannot:
            parts.append("Not possible here: " + "; ".join(f"`{what}` ({why})" for what, why in cannot.items()) + ".")
    return "\n\n".join(parts)


def figure(found):
    """Own test against that of others: the front and some more with numbers, the rest rings, controls crosses."""
    drawn, front, rows = blank(), on_front(methods_of(found)), methods_of(found)
    told = [one for one in rows if one in front or one["rule"] in TOLD]
    told.sort(key=lambda one: -mean(one, "own"))
    frame = {}
    for score in ("own", "others"):
        values = [mean(one, score) for one in told]
        frame[score] = min(values) - 0.02, max(values) + 0.02
    outside = sum(any(mean(one, score) < low for score, (low, _) in frame.items()) for one in rows)

    def dots(some, **how):
        x, y = ([100 * mean(one, score) for one in some] for score in ("others", "own"))
        drawn.add_scatter(x=x, y=y, **{"mode": "markers", "showlegend": False, **how})

    dots([one for one in found["rows"] if one["control"]], marker={"color": FAINT, "symbol": "x-thin-open", "size": 6})
    dots([one for one in rows if one not in told], marker={"color": INK, "symbol": "circle-open", "size": 6})
    line = sorted(front, key=lambda one: mean(one, "others"))
    dots(line, mode="lines", line={"color": BLUE, "width": 1, "dash": "dot"})
    for number, one in enumerate(told, start=1):
        marker = {"color": BLUE if one in front else WALL, "size": 15}
        text = {"mode": "markers+text", "text": [str(number)], "textfont": {"size": 9, "color": "white"}}
        dots([one], marker=marker, name=f"{number} {plain(name_of(one))}", showlegend=True, **text)
    own, others = ([100 * end for end in frame[score]] for score in ("own", "others"))
    axes = {"xaxis": {"title": "others, %", "range": others}, "yaxis": {"title": "own test, %", "range": own}}
    title = KINDS[found["kind"]].title + (f" ({outside} methods are outside)" if outside else "")
    return styled(drawn, title, 420, width=820, legend={"font": {"size": 11}}, **axes)


def write_page(results, docs):
    """Rewrite the generated part of docs/methods.md, and the figures of the kinds that are there."""
    path = docs / "methods.md"
    text = path.read_text()
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise ValueError(f"{path} must hold {BEGIN} and {END} once each, in this order")
    for found in (json.loads(one.read_text()) for one in sorted(results.glob("*.json"))):
        (docs / "methods").mkdir(exist_ok=True)
        figure(found).write_image(docs / "methods" / f"{found['kind']}.svg")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    write_atomically(path, f"{before}{BEGIN}\n\n{page(results)}\n\n{END}{after}".encode())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(KINDS)}; all if none is named")
    parser.add_argument("--rules", help="methods, with commas between; all of the page if not said")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="seeds 0, 1, ... of the comparison")
    parser.add_argument("--budget", type=int, default=BUDGET, help="runs that choose the settings of a method")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--out", type=Path, default=Path("runs/methods"), help="where the runs are kept")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the result files are")
    parser.add_argument("--docs", type=Path, default=DOCS, help="where methods.md is, for --page")
    parser.add_argument("--page", action="store_true", help="only write methods.md from the result files")
    parser.add_argument("--estimate", action="store_true", help="only say how long it takes")
    arguments = parser.parse_args()
    if unknown := sorted(set(arguments.kinds) - set(KINDS)):
        parser.error(f"unknown kind {', '.join(unknown)} (allowed: {', '.join(KINDS)})")
    for option in ("seeds", "budget", "jobs"):
        if getattr(arguments, option) < 1 or (option == "seeds" and arguments.seeds > FIRST_SEED):
            parser.error(f"--{option} must be at least 1, and seeds at most {FIRST_SEED}")
    if arguments.page:
        parser.exit(write_page(arguments.results, arguments.docs))
    names = RULES if arguments.rules is None else rules(arguments.rules)
    how = names, arguments.seeds, arguments.budget, arguments.out
    every = [job for kind in arguments.kinds or KINDS for job in jobs_of(kind, *how)]
    if arguments.estimate:
        print(estimate(every, arguments.jobs))
    else:
        errors = compute(every, arguments.jobs, arguments.results)
        parser.exit(bool(errors), "".join(f"{line}\n" for line in errors))
