"""Whether a graph helps here, given or found, and which rule to use, from what a server can measure without data.

A short probe trains a shared model by FedAvg. Before that, every device trains for one epoch on each half of its
samples, as a run does to find its graph; afterwards it fine-tunes the shared model on all of its samples and on each
half, and sends these changes. Everything else is computed from them: see `fedfilt.mixing.likeness`.
"""

import json
import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors
from scipy.sparse.csgraph import connected_components

from fedfilt._brief import lines_of
from fedfilt._checks import check_count
from fedfilt._draws import Key, generator
from fedfilt._files import write_atomically
from fedfilt._reading import read, read_json
from fedfilt._threads import one_thread
from fedfilt._types import Array, Table
from fedfilt.aggregators.fedavg import FedAvg
from fedfilt.clients.plain import Plain
from fedfilt.data.store import Store
from fedfilt.mixing.bayes import Measured, measure
from fedfilt.mixing.likeness import Links, by_labels, judged, nearest_links
from fedfilt.rounds.participation import Participation
from fedfilt.rounds.play import play
from fedfilt.rounds.privacy import Privacy
from fedfilt.rounds.types import Evaluation
from fedfilt.runs.build import Run
from fedfilt.runs.config import Config
from fedfilt.runs.rules import rule_name, with_rule
from fedfilt.runs.tables import GraphTable
from fedfilt.training.client import TESTING

ROUNDS, EPOCHS = 20, 10  # of the probe: rounds of FedAvg, and epochs of fine-tuning after them
NEIGHBOURS = 3  # of every device in the graph to be found
FEWEST = 6  # devices needed for any verdict: fewer allow too few shuffles
# Chosen on seeds 101 to 103 of the kinds in benchmarks/advice.py
CHANCE = 0.01  # probability that random links do as well; above it, links say nothing
LABELS = 0.5  # correlation with labels from which similarity is mostly similarity of labels
STRONG = 0.03  # by how much neighbours predict better than everyone if groups are strong
AGAIN = 0.02  # by how much neighbours found after some rounds must predict better than those found before round 1
FIXED = {"between": "none", "reweigh": False}  # options of graphs that are learned, to leave only what is known
FILE = "advice.json"
MOST = 4 << 30  # bytes sent by devices
# What to use, by docs/methods.md; where groups are strong, with a filtered model
RECIPE, THIRD = "averaged:client=finetune", "two_level:mu=10"
WHY = {
    "helps": "linked devices learn alike, and what neighbours learn predicts more than what everyone learns",
    "chance": "linked devices learn no more alike than devices linked at random",
    "everyone": "what everyone learns predicts a device's change as well as what its neighbours learn",
    "labels": "devices are alike because they have the same labels, which each learns best by itself",
    "links": "it has no links, or links between all devices, so there is nothing to compare",
    "learned": "its own links are found from what devices learn, so look at the found graph",
    "devices": f"fewer than {FEWEST} devices changed on both halves of their samples, too few to tell what is chance",
    "refused": "a run with this [privacy] cannot use one",
}
JUDGED = ("helps", "chance", "everyone", "labels")  # those of WHY that follow from a judgement


class Probe(NamedTuple):
    """What devices sent: changes (K, B) of one model after fine-tuning on all samples and on each half."""

    changes: Array
    first: Array
    second: Array
    first_early: Array  # (K, B) changes of the first model after one epoch, on the same halves
    second_early: Array
    samples: Array  # (K,)
    labels: Array | None  # (K, C) information on labels: the change of the output layer's biases, or counts

    @classmethod
    def of(cls, path: Path, count: int) -> "Probe":
        """What `count` devices sent before, from a file."""
        try:
            found = load_tensors(read(path, MOST))
            early = found["first_early"], found["second_early"]
            sent = cls(found["changes"], found["first"], found["second"], *early, found["samples"], found.get("labels"))
        except (KeyError, ValueError, SafetensorError) as error:
            raise ValueError(f"{path} must hold what devices sent to fedfilt advise: {error}; remove it") from error
        if any(one is not None and (not len(one.shape) or len(one) != count) for one in sent):
            raise ValueError(f"{path} must hold the changes of {count} devices; remove it")
        return sent


