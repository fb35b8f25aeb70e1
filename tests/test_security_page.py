"""The tables of docs/security.md are those of the results that are kept, and what it promises holds in them."""

import json
import runpy
import sys

import numpy as np

from helpers import ROOT

RESULTS = ROOT / "results" / "security" / "attacks.json"


def script(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
    return runpy.run_path(str(ROOT / "benchmarks" / "attacks.py"), run_name="script")


def test_every_line_of_the_tables_is_in_the_page(monkeypatch, capsys):
    script(monkeypatch)["tables"](RESULTS)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert len(lines) > 30
    page = (ROOT / "docs" / "security.md").read_text().splitlines()
    assert [line for line in lines if line not in page] == []


def test_the_default_guard_holds_what_is_promised(monkeypatch):
    """Others lose at most 6 points by any of the attacks, and an honest run at most half a point."""
    made = script(monkeypatch)
    runs = json.loads(RESULTS.read_text())["runs"]

    def mean(attack, rule, guard, test):
        found = made["of"](runs, attack, rule, guard)
        assert len(found) == 3
        return 100 * float(np.mean([run[test] for run in found]))

    for rule in made["RULES"]:
        for test in ("local", "global"):
            honest = {name: mean(name, rule, "off", test) for name in ("none", "none, of the other 16")}
            assert mean("none", rule, "default", test) >= honest["none"] - 0.5
            for attack, (who, _, _) in made["ATTACKS"].items():
                before = honest["none" if len(who) == 1 else "none, of the other 16"]
                assert mean(attack, rule, "default", test) >= before - 6, (attack, rule, test)
