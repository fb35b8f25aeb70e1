"""No code by surprise: modules come from where they are installed, and code that a file names needs the user's word."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from textwrap import dedent

import pytest
import typer

import fedfilt
from fedfilt import _parts, _trust
from fedfilt._start import PYTHON
from fedfilt._trust import NAMED, Untrusted, code_in, trusting
from fedfilt.cli import app
from fedfilt.data.own import BadData, owner
from fedfilt.flower.deploy.supervise import experiment_table
from fedfilt.flower.device import Device
from fedfilt.runs import config as configs
from fedfilt.runs.config import from_table, load, load_begun
from fedfilt.runs.records import Records
from fedfilt.show.report.page import page as report_page
from helpers import SLOW, SMALL, call, config_file, finish

# --- modules in the current folder ------------------------------------------------------------------------------------

NAMES = [
    "plotly",
    "dash",
    "rich",
    "numpy",
    "torch",
    "typer",
    "click",
    "scipy",
    "safetensors",
    "flwr",
    "paho",
    "cryptography",
    "tomli_w",
    "sklearn",
    "flask",
    "werkzeug",
    "jinja2",
    "kaleido",
    "pyarrow",
    "cbor2",
    "pip",
    "_distutils_hack",
    "setuptools",
]
STANDARD = [
    "json",
    "csv",
    "random",
    "tempfile",
    "socket",
    "logging",
    "subprocess",
    "multiprocessing",
    "pickle",
    "runpy",
    "webbrowser",
]

# Every command, with words by which it does its work, or gets as far as it can without a network or an end
COMMANDS = {
    "run": ["run", "small.toml", "--out", "run"],
    "compare": ["compare", "small.toml", "--rules", "fedavg,local", "--out", "compared"],
    "plan": ["plan", "small.toml"],
    "audit": ["audit", "small.toml"],
    "tune": ["tune", "small.toml", "--rules", "fedavg", "--budget", "2", "--seeds", "1", "--out", "tuned"],
    "advise": ["advise", "small.toml"],
    "profile": ["profile", "--model", "logistic", "--shape", "2,2", "--classes", "2"],
    "info": ["info"],
    "export": ["export", "run", "--csv"],
    "demo": ["demo", "--out", "small.toml"],
    "paper": ["paper", "list"],
    "report": ["report", "run"],
    "dashboard": ["dashboard", "run", "--host", "0.0.0.0"],
    "data list": ["data", "list"],
    "data get": ["data", "get", "digits"],
    "data where": ["data", "where"],
    "data split": ["data", "split", "small.toml", "--out", "homes"],
    "device run": ["device", "run", "nowhere"],
    "device back": ["device", "back", "nowhere"],
    "device forget": ["device", "forget", "nowhere"],
    "deploy write": ["deploy", "write", "small.toml", "--out", "building"],
    "deploy server": ["deploy", "server", "nowhere"],
    "deploy device": ["deploy", "device", "nowhere", "--supernode"],
    "deploy all": ["deploy", "all", "nowhere"],
    "deploy add": ["deploy", "add", "lamp"],
    "deploy remove": ["deploy", "remove", "device-000"],
    "deploy replace": ["deploy", "replace", "device-000"],
    "deploy renew": ["deploy", "renew"],
    "deploy status": ["deploy", "status"],
    "home run": ["home", "run", "nowhere"],
    "home write": ["home", "write", "building"],
    "home update": ["home", "update", "building"],
    "home label": ["home", "label", "hall", "cook", "--folder", "building/server"],
    "home demo": ["home", "demo", "--out", "run"],
}


def commands(group, words=()):
    """All commands that there are."""
    for name, one in group.commands.items():
        if hasattr(one, "commands"):
            yield from commands(one, (*words, name))
        else:
            yield " ".join((*words, name))


@pytest.fixture
def strange(tmp_path):
    """A folder with modules that write their names down when they are imported, and an experiment."""
    folder = tmp_path / "strange"
    folder.mkdir()
    for name in (*NAMES, *STANDARD):
        (folder / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write({name + chr(10)!r})\n")
    few = {"graph": {"name": "rooms", "rooms": 1, "devices": 4}, "partition": {"name": "labels", "per_device": 3}}
    config_file(folder, rounds=1, evaluation={"every": 1}, **few)
    return folder


def ran(folder):
    """The modules of that folder that were imported."""
    said = folder.parent / "ran"
    return set(said.read_text().split()) if said.exists() else set()


def started(words, folder, **more):
    env = {key: value for key, value in os.environ.items() if key != "PYTHONSAFEPATH"}
    nowhere = {"https_proxy": "http://127.0.0.1:1", "http_proxy": "http://127.0.0.1:1", "FEDFILT_CACHE": str(folder)}
    env |= {**nowhere, "PIP_INDEX_URL": "http://127.0.0.1:1/", "PIP_RETRIES": "0", "BROWSER": "true", **more}
    env.pop("FEDFILT_DATA", None)
    return subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=SLOW, check=False)


@pytest.mark.slow(25)
def test_no_command_takes_a_module_from_the_current_folder(strange, tmp_path):
    """All commands, one after the other, in a process that is started as the installed command is."""
    assert set(COMMANDS) == set(commands(typer.main.get_command(app)))
    program = tmp_path / "bin" / "fedfilt"
    program.parent.mkdir()
    program.write_text(
        "import json, sys\nfrom fedfilt.__main__ import app\n"
        "for words in json.loads(sys.argv.pop()):\n"
        "    try:\n        app(words)\n    except SystemExit as end:\n"
        "        print('ended', *words, end.code, flush=True)\n"
    )
    done = started([sys.executable, str(program), json.dumps(list(COMMANDS.values()))], strange)
    ends = [line for line in done.stdout.splitlines() if line.startswith("ended")]
    assert len(ends) == len(COMMANDS), done.stdout[-3000:] + done.stderr[-3000:]
    for name in ("run", "compare", "plan", "tune", "advise", "report", "data split", "deploy write"):
        assert f"ended {' '.join(COMMANDS[name])} 0" in ends, done.stderr[-3000:]
    assert ran(strange) == set()


@pytest.mark.slow(5)
@pytest.mark.parametrize("how", [["-m", "fedfilt"], ["-m", "fedfilt.cli"]])
def test_nor_does_python_with_m(strange, how):
    for name in STANDARD:
        (strange / f"{name}.py").unlink()  # Python itself imports some before any line of ours
    done = started([sys.executable, *how, "plan", "small.toml"], strange)
    assert done.returncode == 0, done.stderr
    assert ran(strange) == set()


@pytest.mark.slow(8)
def test_nor_do_processes_that_a_command_starts(strange):
    """Workers of a torch module of one's own, and the dashboard of --live: both are Pythons of their own."""
    (strange / "nets_of_mine.py").write_text(
        "from torch import nn\nclass Net(nn.Sequential):\n    def __init__(self):\n"
        "        super().__init__(nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 10))\n"
    )
    words = ["run", "small.toml", "model=nets_of_mine:Net", "engine.workers=2", "--live"]
    done = started([*PYTHON, "-m", "fedfilt", *words], strange)
    assert done.returncode == 0, done.stderr
    assert ran(strange) == set()


