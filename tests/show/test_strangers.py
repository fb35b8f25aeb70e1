"""Folders from strangers: nothing in them keeps the reader waiting, fills the memory, or shows what lies elsewhere."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import plotly.io
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedfilt import Graph
from fedfilt._files import locked, write_atomically
from fedfilt._reading import DEEPEST, json_of, read, toml_of
from fedfilt.cli._console import shown as shown_in_terminal
from fedfilt.paper._cases import Case
from fedfilt.paper._compute import compute
from fedfilt.paper._results import Results
from fedfilt.runs.config import from_table, load
from fedfilt.runs.records import LOG, Records, find_runs
from fedfilt.show import figures
from fedfilt.show.dashboard import steering
from fedfilt.show.dashboard.folders import Watch
from fedfilt.show.pictures import write_images, write_pictures
from fedfilt.show.report.page import page as report_page
from helpers import SLOW, SMALL, call, finish

KEY = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0\n-----END PRIVATE KEY-----\n"
FILES = (
    "config.toml",
    "metrics.jsonl",
    "graph.json",
    "partition.json",
    "environment.json",
    "result.json",
    "lock",
    "stop",
)
MARKUP = "<a href='https://evil.example'>hall</a><script>alert(1)</script>[bold]"


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    folder = tmp_path_factory.mktemp("good") / "run"
    finish(folder, rounds=2, evaluation={"every": 1})
    return folder


def replaced(folder, name):
    (folder / name).unlink(missing_ok=True)
    return folder / name


def piped(folder, name):
    os.mkfifo(replaced(folder, name))


def endless(folder, name):
    os.symlink("/dev/zero", replaced(folder, name))


def huge(folder, name):
    replaced(folder, name).touch()
    os.truncate(folder / name, 10**11)


def linked(folder, name):
    os.symlink(folder.parent / "key", replaced(folder, name))


def deep(folder, name):
    inside = 3000 * "[" + 3000 * "]"
    replaced(folder, name).write_text(
        f"a = {inside}\n" if name.endswith("toml") else f'{{"round": 1, "a": {inside}}}\n'
    )


def dotted(folder, name):
    replaced(folder, name).write_text("a." * 100_000 + "a = 1\n")


def empty_lists(folder, name):
    replaced(folder, name).write_text("[" + 8_000_000 * "[]," + "0]")


def a_folder(folder, name):
    replaced(folder, name).mkdir()


def hostile(good, place):
    """Folders with every kind of hostile file, by name."""
    (place / "key").write_text(KEY)
    kinds = [(make, name) for make in (piped, endless, linked, a_folder) for name in FILES]
    kinds += [(make, name) for make in (huge, deep) for name in FILES if name not in ("lock", "stop")]
    kinds += [(dotted, "config.toml"), (empty_lists, "graph.json"), (empty_lists, "metrics.jsonl")]
    for make, name in kinds:
        folder = Path(shutil.copytree(good, place / f"{make.__name__}-{name}"))
        make(folder, name)
        yield folder
    big = Path(shutil.copytree(good, place / "complete"))
    (big / "graph.json").unlink()
    text = (big / "config.toml").read_text()
    changed = text.replace('name = "paper"\ndevices = 20\n', 'name = "complete"\nrooms = 200000\n')
    assert changed != text
    (big / "config.toml").write_text(changed)
    yield big
    many = Path(shutil.copytree(good, place / "many"))
    (many / "graph.json").write_text('{"count": 1000000, "edges": []}')
    yield many
    late = Path(shutil.copytree(good, place / "late"))
    with (late / LOG).open("a") as log:
        log.write(json.dumps({"round": 3, "time": {}, "late": [0] * 300_000}) + "\n")
        log.write(json.dumps({"round": 4, "time": {}, "late": [0] * 200_000}) + "\n")
    yield late
    eventful = Path(shutil.copytree(good, place / "eventful"))
    text = (eventful / "config.toml").read_text().replace("events = []\n", "")
    (eventful / "config.toml").write_text(text + "[[events]]\nround = 1\noffline = [3]\n" * 20_000)
    yield eventful


LOOK = """
import resource, sys
from pathlib import Path
from fedfilt.runs.records import find_runs
from fedfilt.show.dashboard.app import make_app
from fedfilt.show.dashboard.folders import Watch
from fedfilt.show.report.page import page

