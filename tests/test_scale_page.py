"""docs/scale.md is what the results that are kept say, and what benchmarks/scale.py computes from them."""

import json
import re
import runpy
import sys

import pytest

from helpers import ROOT

RESULTS = ROOT / "results" / "scale"
PAGE = (ROOT / "docs" / "scale.md").read_text()


@pytest.fixture
def script(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
    return runpy.run_path(str(ROOT / "benchmarks" / "scale.py"), run_name="script")


def test_the_generated_parts_are_made_from_the_results(script):
    made = script["sections"](RESULTS)
    marked = re.findall(r"<!-- begin: benchmarks/scale\.py --page, (\w+) -->\n\n(.*?)\n\n<!-- end: ", PAGE, re.DOTALL)
    assert dict(marked) == made
    assert len(marked) == len(made)


def test_rows_that_are_quoted_are_those_of_the_other_page(script):
    quoted = re.search(r"\| 100 resident devices \| \|\n\|---\|---\|\n((?:\|.*\n)+)", PAGE)
    assert quoted is not None
    there = (ROOT / "docs" / "deploy.md").read_text().splitlines()
    rows = quoted[1].splitlines()
    assert len(rows) == 3
    assert f"| CPU of the edge server per round | {100 * script['REQUESTS']:.1f} s |" in rows  # the costs count with it
    assert [row for row in rows if row not in there] == []


def test_the_buildings_give_the_filter_of_the_whole_graph():
    (piece,) = json.loads((RESULTS / "buildings.json").read_text())["pieces"].values()
    assert piece["devices"] == 50 * 200
    assert piece["error_float64"] < 1e-6
    assert piece["error_float32"] < 1e-6
    assert piece["border"] < piece["devices"] / 10


def test_costs_grow_as_stated(script):
    pieces = json.loads((RESULTS / "mixing.json").read_text())["pieces"]
    few, many = (script["costs"](homes, 53_002, pieces) for homes in (1_000, 1_000_000))
    for name in few:
        whole = name.startswith("home, ")  # a home costs the same in any company
        assert many[name] == few[name] if whole else many[name] > 999 * few[name]
    for size, piece in pieces.items():
        assert script["seconds_of"]("seconds", int(size), pieces) == pytest.approx(piece["seconds"])
    assert few["border rows, bytes up, and down"] == 2_000 * 212_008
    assert few["all models, bytes up, and down"] == 10_000 * 212_008


@pytest.mark.slow(5)
def test_a_piece_is_measured_once(script, tmp_path, capfd):
    script["KINDS"].clear()  # one piece, which takes a second
    script["KINDS"]["planning"] = (script["planning"], (100,))
    script["compute"](tmp_path, full=False)
    found = json.loads((tmp_path / "planning.json").read_text())
    assert found["pieces"]["100"]["seconds"] > 0
    assert found["pieces"]["100"]["memory"] > 2**20
    before = (tmp_path / "planning.json").read_bytes()
    script["compute"](tmp_path, full=True)
    assert (tmp_path / "planning.json").read_bytes() == before