# --- code that a file names -------------------------------------------------------------------------------------------

RULE = """
from dataclasses import dataclass
from pathlib import Path
Path("imported").touch()

@dataclass(frozen=True)
class Half:
    share: float = 0.5
    def __call__(self, models, updates, graph):
        return models + self.share * updates.rows
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """An experiment that names a rule beside it, and the word for it has not been given."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rule_of_mine.py").write_text(RULE)
    path = config_file(tmp_path, rounds=1)
    path.write_text(path.read_text().replace('name = "gfedfilt"\nsignal = "models"\n', 'name = "rule_of_mine:Half"\n'))
    text = path.read_text()
    path.write_text(text[: text.index("[aggregator.filter]")] + text[text.index("[evaluation]") :])
    yield path
    sys.modules.pop("rule_of_mine", None)


def imported():
    return Path("imported").exists()


def test_the_word_is_given_once_for_a_file_that_stays_as_it_is(mine):
    for words in (["run"], ["plan"], ["compare", "--rules", "local"], ["data", "split", "--out", "x"]):
        done = call(*words, mine)
        assert done.returncode == 1
        assert "small.toml names code, rule_of_mine:Half, which would run with your rights" in done.stderr
        assert "--trust-code" in done.stderr
    assert not imported()
    assert call("plan", mine, "--trust-code").returncode == 0
    assert imported()
    assert call("plan", mine).returncode == 0
    kept = Path("state/fedfilt/trusted.json")
    assert kept.stat().st_mode & 0o777 == 0o600
    assert "rule_of_mine:Half" in kept.read_text()
    mine.write_text(mine.read_text() + "\n")
    assert "it has changed since you trusted it" in call("plan", mine).stderr
    assert call("plan", mine, "--trust-code").returncode == 0
    Path("rule_of_mine.py").write_text(RULE + "\n# and more\n")  # another program under the same name
    assert "it has changed since you trusted it" in call("plan", mine).stderr