@dataclass(frozen=True, eq=False, repr=False)
class Advice:
    """What was measured, and the advice that follows.

    >>> import fedfilt
    >>> table = {"data": "digits", "model": "logistic", "samples": {"train": 9, "local_test": 9}}
    >>> advice = fedfilt.advise(table, rounds=1)
    >>> advice.graph in ("given", "found", "none"), len(advice.clusters) > 0
    (True, True)
    """

    experiment: str  # its name on the command line
    own: str  # the experiment's own rule
    measured: Measured
    labels: float | None  # how far similarity is similarity of labels; None: no information on labels
    counted: bool  # True: judged by label counts that devices report; False: by the output layer
    given: Links | None
    found: Links | None
    again: int  # rounds after which the graph to be found is found again; 0: it is found once, before round 1
    otherwise: float | None  # how much more the found graph's neighbours would predict if it were found the other way
    clusters: list[list[int]]  # devices that are linked in the graphs of both halves
    found_by: list[str]  # overrides to find the graph as it was judged
    why: Mapping[str, str]  # "given", "found" -> a key of WHY
    refused: Mapping[str, str]  # rules that would be advised, but that this experiment cannot have -> why

    @property
    def graph(self) -> str:
        """The graph to use: "given", "found" or "none"."""
        best = [name for name in ("given", "found") if self.why[name] == "helps"]
        return max(best, key=lambda name: getattr(self, name).more, default="none")

    @property
    def rules(self) -> list[str]:
        """The rules to compare: the advised one first, then fine-tuning, FedAvg and the experiment's own rule."""
        graph = [] if self.graph == "none" else [self._filter]
        rules = [THIRD, RECIPE, *graph] if self.strong else [RECIPE, *graph]
        return [rule for rule in dict.fromkeys([*rules, "finetune", "fedavg", self.own]) if rule not in self.refused]

    @property
    def strong(self) -> bool:
        """Whether groups of the graph to use are strong."""
        return self.graph != "none" and getattr(self, self.graph).more >= STRONG

    @property
    def _filter(self) -> str:
        """The plain filter on the graph to use."""
        return "mu=10" if self.strong else "mu=1"

    @property
    def command(self) -> str:
        """The command to check the advice: a paired comparison of the rules over seeds."""
        more = self.found_by if self.graph == "found" else []
        words = ["fedfilt", "compare", *shlex.split(self.experiment), *more]
        return shlex.join([*words, "--rules", ",".join(self.rules), "--seeds", "5"])

    def sentences(self) -> list[str]:
        """The advice in a few sentences."""
        said = [self._said("given"), self._said("found")]
        if self.measured.halves:
            r = float(self.measured.reliability.mean())
            said.append(
                f"Of a device's change by fine-tuning, {r:.0%} would recur with other samples (two halves of its "
                f"samples agree with a cosine of {self.measured.halves:.2f}); the rest is noise, which others could "
                "average out."
            )
        else:
            said.append("How much of a device's change is noise is not known: no device changed on both halves.")
        if self.labels is not None:
            basis = "the label counts that devices report" if self.counted else "the biases of the output layer"
            how = "mostly" if self.labels >= LABELS else "hardly" if self.labels < LABELS / 2 else "partly"
            said.append(f"Devices are {how} alike by their labels (correlation {self.labels:.2f}, judged by {basis}).")
        first = self.rules[0]
        wanted = THIRD if self.strong and THIRD in self.refused else RECIPE
        said += [f"{wanted} cannot be used here: {self.refused[wanted]}."] if wanted in self.refused else []
        if self.graph == "none":
            said.append(self._without())
        elif RECIPE in self.refused:
            said.append(f"Use {first} on the {self.graph} graph if nothing but a device's own data matters.")
        elif self.strong and THIRD not in self.refused:
            said.append(
                f"Groups are strong: use {first} on the {self.graph} graph. It trains twice as much as {RECIPE}, and "
                "should be better on a device's own data and worse on everyone else's."
            )
        else:
            said.append(
                f"{'Groups are strong' if self.strong else 'The benefit is small'}: use {first}, and {self._filter} "
                f"on the {self.graph} graph only if nothing but a device's own data matters."
            )
        if self.graph != "none":
            said.append(self._devices())
        said.append("Accuracy was not measured. Check it with: " + self.command)
        return said

    def _without(self) -> str:
        """What to do if no graph was found to help: perhaps as none could be judged."""
        first, judged = self.rules[0], [name for name, why in self.why.items() if why in JUDGED]
        if not judged:
            return f"Whether a graph is worth its cost here is not known. Use {first}, which needs none."
        one = "a graph" if len(judged) == len(self.why) else f"the {judged[0]} graph"
        return f"Use {first}; {one} is not worth its cost here."

    def _said(self, name: str) -> str:
        links, why = getattr(self, name), self.why[name]
        verb = "helps" if why == "helps" else "does not help" if links is not None else "cannot be judged"
        text = f"The {name} graph {verb}: {WHY[why]}"
        if links is None:
            return f"{text}."
        numbers = f"cosine {links.linked:.2f} on its {links.links} links, {links.unlinked:.2f} elsewhere"
        sure = f"; {links.sure:.0%} of resampled sets of devices agree" if why == "helps" else ""
        text = f"{text} ({numbers}; the probability of that by chance is {links.chance:.3g}{sure})."
        if name == "given" or why != "helps":
            return text
        if not self.again:
            return f"{text} It is found once, before round 1."
        early = "" if self.otherwise is None else f" ({self.otherwise:+.3f} more than everyone, not {links.more:+.3f})"
        often = f"{self.again} rounds" if self.again > 1 else "round"
        return (
            f"{text} It only shows after some rounds, so it is to be found again every {often}; neighbours found "
            f"before round 1 predict less{early}."
        )

    def _devices(self) -> str:
        gains = self.gains()
        best, worst = int(gains.argmax()), int(gains.argmin())
        verb = "loses" if gains[worst] < 0 else "gains least"
        return (
            f"{int((gains > 0).sum())} of {len(gains)} devices gain from their neighbours: device {best} most "
            f"({gains[best]:+.3f}), device {worst} {verb} ({gains[worst]:+.3f}). The estimate is how much better (as a "
            "cosine) the other half of a device's samples predicts the change from one half with neighbours than "
            "without."
        )

    def gains(self) -> Array:
        """(K,) how much better neighbours in the advised graph predict a device, as a cosine; 0 without a graph."""
        links: Links | None = getattr(self, self.graph, None)
        zeros: Array = np.zeros(len(self.measured.reliability))
        return zeros if links is None else links.neighbours - links.own

    def table(self) -> Table:
        """All of it as a table for JSON."""
        links = {
            name: None if (one := getattr(self, name)) is None else {**_plain(one), "more": round(one.more, 6)}
            for name in ("given", "found")
        }
        devices = {"reliability": self.measured.reliability, "gain": self.gains()}
        return {
            "experiment": self.experiment,
            "graph": self.graph,
            "verdicts": dict(self.why),
            "rules": self.rules,
            "command": self.command,
            "sentences": self.sentences(),
            "halves": round(self.measured.halves, 6),
            "labels": self.labels,
            **links,
            "again": self.again,
            "clusters": self.clusters,
            "devices": {name: [round(float(one), 4) for one in values] for name, values in devices.items()},
        }

    def save(self, folder: Path) -> None:
        """Save it in a run folder, where the dashboard finds it."""
        write_atomically(folder / FILE, json.dumps(self.table(), indent=1).encode())

    def __repr__(self) -> str:
        return lines_of(f"Advice on {self.experiment}", *(f"  {one}" for one in self.sentences()[:4]))


