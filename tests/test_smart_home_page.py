"""The tables of docs/smart_home.md are those of the results that are kept."""

import runpy

from helpers import ROOT


def test_every_line_of_the_tables_is_in_the_page(capsys):
    script = runpy.run_path(str(ROOT / "experiments" / "smart_home.py"), run_name="script")
    script["tables"](ROOT / "results" / "smart_home")
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert len(lines) > 60
    page = (ROOT / "docs" / "smart_home.md").read_text().splitlines()
    assert [line for line in lines if line not in page] == []