def test_the_word_is_for_this_place_and_this_user(mine, tmp_path, monkeypatch):
    assert call("plan", mine, "--trust-code").returncode == 0
    other = tmp_path / "other"
    other.mkdir()
    (other / "same.toml").write_text(mine.read_text())
    with pytest.raises(Untrusted):
        load(other / "same.toml")
    (other / "rule_of_mine.py").write_text("raise SystemExit('a stranger')")
    monkeypatch.chdir(other)
    with pytest.raises(Untrusted):  # the same file, in whose current folder the same name is another module
        load(mine)
    monkeypatch.chdir(tmp_path)
    load(mine)
    kept = tmp_path / "state" / "fedfilt" / "trusted.json"
    kept.chmod(0o666)  # others could have written it
    with pytest.raises(Untrusted):
        load(mine)
    kept.unlink()
    kept.mkdir()
    with pytest.raises(Untrusted):
        load(mine)
    assert call("plan", mine, "--trust-code").returncode == 0  # cannot be remembered, and is not needed


def test_what_is_typed_or_replaced_needs_no_word(mine):
    plain = config_file(mine.parent.joinpath("plain") if mine.parent.joinpath("plain").mkdir() is None else mine)
    for typed in ("aggregator=rule_of_mine:Half", 'aggregator={name = "rule_of_mine:Half"}'):
        assert load(plain, [typed]).table()["aggregator"] == {"name": "rule_of_mine:Half", "share": 0.5}
    assert load(mine, ["aggregator=fedavg"]).table()["aggregator"] == {"name": "fedavg"}
    assert load(mine, ["aggregator=rule_of_mine:Half"]).aggregator.share == 0.5
    with pytest.raises(Untrusted):
        load(mine, ["aggregator.share=0.25", "model=mlp"])
    assert load(mine, trust_code=True).aggregator.share == 0.5
    with pytest.raises(Untrusted):  # a program says it every time: nothing was remembered
        load(mine)


def test_the_folder_of_a_run_may_name_only_what_the_experiment_names(mine):
    assert call("run", mine, "--out", "r", "--trust-code").returncode == 0
    assert call("run", mine, "--out", "r", "--resume").returncode == 0  # the same code, by the file's own config
    own = Path("r/config.toml")
    assert call("plan", own).returncode == 1  # a file of its own
    own.write_text(own.read_text().replace("rule_of_mine:Half", "somebody_elses:Half"))
    done = call("run", mine, "--out", "r", "--resume")
    assert done.returncode == 1
    assert "names other code, somebody_elses:Half" in done.stderr
    with pytest.raises(ValueError, match="names other code"):
        load_begun(own, from_table(SMALL))


