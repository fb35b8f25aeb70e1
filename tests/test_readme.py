"""The commands of the README, read in order as a newcomer runs them: none is in the way of a later one."""

import re
import shlex
from pathlib import Path

import pytest

from helpers import ROOT, call, config_file

BEGINS = re.compile(r"(\S*/)?fedfilt \w")


def commands(page):
    """The words of every command of `fedfilt`, in order."""
    blocks = page.read_text().replace("\\\n", " ").split("```")[1::2]
    lines = [line for block in blocks for line in block.splitlines() if BEGINS.match(line)]
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


def test_what_a_command_of_the_readme_reads_is_there_by_then():
    there = {"runs"}
    for words in commands(ROOT / "README.md"):
        assert words[0] == ".venv/bin/fedfilt"
        read = [word for word in words[2:] if re.fullmatch(r"(runs|homes|building|home-demo)(/\S*)?", word)]
        new = written(words)
        for path in read:
            assert path == new or path in there or Path(path).parts[0] in there, words
        there |= {new} - {None}


def test_the_same_command_twice_says_what_to_do(tmp_path):
    path = config_file(tmp_path, rounds=1)
    assert call("run", path, cwd=tmp_path).returncode == 0
    again = call("run", path, cwd=tmp_path)
    assert again.returncode == 1
    assert "runs/small-seed-0 holds a run already; go on with --resume" in again.stderr
    assert call("run", path, "seed=1", cwd=tmp_path).returncode == 0