def _plain(links: Links) -> Table:
    told = {key: value for key, value in links._asdict().items() if not isinstance(value, np.ndarray)}
    means = {key: float(value.mean()) for key, value in links._asdict().items() if isinstance(value, np.ndarray)}
    return {key: round(value, 6) for key, value in {**told, **means}.items()}


def kept(folder: Path) -> Table | None:
    """The advice in a run folder, for the dashboard: sentences, and measurements by name."""
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
        found = read_json(folder / FILE)
        measured = {"agreement of halves": f"{found['halves']:.3f}"}
        if found["labels"] is not None:
            measured["similarity by labels"] = f"{found['labels']:.2f}"
        for name in ("given", "found"):
            if (links := found[name]) is not None:
                measured[f"{name} graph"] = (
                    f"{links['links']:d} links; cosine {links['linked']:.3f}, elsewhere {links['unlinked']:.3f}; by "
                    f"chance {links['chance']:.3g}; neighbours predict {links['neighbours']:.3f}, everyone "
                    f"{links['everyone']:.3f}, a device alone {links['own']:.3f}"
                )
        sizes = ", ".join(str(len(one)) for one in found["clusters"])
        measured["devices that find each other"] = f"in groups of {sizes}"[:200] if sizes else "none"
        return {"sentences": [str(one)[:1000] for one in found["sentences"]][:12], "measured": measured}
    return None


