"""The results of docs/methods.md, all methods on nine kinds of data: `python experiments/methods.py --jobs 2`.

Every method is tuned with the same number of runs, on training samples that were held out and on seeds from 100 on;
what was chosen plays seeds 30, 31, ..., which chose nothing in fedfilt. A rule that uses the graph plays the given and
the found graph, each beside its controls. Each method is written to the result file of its kind as soon as it is done;
a second start, also on another machine with these files, does only what is missing. `--estimate` says how long it
takes, `--page` writes docs/methods.md from the result files. A method of your own takes part by its name: `--rules
mine` (a file of fedfilt/clients or fedfilt/aggregators) plays only that one and adds its lines to what is there.
"""

import argparse
import itertools
import json
import multiprocessing
import os
import shutil
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedfilt._files import write_atomically
from fedfilt._progress import progress_bar, shown
from fedfilt.aggregators.local import Local
from fedfilt.calls import compared
from fedfilt.data.store import DataMissing, Store
from fedfilt.runs import tuning
from fedfilt.runs.advice import RECIPE
from fedfilt.runs.compare import beside, last_tests, play_variants
from fedfilt.runs.config import config_of
from fedfilt.runs.lines import read_lines
from fedfilt.runs.paired import interval
from fedfilt.runs.rules import rules, with_rule
from fedfilt.runs.sweep import uses_graph
from fedfilt.runs.tuning import FIRST_SEED, Tuned, check_playable, validated
from fedfilt.show.figures.style import BLUE, FAINT, INK, WALL, blank, plain, styled
from fedfilt.training.client import example, extra, is_personal, passes, seldom, usual

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"
RESULTS = HERE.parent / "results" / "methods"
FIRST_PLAYED = 30  # seed of the comparison: two_level was found on 0 to 2, and looked at on 10 to 21
SEEDS, BUDGET = 5, 14  # of what is published
TUNING_SEEDS = 2  # with which a setting is tried: one alone chose rates by chance on watch
BASELINE = "finetune"
TOLD = (BASELINE, RECIPE, "two_level", "local", "fedavg", "mu=1")  # named in every figure
CONTROLLED = "mu=1"  # which has all controls; the other rules on a graph have the shuffled one
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
    "two_level",
    "two_level:answers=personal",
    "two_level:mu=10",
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
    """Methods on a kind and a graph that are played side by side: their tuning, and their runs with what was chosen."""

    kind: str
    graph: str  # "given" or "found"
    rules: tuple[str, ...]
    seeds: int
    budget: int
    folder: Path  # of the runs

    def config(self) -> Any:
        """The experiment, tested at its end only."""
        return config_on(self.kind, self.graph)

    def head(self) -> dict[str, Any]:
        """What all methods of a result file have in common."""
        return {
            "kind": self.kind,
            "seeds": self.played(),
            "tuning_seed": FIRST_SEED,
            "budget": self.budget,
            "rounds": self.config().rounds,
        }

    def played(self) -> list[int]:
        """The seeds of the comparison."""
        return list(range(FIRST_PLAYED, FIRST_PLAYED + self.seeds))

    def left(self, results: Path) -> "Job":
        """The same with those methods only that are not in the result file."""
        known = {(one["rule"], one["graph"], one["hash"]) for one in kept(self.kind, results, self.head())}
        missing = [rule for rule in self.rules if (rule, self.graph, self.hash(rule)) not in known]
        return self._replace(rules=tuple(missing))

    def hash(self, rule: str) -> str:
        """Of all that the result of a method depends on besides seeds and budget."""
        return str(ruled(self.kind, self.graph, rule).hash())

    def runs(self) -> int:
        """How many runs it is."""
        graphs = [1 + controls(self.kind, self.graph, rule) for rule in self.rules]
        return sum(self.budget + self.seeds * count for count in graphs)

    def seconds(self) -> float:
        """Processor time that is to be expected.

        What methods of a job have in common is trained once for each rate that is chosen, which are about three.
        """
        found = 0.0
        for number, rule in enumerate(self.rules):
            client = ruled(self.kind, self.graph, rule).client
            wide = passes(client) + 0.4 * (usual(client) - 1)  # wide rows take time, as measured
            found += (wide if number < 3 else wide - 0.8) * self._replace(rules=(rule,)).runs()
        return KINDS[self.kind].seconds * self.config().rounds * found


