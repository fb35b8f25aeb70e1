"""Advice: whether links say anything about what devices learn, by statistics that can say no."""

import json
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedfilt
from fedfilt import Graph
from fedfilt.mixing import likeness
from fedfilt.mixing.likeness import Links, by_labels, judged, nearest_links
from fedfilt.rounds.play import play
from fedfilt.runs import advice
from fedfilt.runs.advice import FILE, Probe, halves, kept
from fedfilt.runs.build import Run
from fedfilt.runs.config import changed, from_table, load
from fedfilt.runs.records import Records
from fedfilt.runs.rules import with_rule
from fedfilt.show.dashboard import page
from helpers import call, config_file, finish

TURNED = '''
from dataclasses import dataclass, replace

import numpy as np

from fedfilt.partitions import Uniform


@dataclass(frozen=True)
class Turned:
    """Digits of the r-th room are turned by r times 90 degrees."""

    def __call__(self, samples, rooms, sizes, rng):
        data = Uniform()(samples, rooms, sizes, rng)
        x = data.x.copy()
        for device, rows in enumerate(data.train):
            pictures = data.x[rows].reshape(-1, 8, 8)
            x[rows] = np.rot90(pictures, rooms[device], axes=(1, 2)).reshape(data.x[rows].shape)
        return replace(data, x=x)
'''
ROOMS = {
    "data": "digits",
    "model": {"name": "mlp", "hidden": 32},
    "partition": "turned_by_room:Turned",
    "graph": {"name": "rooms", "rooms": 4, "devices": 16},
    "samples": {"train": 30, "local_test": 5, "global_test": 20},
    "training": {"learning_rate": 0.1},
    "rounds": 10,
    "engine": {"workers": 1},
}


def grouped(rng, groups=4, each=5, size=60, noise=2.0):
    """(changes from two halves, links inside groups): devices of a group have the same signal."""
    signal = np.repeat(rng.standard_normal((groups, size)), each, axis=0)
    first, second = signal + noise * rng.standard_normal((2, groups * each, size))
    group = np.repeat(np.arange(groups), each)
    return first, second, (group[:, None] == group) & ~np.eye(len(group), dtype=bool)


def shuffled(links, rng):
    order = rng.permutation(len(links))
    return links[np.ix_(order, order)]


# --- the statistics ---------------------------------------------------------------------------------------------------


def cosine(one, other):
    return one @ other / np.linalg.norm(one) / np.linalg.norm(other)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10_000))
def test_numbers_are_those_of_plain_loops(seed):
    rng = np.random.default_rng(seed)
    first, second, links = grouped(rng, 3, 3, 20)
    found = judged(first, second, (links, links), rng)
    pairs = [(i, j) for i in range(9) for j in range(9) if i != j]
    for linked, value in ((True, found.linked), (False, found.unlinked)):
        each = [cosine(x[i], x[j]) for x in (first, second) for i, j in pairs if links[i, j] == linked]
        assert value == pytest.approx(np.mean(each))
    units = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (first, second)]

    def foretold(others, weight):
        return [
            np.mean([cosine(b[k], a[k] + weight * a[others[k]].mean(axis=0)) for a, b in (units, units[::-1])])
            for k in range(9)
        ]

    assert found.own == pytest.approx(foretold(links, 0.0))
    assert found.neighbours == pytest.approx(foretold(links, found.weight))
    assert found.neighbours.mean() == pytest.approx(max(np.mean(foretold(links, w)) for w in likeness.WEIGHTS))
    everyone = ~np.eye(9, dtype=bool)
    assert found.everyone.mean() == pytest.approx(max(np.mean(foretold(everyone, w)) for w in likeness.WEIGHTS))