@one_thread()
def advise(
    config: Config,
    name: str,
    store: Store | None = None,
    rounds: int = ROUNDS,
    share_labels: bool = False,
    folder: Path | None = None,
) -> Advice:
    """Probe an experiment and give advice; `name` is its name on the command line.

    With `share_labels`, devices report how many samples of each label they have; otherwise the biases of the output
    layer give an estimate. What devices sent is saved in the `folder` of a run and reused for the same experiment.
    """
    graph = config.graph.graph(config.seed)
    probing = probed(config, rounds)
    place = None if folder is None else folder / f"probe-{probing.hash()}-early{'-labels' * share_labels}.safetensors"
    run = None
    if place is not None and place.exists():
        sent = Probe.of(place, graph.count)
    else:
        run = Run(probing, store, graph=graph)
        run.check_here()
        sent = probe(run, share_labels)
        if place is not None:
            write_atomically(place, save_tensors({k: v for k, v in sent._asdict().items() if v is not None}))
    links = (graph.adjacency != 0).toarray()
    measured = measure(sent.changes, sent.first, sent.second, sent.samples, links)
    labels = None if sent.labels is None else by_labels(measured.cosines, np.asarray(sent.labels, float))
    given, why = _judge(config, sent, (links, links), labels)
    if why == "links" and config.graph.learned:
        why = "learned"
    known = {0: _found(sent.first_early, sent.second_early)}  # by the rounds after which they are found again
    if every := interval(config, rounds):
        known[every] = _found(sent.first, sent.second)
    ways = {times: _judge(config, sent, own, labels) for times, own in known.items()}
    again = _again(ways)
    found, reason = ways[again]
    otherwise = next((way.more for times, (way, _) in ways.items() if times != again and way is not None), None)
    if config.privacy.noisy or config.privacy.blind:  # its graph cannot depend on what devices learn
        again, found, reason = 0, None, "refused"
    both = known[again][0] & known[again][1]
    count, group = connected_components(both, directed=False)
    clusters = [np.flatnonzero(group == number).tolist() for number in range(count)]
    return Advice(
        name,
        rule_name(config.table()),
        measured,
        labels,
        share_labels,
        given,
        found,
        again,
        otherwise,
        [devices for devices in clusters if len(devices) > 1],
        found_by(config, again),
        {"given": why, "found": reason},
        refused(config, store, run),
    )


def refused(config: Config, store: Store | None, probing: Run | None) -> dict[str, str]:
    """Rules that may be advised but cannot be played here, such as with [privacy] or guard.robust, and why."""
    found, data = {}, None if probing is None else probing.data
    for rule in (RECIPE, THIRD):
        try:
            data = Run(with_rule(config, rule), store, data).data
        except ValueError as error:
            found[rule] = str(error)
    return found


def _found(first: Array, second: Array) -> tuple[Array, Array]:
    """The links (K, K) that each half finds."""
    return nearest_links(first, NEIGHBOURS), nearest_links(second, NEIGHBOURS)


def _judge(config: Config, sent: Probe, known: tuple[Array, Array], labels: float | None) -> tuple[Links | None, str]:
    """(what links say, None if they cannot be judged; a key of WHY) of the links known to each half."""
    if (sent.first.any(axis=1) & sent.second.any(axis=1)).sum() < FEWEST:
        return None, "devices"
    if any(not one.any() or (one | np.eye(len(one), dtype=bool)).all() for one in known):
        return None, "links"
    links = judged(sent.first, sent.second, known, generator(config.seed, Key.ADVICE))
    return links, verdict(links, labels)