@pytest.mark.parametrize(
    "rule", ["rule_of_mine:Half", "fedprox+rule_of_mine:Half", "averaged:client=rule_of_mine:Half"]
)
def test_the_result_of_a_tuning_names_code_only_with_the_word(mine, rule):
    """It chooses the rules if nobody names them, and may be somebody else's file."""
    tried = {"settings": {"training.learning_rate": 0.1}, "validation": 0.5, "loss": 1.0, "why": ""}
    table = {"metric": "accuracy", "lower": False, "seeds": [100], "budget": 2, "experiment": {}}
    Path("tuned").mkdir()
    Path("tuned/tuned.json").write_text(json.dumps({"rules": {rule: [tried]}, **table}))
    plain = config_file(Path("tuned"), rounds=1)
    words = ["compare", plain, "--tuned", "tuned", "--out", "c"]
    done = call(*words)
    assert done.returncode == 1
    assert "tuned.json names code, rule_of_mine:Half, which would run with your rights" in done.stderr
    with pytest.raises(Untrusted):
        fedfilt.compare(plain, tuned="tuned", folder="c")
    assert not imported()
    if "client" not in rule:
        assert call(*words, "--trust-code").returncode == 0
        assert imported()
        assert fedfilt.compare(plain, tuned="tuned", folder="d", trust_code=True).runs
        assert call(*words, "--rules", "local", "--resume").returncode == 1  # typed, and not in the tuning


def test_a_report_says_what_running_it_again_takes(mine):
    assert call("run", mine, "--out", "r", "--trust-code").returncode == 0
    text = report_page([Records("r")])
    assert "fedfilt run r/config.toml --out NEW_FOLDER --trust-code" in text
    assert "This runs code from outside fedfilt, rule_of_mine:Half; do so only if you trust it." in text
    finish(Path("plain"), rounds=1)
    assert "--trust-code" not in report_page([Records("plain")])


def test_every_place_for_a_name_is_looked_at():
    assert set(NAMED) == {*configs.PARTS, "engine"}
    for part in configs.PARTS:
        path = ["aggregator", "filter"] if part == "filter" else [part]
        for value in ("a:B", {"name": "a:B"}):
            table: dict = {}
            inner = table
            for step in path[:-1]:
                inner = inner.setdefault(step, {})
            inner[path[-1]] = value
            assert code_in(table) == {"a:B"}, table
    assert code_in({"engine": {"between": ["23:00", "05:00"]}, "data": {"folders": "a:b", "labels": ["c:d"]}}) == set()