def test_chance_is_a_probability_where_links_mean_nothing(monkeypatch):
    monkeypatch.setattr(likeness, "SHUFFLES", 19)
    monkeypatch.setattr(likeness, "DRAWS", 1)
    rng, low, times = np.random.default_rng(0), [0, 0], 100
    for _ in range(times):
        first, second, links = grouped(rng)
        wrong = shuffled(links, rng)
        low[0] += judged(first, second, (wrong, wrong), rng).chance <= 0.1
        noise = rng.standard_normal((2, 20, 60))  # what is found in one half says nothing about the other
        one, other = noise
        low[1] += judged(one, other, (nearest_links(one, 3), nearest_links(other, 3)), rng).chance <= 0.1
    assert all(1 <= count <= 22 for count in low), low  # binomial, 10%


def test_groups_are_seen_given_and_found():
    rng = np.random.default_rng(1)
    first, second, links = grouped(rng, noise=1.0)
    for known in ((links, links), (nearest_links(first, 3), nearest_links(second, 3))):
        found = judged(first, second, known, rng)
        assert found.chance == 0.001
        assert found.more > 0.05
        assert found.sure > 0.95
        assert advice.verdict(found, None) == advice.verdict(found, 0.1) == "helps"
        assert advice.verdict(found, 0.9) == "labels"
    wrong = shuffled(links, rng)
    assert advice.verdict(judged(first, second, (wrong, wrong), rng), None) == "chance"


def test_where_all_learn_the_same_everyone_says_more():
    rng = np.random.default_rng(2)
    first, second = rng.standard_normal(60) + 2 * rng.standard_normal((2, 20, 60))
    found = judged(first, second, (nearest_links(first, 3), nearest_links(second, 3)), rng)
    assert found.more < 0
    assert advice.verdict(found._replace(chance=0.001), None) == "everyone"


@pytest.mark.parametrize("case", ["zeros", "same", "some zeros", "opposite"])
def test_strange_changes_give_finite_numbers(case):
    rng = np.random.default_rng(3)
    first, second, links = grouped(rng, 2, 4, 10)
    if case == "zeros":
        first, second = np.zeros_like(first), np.zeros_like(second)
    elif case == "same":
        first[:], second[:] = first[0], first[0]
    elif case == "some zeros":
        first[0] = second[3] = 0
    else:
        second = -first
    found = judged(first, second, (links, links), rng)
    assert all(np.isfinite(value).all() for value in found)
    assert 0 < found.chance <= 1
    assert np.isfinite(by_labels(np.eye(8), first))


def test_halves_have_the_same_labels():
    rng = np.random.default_rng(4)
    labels = rng.permutation(np.repeat([0, 1, 2], [4, 6, 2]))
    one, other = halves(labels, rng)
    assert sorted([*one, *other]) == list(range(12))
    assert np.bincount(labels[one]).tolist() == np.bincount(labels[other]).tolist() == [2, 3, 1]
    assert [len(part) for part in halves(np.array([5]), rng)] == [1, 0]
    assert [len(part) for part in halves(np.array([], int), rng)] == [0, 0]


# --- the advice -------------------------------------------------------------------------------------------------------


@pytest.fixture
def rooms(tmp_path, monkeypatch):
    """Rooms whose pictures are turned, as an experiment file."""
    monkeypatch.chdir(tmp_path)
    Path("turned_by_room.py").write_text(TURNED)
    path = tmp_path / "rooms.toml"
    path.write_text(from_table(ROOMS).toml())
    return path


def test_turned_rooms_and_their_shuffled_graph(rooms):
    found = fedfilt.advise(rooms, trust_code=True)
    assert found.why == {"given": "helps", "found": "helps"}
    strong = max(found.given.more, found.found.more) >= advice.STRONG
    wanted = [advice.THIRD, advice.RECIPE, "mu=10"] if strong else [advice.RECIPE, "mu=1"]
    assert found.rules[: len(wanted)] == wanted
    assert any("use two_level:mu=10 on the" in sentence for sentence in found.sentences()) == strong
    without = replace(found, refused={advice.THIRD: "no"})
    assert without.rules[0] == advice.RECIPE
    assert (f"{advice.THIRD} cannot be used here: no." in without.sentences()) == strong
    neither = replace(found, refused={advice.THIRD: "no", advice.RECIPE: "no"})
    assert neither.rules[0] == ("mu=10" if strong else "mu=1")
    assert any("cannot be used here: no." in sentence for sentence in neither.sentences())
    assert (found.gains() > 0).sum() > 12
    for words in ("The given graph helps", "The found graph helps", "mu=1", "of 16 devices gain"):
        assert any(words in sentence for sentence in found.sentences()), words
    assert found.command.startswith(f"fedfilt compare {rooms}")
    assert len(repr(found).splitlines()) <= 5
    wrong = fedfilt.advise(rooms, trust_code=True, **{"graph.shuffle": True})
    assert wrong.why == {"given": "chance", "found": "helps"}
    done = call("advise", rooms, "graph.shuffle=true", "--json", "--trust-code")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["verdicts"] == wrong.why
    assert told["halves"] == pytest.approx(wrong.measured.halves, abs=1e-5)