resource.setrlimit(resource.RLIMIT_CPU, (170, 170))
place = Path(sys.argv[1])
for folder in sorted(path for path in place.iterdir() if path.is_dir()):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    runs = find_runs([folder])
    texts = [page(runs)] if any(run.rounds for run in runs) else []
    client = make_app(Watch([folder])).server.test_client()
    for address in ("/", "/_dash-layout", "/_pulse"):
        answer = client.get(address)
        assert answer.status_code == 200, (folder, address)
        texts.append(answer.get_data(as_text=True))
    notes = "; ".join(note for run in runs for note in run.notes)
    assert not any("MIIEvQIBADANBgkqhkiG9w0" in text for text in [*texts, notes]), folder
    most = Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]  # ru_maxrss is also our parent's
    assert int(most) < 10**6, (folder, most, "kB of memory")
    print(folder.name, round(resource.getrusage(resource.RUSAGE_SELF).ru_utime - before, 2), notes, sep="|", flush=True)
"""


@pytest.mark.slow(35)
def test_reports_and_dashboard_survive_every_hostile_folder(good, tmp_path):
    """In one process: little memory, a bounded time, and nothing of the key that files are links to."""
    names = {folder.name for folder in hostile(good, tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", LOOK, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as looking:
        said, errors = looking.communicate(timeout=SLOW)
    assert looking.returncode == 0, errors
    found = {line.split("|")[0]: line.split("|")[1:] for line in said.splitlines()}
    assert set(found) == names
    slowest = max(found, key=lambda name: float(found[name][0]))
    assert float(found[slowest][0]) < 20, f"seconds of CPU for {slowest}"
    for name, words in {
        "piped-config.toml": "config.toml cannot be read (it is not a regular file)",
        "endless-config.toml": "config.toml cannot be read (it is a link)",
        "linked-config.toml": "config.toml cannot be read (it is a link)",
        "huge-config.toml": "config.toml cannot be read (it has more than",
        "deep-config.toml": "config.toml cannot be read (tables and lists are nested more than 40 deep)",
        "dotted-config.toml": "config.toml cannot be read (line 1 has more than 100 dots)",
        "piped-metrics.jsonl": "metrics.jsonl cannot be read (it is not a regular file)",
        "linked-metrics.jsonl": "metrics.jsonl cannot be read (it is a link)",
        "huge-metrics.jsonl": "metrics.jsonl has a line of more than",
        "deep-metrics.jsonl": "metrics.jsonl is damaged in line 1",
        "linked-environment.json": "environment.json cannot be read (it is a link)",
        "complete": "the graph of this run is not in its folder",
        "many": "the graph of this run is not in its folder",
        "late": "metrics.jsonl is damaged in line 3",
    }.items():
        assert words in found[name][1], name


def test_the_command_says_what_it_could_not_read(good, tmp_path):
    folder = Path(shutil.copytree(good, tmp_path / "run"))
    (tmp_path / "key").write_text(KEY)
    linked(folder, "config.toml")
    assert call("report", folder).returncode == 0
    text = (folder / "report.html").read_text()
    assert "config.toml cannot be read" in text
    assert "MIIEvQIBADANBgkqhkiG9w0" not in text
    piped(folder, LOG)
    done = call("report", folder)
    assert done.returncode == 1
    assert "metrics.jsonl cannot be read (it is not a regular file)" in done.stderr


def test_links_to_other_folders_are_not_followed(good, tmp_path):
    private = Path(shutil.copytree(good, tmp_path / "private" / "run"))
    stranger = tmp_path / "stranger"
    shutil.copytree(good, stranger / "a" / "seed-0")
    os.symlink(private.parent, stranger / "b")
    os.symlink(private, stranger / "a" / "seed-1")
    assert [run.folder for run in find_runs([stranger])] == [stranger / "a" / "seed-0"]
    assert [run.folder for run in Watch([stranger]).runs] == [stranger / "a" / "seed-0"]
    os.symlink(stranger, tmp_path / "latest")  # a link that the user names is the user's
    assert [run.folder.name for run in find_runs([tmp_path / "latest"])] == ["seed-0"]


def test_a_report_is_not_written_through_a_link_of_the_folder(good, tmp_path):
    folder = Path(shutil.copytree(good, tmp_path / "run"))
    (tmp_path / "mine.html").write_text("mine")
    os.symlink(tmp_path / "mine.html", folder / "report.html")
    done = call("report", folder)
    assert done.returncode == 1
    assert "report.html is a link" in done.stderr
    (folder / "report.html").unlink()
    os.symlink(tmp_path / "mine.html", folder / ".report.html.tmp")
    assert call("report", folder).returncode == 0
    assert (tmp_path / "mine.html").read_text() == "mine"
    assert (folder / "report.html").stat().st_size > 10**6


def test_stopping_and_resuming_write_through_no_link(good, tmp_path, monkeypatch):
    (tmp_path / "mine").write_text("mine")
    folder = Path(shutil.copytree(good, tmp_path / "run"))
    (folder / "result.json").unlink()
    for name in ("stop", "run.log", "lock"):
        replaced(folder, name)
        os.symlink(tmp_path / "mine", folder / name)
    run = Records(folder)
    run.status = "running"
    monkeypatch.setattr(Records, "refresh", lambda self: False)
    assert "cannot be stopped from here" in steering.stop(run)
    run.status = "stopped"
    assert "is a link to another place" in steering.resume(run)
    with pytest.raises(OSError, match="it is a link"), locked(folder):
        pass
    assert (tmp_path / "mine").read_text() == "mine"


# Ways out of a run folder: what it is a link to, below a folder `mine`; "" is a pipe
OUT = {
    "figures/global.html": "precious",
    "figures/local.html": "",
    "figures/plotly.min.js": "new",
    "figures": "folder",
    "models": "folder",
    "models/device-003.safetensors": "precious",
    "checkpoint": "folder",
    "checkpoint/state.safetensors": "",
    "checkpoint/.state.safetensors.tmp": "precious",
    "config.toml": "config.toml",
    "metrics.jsonl": "precious",
    "devices.csv": "",
    "anything/at/all": "precious",
}


def led_out(folder, name, mine):
    """Replace a part of a run folder by a link to a place below `mine`, or by a pipe."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        shutil.rmtree(path)
    replaced(folder, name)
    if OUT[name]:
        os.symlink(mine / OUT[name], path)
    else:
        os.mkfifo(path)


