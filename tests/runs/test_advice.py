"""Advice: whether links say anything about what devices learn, by statistics that can say no."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedfilt
from fedfilt import Graph
from fedfilt.mixing import likeness
from fedfilt.mixing.likeness import by_labels, judged, nearest_links
from fedfilt.runs import advice
from fedfilt.runs.advice import FILE, Probe, halves, kept
from fedfilt.runs.config import changed, from_table
from fedfilt.runs.records import Records
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
    wanted = ["two_level:mu=10", "two_level", "mu=10"] if strong else ["two_level", "mu=1"]
    assert found.rules[: len(wanted)] == wanted
    assert any("use two_level:mu=10 on the" in sentence for sentence in found.sentences()) == strong
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
        ({"rooms": 1, "devices": 2}, "links"),
        ({"rooms": 2, "devices": 4}, "devices"),
        ({"rooms": 1, "devices": 1}, "links"),
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