@cache
def config_on(kind: str, graph: str) -> Any:
    """The experiment of a kind on its given or a found graph, tested at its end only."""
    known = KINDS[kind]
    config = config_of(HERE / f"{known.file}.toml", {"engine.workers": 1, **known.changes})
    changes: dict[str, Any] = {"evaluation.every": config.rounds}
    if graph == "found":  # of the same devices in the same rooms, so that they have the same samples
        common = ("laplacian", "shuffle", "control")
        place = {key: value for key, value in config.table()["graph"].items() if key not in common}
        changes["graph"] = {"name": "found", "k": NEIGHBOURS, "graph": place}
    return config_of(config, changes)


@cache
def ruled(kind: str, graph: str, rule: str) -> Any:
    """The same under a rule."""
    return with_rule(config_on(kind, graph), rule)


@cache
def on_links(kind: str, rule: str) -> bool:
    """Whether a rule uses the links of the graph."""
    return uses_graph(ruled(kind, "given", rule).aggregator)


@cache
def linked(kind: str) -> bool:
    """Whether a kind has a given graph."""
    return len(config_on(kind, "given").graph.graph(0).edges) > 0


def controls(kind: str, graph: str, rule: str) -> int:
    """How many controls are shown beside a method."""
    if not on_links(kind, rule):
        return 0
    return 3 if rule == CONTROLLED and (graph == "given" or not linked(kind)) else 1


def planned(kind: str, names: Sequence[str]) -> list[tuple[str, str]]:
    """(method, graph) of all that are played on a kind; without links or shared rooms it cannot have some."""
    graph, found = config_on(kind, "given").graph.graph(0), []
    for rule in names:
        alone = rule == "room_average" and len(set(graph.rooms.tolist())) == graph.count
        graphs = [*(["given"] if linked(kind) else []), "found"] if on_links(kind, rule) else ["given"]
        found += [] if alone else [(rule, one) for one in graphs]
    return found


def jobs_of(kind: str, names: Sequence[str], seeds: int, budget: int, out: Path) -> list[Job]:
    """The jobs of a kind: methods that have most of their training in common are one."""
    alike: dict[tuple[str, str], list[str]] = {}
    for rule, graph in planned(kind, names):
        alike.setdefault((graph, beside(ruled(kind, graph, rule))), []).append(rule)
    return [
        Job(kind, graph, tuple(some), seeds, budget, out / kind / graph / some[0]) for (graph, _), some in alike.items()
    ]


# --- work ---------------------------------------------------------------------------------------------------------


def work(job):
    """Tune methods and play them with what was chosen; what was done before is not done again."""
    config, store, found, playable = job.config(), a_store(), [], []
    for rule in job.rules:
        try:
            check_playable(validated(config), [rule], FIRST_SEED, store)
            playable.append(rule)
        except DataMissing:
            raise
        except ValueError as error:
            found.append({"rule": rule, "rows": [], "refused": str(error)})
    if playable:
        found += played(job, playable, store)
    for heavy in [*job.folder.glob("*/*/*/checkpoint"), *job.folder.glob("*/*/*/models")]:
        shutil.rmtree(heavy)  # gigabytes, of which nothing is used any more
    return [{"rule": one["rule"], "graph": job.graph, "hash": job.hash(one["rule"]), **one} for one in found]


@cache
def a_store():
    """The data files of this process, which reads those of a kind once."""
    return Store()


def played(job, names, store):
    """Of each method its rows: itself, and its controls."""
    config, seeds = job.config(), job.played()
    job.folder.mkdir(parents=True, exist_ok=True)
    tried = range(FIRST_SEED, FIRST_SEED + min(TUNING_SEEDS, job.budget))
    for _ in tuning.tune(config, names, job.budget, tried, job.folder / "tune", True, store):
        pass
    tuned = Tuned.of(job.folder / "tune")
    variants = [
        one
        for one in compared(config, names, (), tuned, seeds, controls=True)
        if one.config.graph.control in ("", "shuffled") or controls(job.kind, job.graph, plain_name(one)) == 3
    ]
    failed: dict[tuple[str, int], str] = {}
    place = job.folder / "compare"
    for _ in play_variants(variants, seeds, place, True, store, failed):
        pass
    found = []
    for rule in names:
        own = [one for one in variants if plain_name(one) == rule]
        why = {name: words for (name, _), words in failed.items()}
        refused = {one.config.graph.control: why[one.name] for one in own if one.name in why}
        if "" in refused:
            ended = f"with the settings that were chosen, not all seeds could be played to the end: {refused['']}"
            found.append({"rule": rule, "rows": [], "refused": ended})
            continue
        rows = [row(job, one, place / one.name, seeds) for one in own if one.name not in why]
        chosen = tuned.rules[rule][0]
        for one in rows:
            one |= {"settings": dict(chosen.settings), "validation": round(chosen.validation, 6)}
        found.append({"rule": rule, "rows": rows, "refused_controls": refused})
    return found