@pytest.mark.parametrize("part", [*configs.PARTS])
def test_a_name_that_is_no_text_loads_nothing(part, tmp_path, monkeypatch):
    """str(["x:Y"]) is a module called "['x", of which there can be a file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "['x.py").write_text("open('imported', 'w')")
    table = {"aggregator": {"filter": {"name": ["x:Y"]}}} if part == "filter" else {part: {"name": ["x:Y"]}}
    with pytest.raises(ValueError, match="must be a text"):
        from_table(table)
    with pytest.raises(ValueError, match="must be named module:Class"):
        _parts.find(configs.PARTS[part][0], "['x:Y']")
    assert not (tmp_path / "imported").exists()


@pytest.mark.parametrize("name", ["subprocess:Popen", "os:system", "builtins:exec", "pathlib:Path", "math:pi"])
@pytest.mark.parametrize("part", [*configs.PARTS])
def test_what_is_no_part_of_its_kind_is_never_called(part, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = {"name": name, "args": ["touch", "ran"], "command": "touch ran", "source": "open('ran', 'w')"}
    table = {"aggregator": {"filter": options}} if part == "filter" else {part: options}
    with pytest.raises(ValueError, match="cannot be one of the"):
        from_table(table)
    assert os.listdir(tmp_path) == []


def test_no_command_runs_a_program_that_a_config_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = config_file(tmp_path, rounds=1)
    path.write_text(
        path.read_text().replace('name = "mlp"\nhidden = 16', 'name = "subprocess:Popen"\nargs = ["touch", "ran"]')
    )
    assert tomllib.loads(path.read_text())["model"]["args"] == ["touch", "ran"]
    ways = [["run"], ["plan"], ["compare"], ["data", "split", "--out", "x"], ["deploy", "write", "--out", "x"]]
    for words in ways:
        for more in ([], ["--trust-code"]):
            done = call(*words, path, *more)
            assert done.returncode == 1, words
            assert "subprocess:Popen" in done.stderr
    assert "must be a torch.nn.Module" in call("profile", "--model", "subprocess:Popen").stderr
    assert not Path("ran").exists()
    assert sorted(os.listdir()) == ["small.toml"]


def test_every_part_of_the_package_is_of_its_kind():
    for folder in _parts.FOLDERS:
        for name in _parts.names(folder):
            assert _parts.check_kind(folder, name, _parts.find(folder, name))


# --- devices ----------------------------------------------------------------------------------------------------------


def test_the_owner_of_a_device_gives_the_word_too(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "reader_of_mine.py").write_text("class Reader:\n    def __call__(self, making): ...\n")
    for text in ('reader = "reader_of_mine:Reader"', '[source]\nname = "reader_of_mine:Source"'):
        (tmp_path / "own.toml").write_text(text)
        with pytest.raises(BadData, match=r"own\.toml names code, reader_of_mine:") as caught:
            owner(tmp_path)
        assert isinstance(caught.value, Untrusted)
        assert caught.value.said == "its settings name code that its owner has not trusted"
        with trusting():
            owner(tmp_path)
        owner(tmp_path)
    (tmp_path / "reader_of_mine.py").write_text("class Reader: ...\n")
    with pytest.raises(BadData, match="it has changed since"):
        owner(tmp_path)


def test_a_deployment_of_code_carries_the_word_in_its_start_commands(mine, monkeypatch):
    text = mine.read_text()
    start = text.index('name = "mlp"')
    mine.write_text(text[:start] + 'name = "net_of_mine:Net"' + text[text.index("\n", text.index("hidden")) :])
    Path("net_of_mine.py").write_text(
        dedent(
            """
            from collections.abc import Iterator
            from dataclasses import dataclass
            from fedfilt.training.description import Dense, Flatten
            @dataclass(frozen=True)
            class Net:
                shape: tuple[int, ...]
                classes: int
                def layers(self):
                    yield from (Flatten(), Dense(64, self.classes))
            """
        )
    )
    done = call("deploy", "write", mine, "--out", "building", "--trust-code")
    assert done.returncode == 0, done.stderr
    device = Path("building/devices/device-000")
    for folder, unit in ((device, "fedfilt-device-000"), (Path("building/server"), "fedfilt-server")):
        for name in ("start.sh", f"{unit}.service"):
            assert "--trust-code" in (folder / name).read_text()
    with pytest.raises(Untrusted, match=r"device\.toml names code, net_of_mine:Net"):
        Device.read(device)
    with trusting():
        assert Device.read(device).name == "device-000"
    assert Device.read(device).name == "device-000"  # from now on
    with pytest.raises(Untrusted, match=r"pyproject\.toml names code"):
        experiment_table(Path("building/server"))
    done = call("deploy", "server", "building/server")
    assert done.returncode == 1
    assert "pyproject.toml names code, net_of_mine:Net, rule_of_mine:Half" in done.stderr


def test_what_is_remembered_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(_trust, "KEPT", 3)
    with trusting():
        for number in range(5):
            _trust.check_trusted(tmp_path / f"{number}.toml", b"", {"a:B"})
    kept = json.loads((tmp_path / "state" / "fedfilt" / "trusted.json").read_text())
    assert [Path(entry["file"]).stem for entry in kept.values()] == ["2", "3", "4"]
    assert _trust.VARIABLE not in os.environ
