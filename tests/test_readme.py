"""The README, walked as a newcomer walks it: its commands in order, its figures, its picture."""

import json
import os
import re
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
import urllib.request
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import pytest

from fedfilt import Records
from fedfilt._start import PROGRAM
from helpers import ROOT, SLOW, call, config_file, finish, real, started, sure

README = ROOT / "README.md"
BEGINS = re.compile(r"(\S*/)?fedfilt \w")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
TAKES = re.compile(r"# .*(\d s\b|minute|hour)")
SVG = "{http://www.w3.org/2000/svg}"


def blocks(page):
    """(language, text) of every block of code; a command that goes on in the next line is one line."""
    return [(language, text.replace("\\\n", " ")) for language, text in FENCE.findall(page.read_text())]


def commands(page):
    """The words of every command of `fedfilt`, in order."""
    lines = [line for _, text in blocks(page) for line in text.splitlines() if BEGINS.match(line)]
    return [shlex.split(line, comments=True) for line in lines]


def written(words):
    """The folder that a command makes anew, None if it makes none."""
    if "--out" in words:
        return words[words.index("--out") + 1]
    given = [word for word in words[2:] if not word.startswith("-")]
    if words[1] == "run" and given[0].startswith("runs/"):
        return None  # it goes on
    if words[1] == "run":
        seed = next((word.removeprefix("seed=") for word in given if word.startswith("seed=")), "0")
        return f"runs/{Path(given[0]).stem}-seed-{seed}"
    if words[1] == "compare":
        return f"runs/{Path(given[0]).stem}-compare"
    return "home-demo" if words[1:3] == ["home", "demo"] else None


@pytest.mark.parametrize("name", ["README.md", "docs/seeing.md", "docs/deploy.md", "docs/own_data.md"])
def test_no_command_of_a_page_writes_where_another_has_written(name):
    made = [folder for words in commands(ROOT / name) if (folder := written(words)) and "--resume" not in words]
    assert len(made) == len(set(made)), made


def test_the_same_command_twice_says_what_to_do(tmp_path):
    path = config_file(tmp_path, rounds=1)
    assert call("run", path, cwd=tmp_path).returncode == 0
    again = call("run", path, cwd=tmp_path)
    assert again.returncode == 1
    assert "runs/small-seed-0 holds a run already; go on with --resume" in again.stderr
    assert call("run", path, "seed=1", cwd=tmp_path).returncode == 0


# --- the walk -----------------------------------------------------------------------------------------------------


def clone(folder):
    """A fresh copy of the files that git knows, with an environment that is set up already.

    Three things stand in for the network and for minutes of set-up. `.venv/bin/python` and `fedfilt` are those of the
    tests. `pip`, also as `python -m pip`, does nothing, because what it would install is installed. `activate` does
    nothing, because `.venv/bin` is on the PATH throughout.
    """
    git = ["git", "-C", str(ROOT), "-c", f"safe.directory={ROOT}", "ls-files", "-z"]
    known = subprocess.run(git, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in filter(None, known):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    binaries = folder / ".venv" / "bin"
    binaries.mkdir(parents=True)
    (binaries / "activate").touch()
    python = f'case "$*" in *"-m pip"*) exit 0;; esac\nexec {shlex.quote(sys.executable)} "$@"'
    for name, script in {"python": python, "pip": "exit 0", "fedfilt": f'exec {shlex.join(PROGRAM)} "$@"'}.items():
        (binaries / name).write_text(f"#!/bin/sh\n{script}\n")
        (binaries / name).chmod(0o755)
    return {**os.environ, "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}", "BROWSER": "true"}


@pytest.mark.slow(150)
def test_the_readme_can_be_walked_from_top_to_bottom(tmp_path):
    """Every block in order, each line as it stands, in one folder; the dashboard takes any port that is free."""
    real("mnist")
    real("watch")
    options = {"cwd": tmp_path, "env": clone(tmp_path), "text": True, "stdin": subprocess.DEVNULL}
    for language, text in blocks(README):
        if language == "python":
            walked([sys.executable, "-W", "error", "-c", text], options)
            continue
        for line in text.splitlines():
            if line.startswith("fedfilt dashboard "):
                look_at(line.replace("dashboard", "dashboard --port 0", 1), options)
            else:
                walked(["bash", "-c", line], options)
    told = json.loads((tmp_path / "demo" / "mnist_2" / "comparison.json").read_text())["rules"]
    page = (ROOT / "docs" / "five_minutes.md").read_text()
    shown = re.findall(r"^\| `(\S+)`: .*? \| ([\d.]+)% \| ([\d.]+)% \| ([\d.]+)% \|$", page, re.MULTILINE)
    assert {row["rule"] for row in told} == {rule for rule, *_ in shown}
    for rule, *numbers in shown:  # another CPU rounds otherwise
        [row] = [row for row in told if row["rule"] == rule]
        got = [100 * row[key] for key in ("local", "local_worst", "everybody")]
        assert got == pytest.approx([float(number) for number in numbers], abs=4), rule


def walked(words, options):
    """Run a command, which must succeed."""
    done = subprocess.run(words, capture_output=True, timeout=SLOW, check=False, **options)
    assert done.returncode == 0, f"{words[-1]}\n{done.stdout}{done.stderr}"


def look_at(line, options):
    """Start a dashboard, open the address that it prints and the home, and end it as by Ctrl-C."""
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # in the background of a shell it would be ignored
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "preexec_fn": heard}
    with started(["bash", "-c", f"exec {line}"], **pipes, **options) as running, sure(running.stdout) as said:
        address = re.search(r"http://\S+", said.readline())
        assert address, said.read()
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        browser.open(address.group(), timeout=SLOW)  # with the token, which is then in a cookie
        place = address.group().partition("?")[0]
        assert b"The building" in browser.open(place, timeout=SLOW).read()
        assert b"person-0" in browser.open(f"{place}home", timeout=SLOW).read()
        running.send_signal(signal.SIGINT)
        assert "dashboard stopped" in said.read()