def test_devices_with_few_labels_need_no_graph():
    table = {**ROOMS, "partition": {"name": "labels", "per_device": 2}}
    found, shared = (fedfilt.advise(table, share_labels=share) for share in (False, True))
    assert found.graph == shared.graph == "none"
    assert found.why["found"] == shared.why["found"] == "labels"
    assert found.labels > 0.5
    assert shared.labels > 0.5
    assert "mostly alike by their labels" in " ".join(found.sentences())
    assert "the label counts that devices report" in " ".join(shared.sentences())
    assert not found.gains().any()


@pytest.mark.parametrize(
    ("graph", "why"),
    [
        ({"rooms": 8, "devices": 8}, "links"),
        ({"rooms": 8, "devices": 8, "between": "everyone"}, "links"),
        ({"rooms": 1, "devices": 2}, "devices"),
        ({"rooms": 2, "devices": 4}, "devices"),
        ({"rooms": 1, "devices": 1}, "devices"),
    ],
)
def test_what_cannot_be_judged_is_said(graph, why):
    found = fedfilt.advise({**ROOMS, "partition": "uniform", "graph": {"name": "homes", **graph}, "rounds": 1})
    assert found.why["given"] == why
    assert "The given graph cannot be judged" in found.sentences()[0]
    json.dumps(found.table(), allow_nan=False)


@pytest.mark.parametrize(
    "graph",
    [
        {"name": "paper"},
        {"name": "paper", "shuffle": True, "control": "empty", "laplacian": "symmetric"},
        {"name": "rooms", "rooms": 2, "devices": 8},
        {"name": "homes", "rooms": 2, "devices": 8, "control": "shuffled"},
        {"name": "found", "k": 1, "every": 5, "graph": {"name": "rooms", "rooms": 2, "devices": 8}},
    ],
)
def test_the_words_that_find_a_graph_are_understood_and_undo_controls(tmp_path, graph):
    config = from_table({**ROOMS, "partition": "uniform", "graph": graph})
    found = changed(config, advice.found_by(config)).graph
    assert found.learned
    assert (found.shuffle, found.control) == (False, "")
    assert found.laplacian == graph.get("laplacian", "combinatorial")
    assert found.graph(0).count == config.graph.graph(0).count


@pytest.mark.parametrize("homes", [False, True])
def test_the_graph_that_was_judged_is_the_one_of_the_command(rooms, homes):
    """Before round 1, a run links devices as the advice did: by one epoch, by the same rule; here on all samples."""
    graph = {"name": "homes", "rooms": 4, "devices": 16, "between": "updates", "reweigh": True}
    table = {**ROOMS, "graph": graph} if homes else ROOMS
    found = fedfilt.advise(table, trust_code=True)
    assert found.again == 0
    assert found.otherwise is not None
    run = Run(changed(from_table(table), found.found_by))
    run.learn_graph()
    wanted = nearest_links(run.first_updates(), advice.NEIGHBOURS)
    assert np.array_equal(run.graph.adjacency.toarray() > 0, wanted)
    halves = [nearest_links(one, advice.NEIGHBOURS) for one in (run.first_updates(), found_early(table))]
    assert halves[0][halves[1]].mean() > 0.5
    assert found.found.links == np.triu(halves[1]).sum()