@pytest.fixture
def mine(good, tmp_path):
    """A folder of one's own, to which the links of strangers lead."""
    (tmp_path / "mine" / "folder").mkdir(parents=True)
    (tmp_path / "mine" / "precious").write_text("precious")
    shutil.copyfile(good / "config.toml", tmp_path / "mine" / "config.toml")
    return tmp_path / "mine"


def below(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", OUT)
def test_a_run_folder_that_leads_out_is_not_resumed(good, mine, tmp_path, monkeypatch, name):
    folder = Path(shutil.copytree(good, tmp_path / "run"))
    (folder / "result.json").unlink()
    led_out(folder, name, mine)
    before = below(mine)
    words = f"{folder / name} is {'a link to another place' if OUT[name] else 'neither a file nor a folder'}"
    run = Records(folder)
    run.status = "stopped"
    monkeypatch.setattr(Records, "refresh", lambda self: False)
    assert words in steering.resume(run)
    for more in (["run", folder], ["run", folder / "config.toml", "--out", folder, "--resume"], ["advise", folder]):
        done = call(*more)
        assert done.returncode == 1, more
        assert words in done.stderr, more
    assert below(mine) == before
    assert os.listdir(mine / "folder") == []


@pytest.mark.parametrize("name", ["figures", "fedavg", "fedavg/seed-0"])
def test_a_comparison_is_not_written_through_links(mine, tmp_path, name):
    config = tmp_path / "small.toml"
    config.write_text(from_table({**SMALL, "rounds": 1}).toml())
    folder = tmp_path / "stranger"
    (folder / name).parent.mkdir(parents=True)
    os.symlink(mine / "folder", folder / name)
    for more in ([], ["--resume"]):
        done = call("compare", config, "--rules", "fedavg", "--out", folder, *more)
        assert done.returncode == 1
        assert f"{folder / name} is a link to another place" in done.stderr
    assert os.listdir(mine / "folder") == []


def test_pictures_replace_links_and_open_no_pipe(good, mine, tmp_path, monkeypatch):
    folder = Path(shutil.copytree(good, tmp_path / "run"))
    os.makedirs(folder / "figures", exist_ok=True)
    for name in ("local.html", "global.html", "plotly.min.js"):
        replaced(folder / "figures", name)
        os.symlink(mine / ("precious" if name == "global.html" else "new"), folder / "figures" / name)
    before = below(mine)
    write_pictures(folder)
    assert below(mine) == before
    assert "plotly.min.js" in (folder / "figures" / "global.html").read_text()
    (folder / "figures" / "plotly.min.js").write_text("alert(1)")  # what our pages load is ours
    write_pictures(folder)
    assert (folder / "figures" / "plotly.min.js").stat().st_size > 10**6
    piped(folder, "figures/local.html")
    with pytest.raises(OSError, match="not a regular file"):
        write_pictures(folder)
    monkeypatch.setattr(plotly.io, "write_images", lambda drawn, paths, **_: [path.write_text("") for path in paths])
    write_images([None], [replaced(folder, "devices.csv").with_suffix(".svg")])
    piped(folder, "devices.svg")
    with pytest.raises(OSError, match="not a regular file"):
        write_images([None], [folder / "devices.svg"])


def test_a_plan_is_not_written_through_a_link_of_the_folder(good, mine, tmp_path, monkeypatch):
    folder = Path(shutil.copytree(good, tmp_path / "run"))
    monkeypatch.chdir(folder)
    os.symlink(mine / "precious", "plan.html")
    assert call("plan", "config.toml").returncode == 0
    assert (mine / "precious").read_text() == "precious"
    assert (folder / "plan.html").stat().st_size > 10**6
    piped(folder, "plan.html")
    done = call("plan", "config.toml")
    assert done.returncode == 1
    assert "not a regular file" in done.stderr


def test_names_with_markup_are_shown_as_they_are(good, tmp_path):
    folder = Path(shutil.copytree(good, tmp_path / "run"))
    graph = json.loads((folder / "graph.json").read_text())
    (folder / "graph.json").write_text(json.dumps({**graph, "rooms": [MARKUP] * 20}))
    text = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(text.replace('name = "gfedfilt"', f'name = "{MARKUP}"'))
    lines = [json.loads(line) for line in (folder / LOG).read_text().splitlines()]
    lines[-1]["time"]["devices"]["outcome"] = [MARKUP] * 20
    lines[-1]["events"] = [MARKUP, {"what": MARKUP, "why": MARKUP}]
    (folder / LOG).write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = find_runs([folder])[0]
    shown = report_page([run])
    outside_scripts = shown.split("<script type='application/json'")[0]
    assert "&lt;script&gt;alert(1)" in outside_scripts
    assert "<script>alert(1)" not in shown
    assert "<a href='https://evil" not in shown
    drawn = [
        figures.building(run, "outcome"),
        figures.accuracy([run]),
        figures.device_curve([run], 0),
        figures.pareto([run]),
        figures.mixing(run),
        figures.response(run),
        figures.learns_from(run, 0),
    ]
    for figure in drawn:  # Plotly would make a link of it
        assert "<a href" not in figure.to_json(), figure.layout.title.text
    assert "&lt;a href" in drawn[0].to_json().replace("\\u003c", "<")
    assert shown_in_terminal(f"{MARKUP}\x1b[2J") == MARKUP.replace("[bold]", "\\[bold]") + "\\x1b[2J"


def test_an_experiment_that_is_no_file_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe.toml")
    os.symlink("/dev/zero", tmp_path / "zero.toml")
    (tmp_path / "deep.toml").write_text("a = " + 3000 * "[" + 3000 * "]")
    (tmp_path / "huge.toml").touch()
    os.truncate(tmp_path / "huge.toml", 10**11)
    for name, words in {
        "pipe": "not a regular file",
        "zero": "not a regular file",
        "deep": f"nested more than {DEEPEST} deep",
        "huge": "it has more than",
    }.items():
        with pytest.raises(ValueError, match=words):
            load(tmp_path / f"{name}.toml")
        assert call("plan", tmp_path / f"{name}.toml").returncode == 1
    for part in ({"graph": {"name": "edges", "devices": 3, "file": ""}}, {"graph": {"name": "rooms", "building": ""}}):
        for name in ("pipe.toml", "zero.toml"):
            table = {
                key: {**value, **{k: str(tmp_path / name) for k, v in value.items() if v == ""}}
                for key, value in part.items()
            }
            with pytest.raises((ValueError, OSError), match="not a regular file"):
                from_table(table).graph.graph(0)


def test_a_store_of_results_is_read_with_the_same_care(tmp_path):
    results = Results(tmp_path)
    case = Case("mnist_2", "fedavg")
    os.mkfifo(results.path(case))
    with pytest.raises(OSError, match="not a regular file"):
        results.record(case)
    results.path(case).unlink()
    results.path(case).write_text("[" * 3000)
    with pytest.raises(ValueError, match="is damaged"):
        results.record(case)


def test_a_store_of_results_is_not_tidied_through_a_link(mine, tmp_path):
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "folder.json").write_text("{}")  # a record: what is under way by this name can go
    os.symlink(mine, tmp_path / "store" / ".running")
    with pytest.raises(ValueError, match=r"\.running is a link to another place"):
        list(compute([], Results(tmp_path / "store"), 1))
    assert (mine / "folder").is_dir()


