"""The docs: what they list is what there is, their code runs, and the site builds without a warning."""

import doctest
import inspect
import re
import shlex
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from itertools import takewhile
from typing import Any

import pytest
import typer

import fedfilt
import links
import reference
import wrap
from fedfilt import _parts
from fedfilt.cli import app
from fedfilt.runs.config import PARTS, Config, load
from helpers import ROOT, SLOW, SMALL, call

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
WIDTH = 120


def named(page):
    """A page with what is made for it."""
    path = DOCS / page
    return reference.filled(path.read_text(), path)


def parts():
    """(folder, name, class) of every part."""
    for folder in _parts.FOLDERS:
        for name in _parts.names(folder):
            yield folder, name, _parts.find(folder, name)


def public():
    """(name, thing) of everything that users may import, but folders."""
    for name in fedfilt.__all__:
        if name not in _parts.FOLDERS:
            yield f"fedfilt.{name}", getattr(fedfilt, name)
    for folder, _, part in parts():
        yield f"fedfilt.{folder}.{part.__name__}", part
    flower = import_module("fedfilt.flower")
    yield from ((f"fedfilt.flower.{name}", getattr(flower, name)) for name in flower.__all__)


# --- names, keys, commands, files ---------------------------------------------------------------------------------


def test_every_public_name_has_a_docstring_and_an_example():
    """An example of a class may also be in its module, as that of the strategy for Flower is."""
    lacking = [
        name
        for name, thing in public()
        if not inspect.getdoc(thing)
        or ">>>" not in (inspect.getdoc(thing) or "") + (sys.modules[thing.__module__].__doc__ or "")
    ]
    assert lacking == []


def test_every_public_name_is_in_the_reference():
    shown = "".join(named(f"reference/{page.name}") for page in (DOCS / "reference").glob("*.md"))
    documented = set(re.findall(r"^\.\. auto\w+:: (\S+)$", shown, re.MULTILINE))
    assert documented == {name for name, _ in public()}


def test_every_option_has_a_type_and_a_meaning():
    made = ("topology",)  # by code, of what a file says elsewhere
    kinds = [*(part for folder, _, part in parts() if folder != "engines"), Config]
    kinds += [type(value) for value in vars(load(None)).values() if type(value).__module__.startswith("fedfilt.")]
    for kind in kinds:
        told = [one for one in reference.options(kind) if one.name not in made]
        lacking = [one.name for one in told if not one.type or not one.meaning]
        tables = {name for name in lacking if kind is Config and hasattr(getattr(load(None), name), "__module__")}
        assert set(lacking) <= tables, kind  # what a table means, its own docstring says


def test_examples_of_the_extension():
    assert doctest.testmod(reference) == (0, 1)


def keys(table, path=""):
    """Dotted keys of a table."""
    for key, value in table.items():
        yield from keys(value, f"{path}{key}.") if isinstance(value, dict) else [f"{path}{key}"]


def test_settings_are_the_keys_of_an_experiment():
    page = named("reference/settings.md")
    rows = dict(re.findall(r"^\| `([\w.]+)` \| [^|]+ \| (?:`(.*?)`)? \|", page, re.MULTILINE))
    table = load(None).table()
    own = {f"{part}.{option.name}" for part, kind in _defaults(table) for option in reference.options(kind)}
    parts = {f"{part}.name" for part, _ in _defaults(table)}
    assert set(re.findall(r"`(\w+\.name)` is one of", page)) == {name for name in parts if name.count(".") == 1}
    assert {*rows, *parts, *own} >= set(keys(table)) - {"events"}
    for key, default in rows.items():
        if not key.startswith("events."):
            assert load(None, [f"{key}={default}"]).table() == table, key
    assert {key for key in rows if key.startswith("events.")} == {
        f"events.{option.name}" for option in reference.options(fedfilt.Event)
    }


def _defaults(table, path=""):
    """(dotted key, class) of the parts of an experiment."""
    for key, value in table.items():
        if isinstance(value, dict) and key in PARTS:
            yield f"{path}{key}", _parts.find(PARTS[key][0], value["name"])
            yield from _defaults(value, f"{path}{key}.")


def test_settings_show_the_defaults():
    assert f"```toml\n{load(None).toml()}```" in named("reference/settings.md")


def test_every_folder_of_parts_has_its_page_with_all_of_them():
    for folder in _parts.FOLDERS:
        page = named(f"reference/{folder}.md")
        assert re.findall(r"^## (\w+)$", page, re.MULTILINE) == _parts.names(folder)


def test_every_command_and_option_is_in_the_reference():
    page = named("reference/commands.md")
    for path in commands(typer.main.get_command(app), ()):
        assert f"## fedfilt {' '.join(path)}\n" in page
        said = call(*path, "--help").stdout
        section = page.partition(f"## fedfilt {' '.join(path)}\n")[2].partition("\n## ")[0]
        assert all(
            option in section for option in re.findall(r"^\W+(--[\w-]+)", said, re.MULTILINE) if option != "--help"
        )


def commands(group, path):
    """The words of every command."""
    for name, command in getattr(group, "commands", {}).items():
        yield from commands(command, (*path, name)) if hasattr(command, "commands") else [(*path, name)]