def plain_name(variant):
    """The rule of a variant, without its control."""
    return variant.rule.partition(" graph=")[0]


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
        "rule": plain_name(variant),
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
    least, rounds = min(sent), len(lines)
    personal = [extra(config.client, number, rounds) > 0 for number in range(1, rounds + 1)]
    later = rounds - 1 - personal.index(True) if seldom(config.client) and any(personal) else 0
    if isinstance(config.aggregator, Local):  # nothing has to be sent
        return epochs, 0.0, 0.0
    learned = bool(config.graph.learned)
    down = least * (1 + later / rounds / usual(config.client))
    return epochs + learned, (sum(sent) + learned * least) / rounds, down


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
    """Do what is missing, the kinds one after the other, and write down each method as soon as it is done."""
    left = [job for job in (job.left(results) for job in jobs) if job.rules]
    expected = {job: job.seconds() for job in left}
    total, spent, start, errors = sum(expected.values()), 0.0, time.monotonic(), []
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the processes that begin now: each is one core
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, context, leave_with, (os.getpid(),))
    with progress_bar() as bar, pool:
        missing = f"{sum(len(job.rules) for job in left)} of {sum(len(job.rules) for job in jobs)} methods to do"
        task = bar.add_task(f"{missing}, about {words(total / processes)}", total=total)
        futures = {pool.submit(work, job): job for job in left}
        for count, future in enumerate(as_completed(futures), start=1):
            job = futures[future]
            spent += expected[job]
            ahead = (total - spent) * (time.monotonic() - start) / spent
            try:
                keep(job, future.result(), results)
                how = "done"
            except Exception as error:  # the others go on: hours of work
                errors.append(f"{job.kind}, {job.graph} graph, {', '.join(job.rules)}: {error}")
                how = "failed"
            said = f"{count}/{len(left)} {job.kind} {', '.join(job.rules)} {how}, about {words(ahead)} left"
            bar.update(task, completed=spent, description=shown(said))
            if not bar.console.is_terminal:
                bar.console.print(shown(said))
    return errors


def kept(kind, results, head):
    """The methods in the result file of a kind, which must be of so many seeds, runs and rounds."""
    path = results / f"{kind}.json"
    old = json.loads(path.read_text()) if path.exists() else {**head, "methods": []}
    for key in ("seeds", "budget", "rounds"):
        if old[key] != head[key]:
            raise ValueError(f"{path} has {key} = {old[key]}, these are {head[key]}: name another --results")
    return old["methods"]


def keep(job, new, results):
    """Add methods to the result file of their kind, a line each: what is in it need not be computed again."""
    every = {(one["rule"], one["graph"]): one for one in [*kept(job.kind, results, job.head()), *new]}
    order = {place: number for number, place in enumerate(planned(job.kind, RULES))}
    places = sorted(every, key=lambda place: (order.get(place, len(order)), place))
    lines = ",\n".join(f"  {json.dumps(every[place])}" for place in places)
    text = json.dumps({**job.head(), "methods": []}, indent=1).replace('"methods": []', f'"methods": [\n{lines}\n ]')
    results.mkdir(parents=True, exist_ok=True)
    write_atomically(results / f"{job.kind}.json", f"{text}\n".encode())


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
        lines.append(f"| {kind} | {' | '.join(counted(mine))} | {words(seconds)} |")
    return "\n".join([*lines, f"| all | {' | '.join(counted(jobs))} | {words(total)} |"])


def counted(jobs):
    """(methods, runs) as texts."""
    return str(sum(len(job.rules) for job in jobs)), str(sum(job.runs() for job in jobs))


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


def read(results):
    """The results of kinds, by name: of each the rows of all methods, those that it cannot have, and those missing."""
    known = {}
    for name in KINDS:
        path = results / f"{name}.json"
        found = json.loads(path.read_text()) if path.exists() else {"methods": []}
        if not found["methods"]:
            continue
        done = {(one["rule"], one["graph"]) for one in found["methods"]}
        known[name] = found | {
            "rows": [row for one in found["methods"] for row in one["rows"]],
            "cannot": {
                one["rule"] + (f", {one['graph']} graph" if on_links(name, one["rule"]) else ""): one["refused"]
                for one in found["methods"]
                if "refused" in one
            }
            | {
                f"{one['rule']}, {one['graph']} graph, {control}": why
                for one in found["methods"]
                for control, why in one.get("refused_controls", {}).items()
            },
            "missing": [place for place in planned(name, RULES) if place not in done],
        }
    return known