# --- what it says -------------------------------------------------------------------------------------------------


def test_every_command_of_the_readme_says_how_long_it_takes():
    lines = [line for language, text in blocks(README) if not language for line in text.splitlines()]
    assert len(lines) > 7
    assert not [line for line in lines if not TAKES.search(line)]


def test_extras_that_the_readme_names_are_there():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    text = README.read_text()
    [about] = [line for line in text.splitlines() if "docs/install.md" in line]
    named = re.findall(r"fedfilt\[([\w,]+)\]", text) + re.findall(r"`(\w+)`", about)
    assert len(named) > 2
    assert {extra for names in named for extra in names.split(",")} <= set(project["optional-dependencies"])


def test_figures_that_the_readme_quotes_are_in_the_pages_that_it_links():
    text = README.read_text()
    text = text[text.index("## What it is good at") : text.index("**Next:**")]
    items = re.split(r"\n\n|^\* ", text, flags=re.MULTILINE)
    quoted = [item for item in items if re.search(r"\d", item)]
    assert len(quoted) > 7
    for item in quoted:
        [page] = re.findall(r"\((docs/\w+\.md)", item)
        numbers = re.findall(r"[+-]?\d+(?:,\d{3})*(?:\.\d+)?", re.sub(r"\(docs/\S+\)", "", item))
        there = (ROOT / page).read_text()
        assert not [number for number in numbers if not re.search(rf"(?<![\d.]){re.escape(number)}(?![\d])", there)], (
            item
        )


def test_links_of_the_readme_lead_somewhere():
    links = re.findall(r"\]\(([^)#:]+)(?:#([^)]+))?\)", README.read_text())
    assert len(links) > 15
    for path, section in links:
        page = ROOT / path
        assert page.exists(), path
        if section:
            titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
            slugs = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
            assert section in slugs, f"{path}#{section}"


# --- its picture --------------------------------------------------------------------------------------------------


@pytest.mark.slow(4)
def test_the_picture_moves_as_the_run_did(tmp_path):
    rooms = {"name": "rooms", "rooms": 2, "devices": 8}
    for rule in ("gfedfilt", "fedavg"):
        folder = tmp_path / rule
        finish(folder, graph=rooms, rounds=3, evaluation={"every": 1}, aggregator=rule)
    words = [ROOT / "docs" / "animation.py", tmp_path / "gfedfilt", tmp_path / "fedavg", "--out", tmp_path / "made.svg"]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=SLOW, check=False)
    assert done.returncode == 0, done.stderr
    picture = ElementTree.parse(tmp_path / "made.svg").getroot()
    run = Records(tmp_path / "gfedfilt")
    assert len(picture.findall(f".//{SVG}circle[@class='ring']")) == 8
    assert len(picture.findall(f".//{SVG}line[@class='link']")) == len(sure(run.graph).edges)
    assert len(picture.findall(f".//{SVG}rect[@class='room']")) == 2
    accuracy = sure(run.accuracies("local"))
    shown = [text.text for text in picture.iter(f"{SVG}text") if text.get("class") == "big"]
    assert shown[:3] == ["1", "2", "3"]
    assert shown[5::3] == [f"{accuracy.mean():.0%}", f"{accuracy.min():.0%}"]
    style = sure(picture.find(f"{SVG}style")).text
    for value in accuracy:  # how much of its ring is empty in the last frame
        assert f"to{{stroke:{colour_of(value)};" in style
    assert colour_of(0) == "#4A3F9F"


def colour_of(share):
    """The colour of a device as docs/animation.py has it."""
    return runpy.run_path(str(ROOT / "docs" / "animation.py"))["colour"](share)


def test_the_picture_is_one_that_a_page_can_show():
    """Small, without scripts and without anything from elsewhere; still where people ask for that; light and dark."""
    file = ROOT / "docs" / "building.svg"
    assert file.stat().st_size < 300_000
    picture = ElementTree.parse(file).getroot()
    assert {element.tag.removeprefix(SVG) for element in picture.iter()} <= {
        *("svg", "title", "style", "g", "rect", "circle", "line", "path", "polyline", "text"),
        *("clipPath", "linearGradient", "stop"),
    }
    text = file.read_text()
    assert "http" not in text.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert "prefers-reduced-motion" in text
    assert "prefers-color-scheme:dark" in text
    assert len(picture.findall(f".//{SVG}circle[@class='ring']")) == 20