def listed(section):
    """Names of files in the first column of a section of the page on run folders."""
    text = (DOCS / "reference" / "run_folder.md").read_text().partition(f"## {section}\n")[2].partition("\n## ")[0]
    first = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return {name.rstrip("/") for cell in first for name in re.findall(r"`(.*?)`", cell)}


@pytest.mark.slow(10)
def test_run_folder_lists_every_file(tmp_path):
    run = tmp_path / "run"
    fedfilt.run(SMALL, run)
    always, sometimes = listed("A run"), listed("What only some runs have")
    assert all((run / name.replace("NNN", "000")).exists() for name in always)
    fedfilt.advise(run)
    fedfilt.report(run)
    found = {re.sub(r"-[0-9a-f]{16}(?=[-.])", "-HASH", path.name) for path in run.iterdir()}
    assert {name.partition("/")[0] for name in always} < found
    assert found <= {name.partition("/")[0] for name in always | sometimes}
    assert {"advice.json", "probe-HASH-early.safetensors", "report.html"} <= found & sometimes


@pytest.mark.slow(10)
def test_run_folder_lists_the_files_of_comparisons_and_tunings(tmp_path):
    names = listed("A comparison or a tuning")
    fedfilt.compare(SMALL, "fedavg", folder=tmp_path / "compared", rounds=1)
    fedfilt.tune(SMALL, "fedavg", budget=1, seeds=1, folder=tmp_path / "tuned", rounds=1)
    for folder, expected in (("compared", names - {"tuned.json"}), ("tuned", {"tuned.json", "RULE/seed-N"})):
        found = {str(path.relative_to(tmp_path / folder)) for path in (tmp_path / folder).iterdir()}
        runs = {name for name in found if name.startswith("fedavg")}
        assert found - runs | {"RULE/seed-N"} == expected
        assert all(re.fullmatch(r"seed-\d+", one.name) for name in runs for one in (tmp_path / folder / name).iterdir())


def test_files_that_only_some_runs_have_are_named_as_in_the_code():
    code = "".join(path.read_text() for path in (ROOT / "src" / "fedfilt" / "runs").glob("*.py"))
    for name in listed("What only some runs have"):
        file = name.rpartition("/")[2]
        assert file.partition("-HASH")[0] in code or file == "report.html", name


# --- tables on pages that repeat what is in the code ---------------------------------------------------------------


def rows_of(page, head):
    """The rows of the table of a page whose head begins with `head`: lists of cells."""
    lines = (DOCS / page).read_text().splitlines()
    [start] = [number for number, line in enumerate(lines) if line.startswith(f"| {head} |")]
    rows = takewhile(lambda line: line.startswith("|"), lines[start + 2 :])
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows]


def same(shown, default):
    """Whether a default is shown as it is; nothing and "all" stand for those that are empty."""
    shown = shown.strip("`")
    if default in ("", "[]", '""'):
        return shown in ("", "all")
    try:
        return float(shown) == float(default)
    except ValueError:
        return shown == default


@pytest.mark.parametrize(
    ("page", "head", "kind", "elsewhere"),
    [
        ("security.md", "key of `[guard]`", fedfilt.Guard, ()),
        ("own_data.md", "key", _parts.find("datasets", "own"), ()),
        ("privacy.md", "key", fedfilt.Privacy, ("delta", "blind")),
    ],
)
def test_tables_of_keys_are_those_of_the_code(page, head, kind, elsewhere):
    """GitHub shows the pages too, where nothing is made; so these tables are written, and compared."""
    defaults = {option.name: option.default for option in reference.options(kind)}
    told = {}
    for first, second, *_ in rows_of(page, head):
        names = [code.partition(" = ")[0].partition(".")[0] for code in re.findall(r"`(.*?)`", first)]
        values = second.split(", ") if len(names) > 1 else [second]
        told |= dict(zip(names, values, strict=True))
    assert set(told) == set(defaults) - set(elsewhere)
    if "default" in (DOCS / page).read_text().partition(f"| {head} |")[2].splitlines()[0]:
        assert [name for name, shown in told.items() if not same(shown, defaults[name])] == []


@pytest.mark.parametrize(
    ("page", "head", "folder", "column", "every"),
    [
        ("clients.md", "`client`", "clients", 1, True),
        ("clients.md", "`aggregator`", "aggregators", 0, False),
        ("training.md", "`partition.name`", "partitions", 2, False),
        ("scheduling.md", "name", "populations", None, True),
    ],
)
def test_tables_of_parts_are_those_of_the_code(page, head, folder, column, every):
    """Which parts there are, and in one column the options of each with their defaults."""
    seen, wrong = set(), []
    for cells in rows_of(page, head):
        names = [name for name in re.findall(r"`(\w+)`", cells[0].partition("(")[0]) if name in _parts.names(folder)]
        assert names, cells
        if " around " in cells[0]:
            continue  # an example with options of its own
        seen.update(names)
        if column is None:
            continue
        told = dict.fromkeys(re.findall(r"`(\w+)`", " ".join(cells[1:])), "")
        told |= dict(re.findall(r"`(\w+)(?: = (.*?))?`", cells[column]))
        for name in names:
            defaults = {option.name: option.default for option in reference.options(_parts.find(folder, name))}
            wrong += [f"{name}: {option} is not told" for option in defaults.keys() - told.keys()]
            shown = {option: value for option, value in told.items() if option in defaults and value}
            wrong += [f"{name}: {key} = {value}" for key, value in shown.items() if not same(value, defaults[key])]
    assert not wrong, "\n".join(wrong)
    assert not every or seen == set(_parts.names(folder))