def so_far(found):
    """How much of a kind is there, in words; nothing if all is."""
    there, missing = len(found["methods"]), len(found["missing"])
    return f"{there} of {there + missing} methods so far" if missing else ""


def methods_of(found):
    """The rows of a result that are not controls."""
    return [one for one in found["rows"] if not one["control"]]


def find(found, rule, graph=None, control=""):
    rows = [one for one in found["rows"] if (one["rule"], one["control"]) == (rule, control)]
    return next((one for one in rows if graph is None or one["graph"] == graph), None)


def table(found):
    """Markdown of all methods of a kind, the best own test first; under each graph rule its controls."""
    base, shared, front = find(found, BASELINE), find(found, "fedavg"), on_front(methods_of(found))
    epochs = shared["epochs"] if shared else np.nan
    lines = [
        "| method | own | worst | others | own, paired | others, paired | epochs | kB up / down | asks |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for method in sorted(methods_of(found), key=lambda one: -mean(one, "own")):
        controls = [one for one in found["rows"] if (one["rule"], one["graph"]) == (method["rule"], method["graph"])]
        for one in [method, *(one for one in controls if one["control"])]:
            name = f"**{name_of(one)}** ★" if one in front else name_of(one) if one is method else f"↳ {one['control']}"
            scores = [f"{100 * mean(one, score):.1f}" for score in ("own", "worst", "others")]
            pairs = [paired(one, base, score) for score in ("own", "others")]
            cost = f"{one['epochs'] / epochs:.2f}".replace("nan", "-")
            sent = f"{one['up_bytes'] / 1000:.0f} / {one['down_bytes'] / 1000:.0f}"
            lines.append(f"| {' | '.join([name, *scores, *pairs, cost, sent, str(one['forward_passes'])])} |")
    return "\n".join(lines)


def paired(one, base, score):
    """The difference to another method, if that is there and is another."""
    return "-" if base is None or one is base else points(*difference(one, base, score))


def points(middle, low, high):
    """A difference in points, with its interval of confidence if there is one."""
    ends = f" ({100 * low:+.1f} to {100 * high:+.1f})" if np.isfinite([low, high]).all() else ""
    return f"{100 * middle:+.1f}{ends}"


def verdict(found):
    """What the numbers of a kind say, in sentences."""
    rows = methods_of(found)
    known = f" ({so_far(found)})" if found["missing"] else ""
    said = [f"On the front{known}: {', '.join(f'`{name_of(one)}`' for one in on_front(rows))}."]
    for one in rows:
        shuffled = find(found, one["rule"], one["graph"], "shuffled") if one["graph"] else None
        if shuffled is not None:
            middle, low, high = difference(one, shuffled, "own")
            how = "beats" if low > 0 else "loses to" if high < 0 else "cannot be told from"
            sizes = f"own {points(middle, low, high)}, others {points(*difference(one, shuffled, 'others'))}"
            said.append(f"`{name_of(one)}` {how} its shuffled control: {sizes}.")
    if (recipe := find(found, RECIPE)) is not None and not found["missing"]:
        best, word = rival(found)
        pairs = [points(*difference(best, recipe, score)) for score in ("own", "others")]
        which = f"against the best of them, `{name_of(best)}`, own {pairs[0]} and others {pairs[1]} points are missing"
        said.append(
            f"Is `{RECIPE}` within {100 * CLOSE:.1f} points of the best own test among methods that keep at least as "
            f"many points for others? **{word[0].upper()}{word[1:]}**: "
            f"{'it is the best itself' if best is recipe else which}."
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
            cells = [gain(found, "given"), gain(found, "found"), "-", "-", so_far(found) or "-"]
            if (recipe := find(found, RECIPE)) is not None:
                cells[2:4] = [paired(recipe, find(found, BASELINE), score) for score in ("own", "others")]
                cells[4] = so_far(found) or rival(found)[1]
        lines.append(f"| {' | '.join([kind.title, *cells])} |")
    words = "The graph columns are the own test of `mu=1` minus that of its shuffled control."
    about = f"{words} The last one is explained below each kind."
    return "\n".join([*lines, "", about, "", *(f"* {words}" for words in concluded(known))])


def concluded(known):
    """When to use a graph and the recipe, by the intervals of all kinds that are complete: sentences."""
    complete = {name: found for name, found in known.items() if not found["missing"]}
    said = []
    for graph in ("given", "found"):
        pairs = {}
        for name, found in complete.items():
            one, shuffled = (find(found, CONTROLLED, graph, control) for control in ("", "shuffled"))
            if one is not None and shuffled is not None:
                pairs[name] = difference(one, shuffled, "own")
        said.append(f"Links of the {graph} graph, `{CONTROLLED}` against shuffled ones, own test: {sorted_out(pairs)}")
    for rule, score in itertools.product((RECIPE, "two_level"), ("own", "others")):
        pairs = {
            name: difference(one, base, score)
            for name, found in complete.items()
            if (one := find(found, rule)) is not None and (base := find(found, BASELINE)) is not None
        }
        said.append(f"`{rule}` against `{BASELINE}`, {score}: {sorted_out(pairs)}")
    return said if complete else []


def sorted_out(pairs):
    """On which kinds a difference is above zero, below it, or neither, by its interval."""
    words = {"better on": [], "worse on": [], "cannot be told on": []}
    for name, (_, low, high) in pairs.items():
        words["better on" if low > 0 else "worse on" if high < 0 else "cannot be told on"].append(KINDS[name].title)
    return "; ".join(f"{how} {', '.join(names)}" for how, names in words.items() if names) + "."


def gain(found, graph):
    """What `mu=1` has of the links of a graph."""
    one, shuffled = (find(found, "mu=1", graph, control) for control in ("", "shuffled"))
    return "-" if one is None or shuffled is None else points(*difference(one, shuffled, "own"))


def rival(found):
    """The best own test among methods that keep at least what the recipe keeps for others; is the recipe near it?"""
    recipe = find(found, RECIPE)
    keeping = [one for one in methods_of(found) if mean(one, "others") >= mean(recipe, "others")]
    best = max(keeping, key=lambda one: mean(one, "own"))
    middle, low, _ = difference(best, recipe, "own")
    return best, "yes" if middle <= CLOSE else "no" if low > CLOSE else "cannot be told"


def page(results):
    """The part of docs/methods.md between the markers: a function of the result files."""
    known = read(results)
    parts = ["## In short", overview(known)]
    for name, kind in KINDS.items():
        parts += [f"## {kind.title}", f"{kind.about[0].upper()}{kind.about[1:]}."]
        if name not in known:
            parts.append(f"Not computed yet: `python experiments/methods.py {name} --jobs 2`")
            continue
        found = known[name]
        if found["missing"]:
            parts.append(
                f"**{so_far(found)[0].upper()}{so_far(found)[1:]}**: what follows may change with the others. "
                f"`python experiments/methods.py {name} --jobs 2` goes on with {still(found)}."
            )
        if found["rows"]:
            parts += results_of(name, found)
        if found["cannot"]:
            refused = "; ".join(f"`{what}` ({why})" for what, why in found["cannot"].items())
            parts.append(f"Not possible here, or not to the end: {refused}.")
    return "\n\n".join(parts)


def still(found):
    """The methods that are missing."""
    graphs = [
        f"`{rule}`" + (f" ({graph} graph)" if on_links(found["kind"], rule) else "") for rule, graph in found["missing"]
    ]
    return ", ".join(graphs)


def results_of(name, found):
    """What is on the page of a kind that has some results."""
    hours = sum(one["wall_seconds"] * len(one["scores"]) for one in found["rows"]) / 3600
    versions = sorted({f"fedfilt {one['environment']['fedfilt']}" for one in found["rows"]})
    count = f"{len(found['seeds'])} seeds, {found['rounds']} rounds, {hours:.1f} hours for the runs of this table"
    return [
        verdict(found),
        f"![Own test against that of others: {KINDS[name].title}](methods/{name}.svg)",
        table(found),
        f"{count} ({', '.join(versions)}).",
        f"<details><summary>Settings that were chosen, with {found['budget']} runs each</summary>\n\n"
        f"{settings(found)}\n\n</details>",
    ]


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
    for name, found in read(results).items():
        if found["rows"]:
            (docs / "methods").mkdir(exist_ok=True)
            figure(found).write_image(docs / "methods" / f"{name}.svg")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    write_atomically(path, f"{before}{BEGIN}\n\n{page(results)}\n\n{END}{after}".encode())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(KINDS)}; all if none is named")
    parser.add_argument("--rules", help="methods, with commas between; all of the page if not said")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="seeds of the comparison, from 30 on")
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
        if getattr(arguments, option) < 1 or (option == "seeds" and arguments.seeds > FIRST_SEED - FIRST_PLAYED):
            parser.error(f"--{option} must be at least 1, and seeds at most {FIRST_SEED - FIRST_PLAYED}")
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
