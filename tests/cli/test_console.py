"""What commands print: tables that cut nothing, and errors that say what to do."""

import errno

import pytest
import typer
from rich.table import Table

from fedfilt.cli import _console as console
from helpers import call

LONG = "fedprox:proximal=0.1+mu=1 and a name that no terminal has room for"


def table():
    made = Table("rule", *["a column of some width"] * 4, title="t")
    made.add_row(LONG, *["91.4% ± 1.2%"] * 4)
    return made


def test_a_pipe_gets_columns_as_wide_as_they_need_to_be(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    console.print_table(table())
    printed = capsys.readouterr().out
    assert LONG in printed
    assert "…" not in printed


@pytest.mark.parametrize("width", [60, 80])
def test_a_narrow_terminal_folds_long_names(capsys, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    console.print_table(table())
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    first = "".join(line.split("│")[1].strip() for line in lines if line.startswith("│"))
    assert first.replace(" ", "") == LONG.replace(" ", "")
    assert not any("…" in line for line in lines)


def test_a_file_that_found_no_room_is_named(tmp_path, capsys):
    with pytest.raises(typer.Exit), console.errors():
        raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "report.html"))
    said = capsys.readouterr().err
    assert said.startswith(
        f"error: no room to write {tmp_path / 'report.html'} (No space left on device); no half-written"
    )


def test_a_dashboard_of_a_folder_that_is_not_there_is_refused(tmp_path):
    done = call("dashboard", "nope", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("error: there is no folder nope: check the name, or start a run with fedfilt run")
    assert "there is no folder runs: name the folder of your runs" in call("dashboard", cwd=tmp_path).stderr