def test_the_table_of_kinds_has_every_folder_of_parts():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    kinds = re.findall(r"^\| [a-z ]+ \| `(\w+)` \|", text, re.MULTILINE)
    assert sorted(kinds) == sorted(_parts.FOLDERS)


# --- pages --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [*sorted(ROOT.glob("*.md")), *PAGES], ids=lambda path: str(path.relative_to(ROOT)))
def test_lines_wrap(path):
    """`python docs/_ext/wrap.py PAGE` does it. Tables, code and pages that are made are as wide as what they show."""
    text = path.read_text()
    assert path.name == "paper.md" or "<!-- begin:" in text or wrap.too_wide(text) == []


@pytest.mark.slow(10)
@pytest.mark.parametrize("name", ["five_minutes", "tutorial_data", "tutorial_method", "filters"])
def test_code_of_a_page_runs(name, tmp_path):
    blocks = re.findall(r"^```python\n(.*?)^```", (DOCS / f"{name}.md").read_text(), re.DOTALL | re.MULTILINE)
    assert blocks
    (tmp_path / "page.py").write_text("\n".join(blocks))
    done = subprocess.run(
        [sys.executable, "-W", "error", "page.py"], cwd=tmp_path, capture_output=True, text=True, timeout=SLOW
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_commands_on_pages_exist_with_their_options():
    root = typer.main.get_command(app)
    wrong, seen = [], 0
    for path in [ROOT / "README.md", *PAGES]:
        blocks = path.read_text().replace("\\\n", " ").split("```")[1::2]
        for line in "".join(blocks).splitlines():
            if re.match(r"(\.venv/bin/)?fedfilt [a-z]", line):
                seen += 1
                command: Any = root
                words = shlex.split(line, comments=True)[1:]
                while words and words[0] in getattr(command, "commands", {}):
                    command = command.commands[words.pop(0)]
                known = {option for one in command.params for option in [*one.opts, *one.secondary_opts]}
                given = {word.partition("=")[0] for word in words if word.startswith("--")}
                wrong += [f"{path.name}: {line}"] if command is root or given - known - {"--help"} else []
    assert seen > 50
    assert not wrong, "\n".join(wrong)


def test_pictures_are_those_that_are_drawn_and_shown():
    spec = spec_from_file_location("pictures", DOCS / "pictures.py")
    pictures = module_from_spec(spec)
    spec.loader.exec_module(pictures)
    assert {path.stem for path in (DOCS / "pictures").glob("*.svg")} == set(pictures.PICTURES)
    shown = "".join(path.read_text() for path in DOCS.glob("*.md"))
    for name, draw in pictures.PICTURES.items():
        assert f"](pictures/{name}.svg)" in shown
        assert draw().data


# --- the site -----------------------------------------------------------------------------------------------------


def test_broken_links_are_found(tmp_path):
    (tmp_path / "a.html").write_text("<a href='b.html#there'></a><a href='b.html#gone'></a><img src='no.png'>")
    (tmp_path / "b.html").write_text("<p id='there'><a href='#'></a><a href='https://example.org/x'></a>")
    assert links.broken(tmp_path) == ["a.html: no anchor b.html#gone", "a.html: no file no.png"]


def test_formulas_that_nothing_renders_are_found(tmp_path):
    text = "<p>$A_{II}$, $$x$$ and \\mu, but $5 and $6</p><pre>$HOME_$ $$</pre><code>\\mu</code>"
    (tmp_path / "a.html").write_text(text)
    found = [line.rpartition(": ")[2] for line in links.broken(tmp_path)]
    assert found == ["$A_{II}$", "$$", "$$", "\\mu"]


@pytest.mark.slow(60)
@pytest.mark.skipif(
    any(find_spec(name) is None for name in ("furo", "myst_parser", "sphinx")), reason="needs fedfilt[docs]"
)
def test_site_builds_without_a_warning_and_its_links_lead_somewhere(tmp_path):
    recipe = next(line for line in (ROOT / "Makefile").read_text().splitlines() if "-m sphinx" in line)
    options = [word for word in recipe.split()[3:-2] if word.startswith("--") and word != "--doctree-dir"]
    options[1:1] = ["html", "--doctree-dir", str(tmp_path / "trees")]
    built = subprocess.run(
        [sys.executable, "-m", "sphinx", *options, str(DOCS), str(tmp_path / "site")],
        capture_output=True,
        text=True,
        timeout=SLOW,
    )
    assert built.returncode == 0, built.stderr[-5000:]
    assert links.broken(tmp_path / "site") == []