def found_early(table):
    """What devices learn in one epoch on the first half of their samples, worked out anew."""
    config = advice.probed(from_table(table))
    run = Run(config, graph=config.graph.graph(config.seed))
    return advice.probe(run).first_early


def test_a_graph_that_forms_later_is_found_again_as_it_was_judged(rooms, monkeypatch):
    monkeypatch.setattr(advice, "AGAIN", 0.0)
    table = {**ROOMS, "rounds": 24, "graph": {"name": "rooms", "rooms": 4, "devices": 16, "shuffle": True}}
    found = fedfilt.advise(table, trust_code=True)
    assert found.again == 12
    assert found.otherwise < found.found.more
    assert found.graph == "found"
    said = " ".join(found.sentences())
    assert "it is to be found again every 12 rounds" in said
    assert "graph.every=12" in found.command
    assert found.table()["again"] == 12
    config = with_rule(changed(from_table(table), found.found_by), "two_level:mu=10")
    run, inside = Run(replace(config, rounds=12)), []
    run.learn_graph()
    same = run.graph.rooms[:, None] == run.graph.rooms
    inside.append(same[run.graph.adjacency.toarray() > 0].mean())
    with run.experiment() as experiment:
        for _, record in play(run.start(), experiment):
            inside += [same[record.graph.adjacency.toarray() > 0].mean()] if record.graph is not None else []
    assert len(inside) == 2
    assert inside[1] > inside[0]
    alone = fedfilt.advise({**table, "events": [{"round": 2, "offline": [1]}]}, trust_code=True)
    assert alone.again == 0  # a run with events cannot find its graph again


def links(more, why):
    zeros = np.zeros(4)
    return Links(4, 0.5, 0.0, 0.001, zeros, zeros + more, zeros, 1.0, 1.0), why


@pytest.mark.parametrize(
    ("once", "again", "wanted"),
    [
        (links(0.05, "helps"), links(0.06, "helps"), 0),
        (links(0.01, "helps"), links(0.06, "helps"), 20),
        (links(-0.01, "everyone"), links(0.001, "helps"), 20),
        (links(-0.1, "everyone"), links(-0.01, "everyone"), 0),
        (links(0.01, "helps"), links(0.2, "labels"), 0),
        ((None, "links"), links(0.01, "helps"), 20),
        (links(0.01, "helps"), (None, "links"), 0),
    ],
)
def test_a_graph_is_found_again_only_where_that_is_clearly_better(once, again, wanted):
    assert advice._again({0: once, 20: again}) == wanted
    assert advice._again({0: once}) == 0


@pytest.mark.parametrize(
    ("changes", "known"),
    [
        ({"graph": {"name": "rooms", "rooms": 1, "devices": 4}}, False),
        ({"samples": {"train": 1, "local_test": 5, "global_test": 20}}, False),
        ({"graph": {"name": "empty", "devices": 16}, "partition": {"name": "labels", "per_device": 2}}, True),
    ],
)
def test_where_no_graph_was_judged_nothing_is_said_about_its_worth(changes, known):
    found = fedfilt.advise({**ROOMS, "partition": "uniform", **changes})
    said = " ".join(found.sentences())
    assert found.graph == "none"
    assert (f"is not known. Use {advice.RECIPE}" in said) == (not known)
    assert ("the found graph is not worth its cost here" in said) == known
    assert "a graph is not worth its cost" not in said
    assert "0% would recur" not in said
    assert ("no device changed on both halves" in said) == ("samples" in changes)


def test_a_graph_that_a_run_must_not_find_is_not_proposed():
    for privacy in ({"blind": True}, {"noise": 1.0, "clip": 1.0}):
        found = fedfilt.advise({**ROOMS, "partition": "uniform", "privacy": privacy, "rounds": 2})
        assert found.why["found"] == "refused"
        assert found.graph != "found"
        said = " ".join(found.sentences())
        assert "The found graph cannot be judged: a run with this [privacy]" in said
        assert "cannot be used here" not in said
        assert found.rules[:2] == [advice.RECIPE, "finetune"]
        for rule in found.rules:
            Run(with_rule(from_table({**ROOMS, "partition": "uniform", "privacy": privacy, "rounds": 2}), rule))


