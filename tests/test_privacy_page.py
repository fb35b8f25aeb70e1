"""The tables of docs/privacy.md are those of the results that are kept."""

import runpy

from helpers import ROOT


def test_every_line_of_the_tables_is_in_the_page(capsys):
    script = runpy.run_path(str(ROOT / "benchmarks" / "leaks.py"), run_name="script")
    script["tables"](ROOT / "results" / "privacy" / "leaks.json")
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert len(lines) > 20
    page = (ROOT / "docs" / "privacy.md").read_text().splitlines()
    assert [line for line in lines if line not in page] == []