@pytest.mark.parametrize(
    ("graph", "words"),
    [
        ({"name": "complete", "rooms": 200_000}, "at most 1000000 devices, got 1400000"),
        ({"name": "complete", "rooms": 200_000, "devices": 10**6}, "graph.rooms must be at most 4000"),
        ({"name": "complete", "rooms": 2000}, "at most 5000000 links"),
        ({"name": "nearest", "rooms": 2000, "k": 10**9}, "at most 5000000 links"),
        ({"name": "distance", "rooms": 2000, "reach": 1e9}, "at most 5000000 links"),
        ({"name": "homes", "rooms": 1, "devices": 100_000}, "at most 5000000 links, got 4999950000"),
        ({"name": "homes", "rooms": 10_000, "between": "everyone"}, "at most 5000000 links"),
        ({"name": "empty", "rooms": 10**12}, "at most 1000000 devices"),
    ],
)
def test_a_graph_that_no_machine_holds_is_refused_before_it_is_made(graph, words):
    with pytest.raises(ValueError, match=words):
        from_table({"graph": graph}).graph.graph(0)


def test_large_graphs_that_are_sparse_are_made():
    assert from_table({"graph": {"name": "nearest", "rooms": 4000}}).graph.graph(0).count > 20_000
    ring = [(i, (i + 1) % 100_000) for i in range(100_000)]
    assert Graph.from_edges(100_000, ring).count == 100_000


# --- the one reader ---------------------------------------------------------------------------------------------------


def test_a_temporary_file_is_private_where_it_must_be(tmp_path):
    write_atomically(tmp_path / "a", b"a", mode=0o600)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600
    with pytest.raises(OSError, match="more than 0 bytes"):
        read(tmp_path / "a", 0)
    assert read(tmp_path / "a", 1) == b"a"


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(VALUES)
def test_json_that_people_write_is_read_as_it_is(value):
    assert json_of(json.dumps(value).encode()) == value


@given(st.integers(1, 3000), st.sampled_from(["[", '{"a":']))
def test_depth_has_an_end(depth, opening):
    closing = {"[": "]", '{"a":': "}"}[opening]
    text = depth * opening + "0" + depth * closing
    for parse, content in ((json_of, text), (toml_of, "x = " + text.replace(":", "=").replace('"', ""))):
        if depth < DEEPEST - 1:
            parse(content.encode())
        elif depth > DEEPEST:
            with pytest.raises(ValueError, match="deep"):
                parse(content.encode())