def test_any_key_of_an_experiment_may_be_overridden(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = config_file(tmp_path, rounds=2)
    done = call("advise", path, "rounds=3", "graph.shuffle=true", "--rounds", 1, "--data-dir", tmp_path / "a b")
    assert done.returncode == 0, done.stderr
    words = shlex.split(done.stdout.rpartition("Check it with: ")[2])
    assert words[:5] == ["fedfilt", "compare", str(path), "rounds=3", "graph.shuffle=true"]
    assert words[5:7] == ["--data-dir", str(tmp_path / "a b")]
    done = call("advise", path, "share_labels=true")
    assert done.returncode == 1
    assert done.stderr.startswith("error: unknown key in the experiment 'share_labels'")
    found = fedfilt.advise(path, rounds=1, graph={"name": "rooms", "shuffle": True, "rooms": 2, "devices": 8})
    given = shlex.split(found.experiment)[1:]
    assert (
        changed(load(path), given).graph
        == load(path, {"graph": {"name": "rooms", "rooms": 2, "devices": 8}, **{"graph.shuffle": True}}).graph
    )


def test_advice_on_another_experiment_is_not_kept_with_a_run(tmp_path):
    finish(tmp_path / "run", rounds=2)
    done = call("advise", tmp_path / "run", "graph.shuffle=true", "--rounds", 1)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "run" / FILE).exists()
    assert call("advise", tmp_path / "run", "--rounds", 1).returncode == 0
    assert (tmp_path / "run" / FILE).exists()


def test_three_samples_are_enough_to_ask():
    sizes = {"train": 3, "local_test": 2, "global_test": 10}
    found = fedfilt.advise({**ROOMS, "partition": "uniform", "samples": sizes, "rounds": 1})
    json.dumps(found.table(), allow_nan=False)


def test_advice_on_a_run_is_kept_in_its_folder(tmp_path, monkeypatch):
    finish(tmp_path / "run", rounds=2)
    assert kept(tmp_path / "run") is None
    assert "fedfilt advise" in str(page.advice(Records(tmp_path / "run")))
    found = fedfilt.advise(tmp_path / "run")
    written = (tmp_path / "run" / FILE).read_bytes()
    monkeypatch.setattr(advice, "probe", None)  # what was measured is used again
    again = fedfilt.advise(Records(tmp_path / "run"))
    assert again.table() == found.table()
    assert (tmp_path / "run" / FILE).read_bytes() == written
    shown = str(page.advice(Records(tmp_path / "run")))
    assert found.sentences()[0] in shown
    assert "agreement of halves" in shown
    [sent] = (tmp_path / "run").glob("probe-*.safetensors")
    with pytest.raises(ValueError, match="must hold the changes of 7 devices"):
        Probe.of(sent, 7)
    sent.write_bytes(b"nothing")
    with pytest.raises(ValueError, match="must hold what devices sent"):
        fedfilt.advise(tmp_path / "run")
    for text in ("", "[]", '{"sentences": 1}', "{}"):
        (tmp_path / "run" / FILE).write_text(text)
        assert kept(tmp_path / "run") is None


def test_a_probe_depends_on_the_seed_alone(tmp_path):
    path = config_file(tmp_path, rounds=2)
    one, other = (fedfilt.advise(path, engine={"workers": workers}) for workers in (1, 2))
    for key in ("halves", "labels", "given", "found", "devices", "verdicts"):
        assert one.table()[key] == other.table()[key]
    third = fedfilt.advise(path, seed=5)
    assert third.table()["halves"] != one.table()["halves"]


def test_links_that_were_found_join_the_nearest():
    first = np.array([[1.0, 0, 0], [1, 0.1, 0], [0, 1, 0], [0, 1, 0.1], [0, 0, 1], [0.1, 0, 1]])
    assert np.array_equal(
        nearest_links(first, 1), (Graph.from_edges(6, [(0, 1), (2, 3), (4, 5)]).adjacency != 0).toarray()
    )