def interval(config: Config, rounds: int) -> int:
    """Rounds after which a run finds its graph again if that is better; 0 if it cannot.

    As many as the probe has, so that the graph is the one judged; but no more than half of the run's.
    """
    if config.events or config.privacy.guards_rows:
        return 0
    return max(1, min(rounds, config.rounds // 2))


def _again(ways: Mapping[int, tuple[Links | None, str]]) -> int:
    """How often to find a graph: once (0) unless what is found again helps, and once does not or clearly less."""
    every = max(ways)
    (once, why), (again, _) = ways[0], ways[every]
    if not every or again is None or ways[every][1] != "helps":
        return 0
    return every if once is None or why != "helps" or again.more - once.more >= AGAIN else 0


def verdict(links: Links, labels: float | None) -> str:
    """A key of WHY."""
    if links.chance > CHANCE:
        return "chance"
    if labels is not None and labels >= LABELS:
        return "labels"
    return "helps" if links.more > 0 else "everyone"


def probed(config: Config, rounds: int = ROUNDS) -> Config:
    """The probe's experiment: FedAvg with all devices, on all training samples, without tests."""
    rounds = min(check_count("rounds", rounds), config.rounds) + 1  # the last is not played, as it would be tested
    return replace(
        config,
        rounds=rounds,
        aggregator=FedAvg(),
        client=Plain(),
        evaluation=Evaluation(every=rounds),
        events=(),
        privacy=Privacy(),
        participation=Participation(),
        engine=replace(config.engine, name="local", real_time=False),
    )


@one_thread()
def probe(run: Run, share_labels: bool = False) -> Probe:
    """Train the shared model, then measure each device's change to it: on all samples, and on each half."""
    config, data, sent = run.config, run.data, []
    with run.experiment() as experiment:
        shared = next(now.models[0] for now, _ in play(run.start(), experiment) if now.round == config.rounds - 1)
    parts: list[tuple[Array, Array]] = []  # of every device
    for device, rows in enumerate(data.train):
        labels = data.y[rows] if data.labelled else np.zeros(len(rows), int)
        one, other = halves(labels, generator(config.seed, Key.ADVICE, device))
        parts.append((rows[one], rows[other]))
        for own in (rows, *parts[-1]):
            row = shared.copy()
            if len(own):
                run.trainer.train(
                    row,
                    data.x,
                    data.y,
                    own,
                    seed=config.seed,
                    round=config.rounds,
                    device=device,
                    epochs=EPOCHS,
                    samples=len(own),
                    first=TESTING,
                )
            sent.append(row - shared)
    one_early, other_early = (
        run.first_updates(data=replace(data, train=tuple(part[which] for part in parts))) for which in (0, 1)
    )
    changes, first, second = (np.ascontiguousarray(np.stack(sent[which::3])) for which in range(3))
    told: Array | None = data.label_counts if share_labels and data.labelled else None
    if told is None and data.labelled:
        head = run.layout.columns(["head"])
        biases = [slot for slot in run.layout.slots if len(slot.shape) == 1 and head[slot.start]]
        told = changes[:, biases[0].start : biases[0].stop].copy() if biases else None  # files keep whole rows only
    return Probe(changes, first, second, one_early, other_early, np.array([len(rows) for rows in data.train]), told)


def halves(labels: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """Indices of two halves with the same labels, as far as possible: different labels would make halves disagree.

    >>> one, other = halves(np.array([0, 0, 1, 1, 2]), np.random.default_rng(0))
    >>> len(one), len(other), sorted([*one, *other]) == [0, 1, 2, 3, 4]
    (3, 2, True)
    """
    order = rng.permutation(len(labels))
    flat = labels.reshape(len(labels), -1)[:, 0] if len(labels) else labels
    order = order[np.argsort(flat[order], kind="stable")]
    return order[::2], order[1::2]


def found_by(config: Config, again: int = 0) -> list[str]:
    """Overrides with which an experiment finds its graph, once or `again` every so often, and uses it as found."""
    table, common = config.table()["graph"], {field.name for field in fields(GraphTable)}
    how = [f"graph.k={NEIGHBOURS}", *([f"graph.every={again}"] if again else [])]
    how += [f"graph.{key}={value}" for key, value in (("shuffle", "false"), ("control", "''")) if table[key]]
    if table["name"] == "found":
        return how if again else [*how, *["graph.every=0"] * bool(table["every"])]
    topology = config.graph.topology
    usual = {field.name: field.default for field in fields(topology)} if is_dataclass(topology) else {}
    options = {key: value for key, value in table.items() if key not in common and usual.get(key) != value}
    if config.graph.learned:  # of its devices and rooms, which must be known before any links are
        options |= {key: value for key, value in FIXED.items() if options.get(key, value) != value}
    inner = ",".join(f"{key}={json.dumps(value)}" for key, value in options.items())
    return ["graph=found", *how[:1], f"graph.graph={{{inner}}}", *how[1:]]
