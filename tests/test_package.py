"""The package as a whole: its public names, its start-up, its examples, and how it grows."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import fedfilt
from fedfilt import _parts as parts

ROOT = Path(__file__).resolve().parent.parent

BUTTERWORTH = '''
from dataclasses import dataclass

from fedfilt.checks import Array, check_number


@dataclass(frozen=True)
class Butterworth:
    """Low-pass response h(λ) = 1 / (1 + (λ/c)^4).

    >>> import numpy as np
    >>> Butterworth(2.0)(np.array([0.0, 2.0]))
    array([1. , 0.5])
    """

    cutoff: float = 1.0

    def __post_init__(self) -> None:
        check_number("cutoff", self.cutoff, low=0, above=True)

    def __call__(self, frequencies: Array) -> Array:
        return 1 / (1 + (frequencies / self.cutoff) ** 4)
'''


def run(*arguments, **options):
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=120, check=False, **options
    )


def test_public_names_are_pinned():
    assert dir(fedfilt) == [
        "Building",
        "Fitted",
        "Graph",
        "Strength",
        "Updates",
        "__version__",
        "aggregators",
        "filters",
        "fit",
        "mix",
        "mixing_matrix",
        "strength",
        "vote",
    ]
    assert all(hasattr(fedfilt, name) for name in dir(fedfilt))
    assert sorted(fedfilt.__all__) == sorted(fedfilt._HOMES)
    assert dir(fedfilt.filters) == ["AllPass", "Floor", "Heat", "Ideal", "Tikhonov"]
    assert dir(fedfilt.aggregators) == [
        "FedAvg",
        "FedU",
        "GFedFilt",
        "Local",
        "PaperLiteral",
        "RoomAverage",
        "SFL",
        "SelfBlend",
    ]


def test_importing_the_package_loads_nothing_heavy():
    heavy = "{'torch', 'scipy', 'numpy', 'plotly'} & set(sys.modules)"
    assert run("-c", f"import sys, fedfilt; print({heavy})").stdout.strip() == "set()"


def test_unknown_names_are_refused_with_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'tikhonov'"):
        parts.find("filters", "tikhonof")
    with pytest.raises(ValueError, match="cannot load 'no_such_module:X'"):
        parts.find("filters", "no_such_module:X")
    with pytest.raises(AttributeError):
        _ = fedfilt.nothing
    with pytest.raises(AttributeError):
        _ = fedfilt.filters.Nothing
    assert parts.find("filters", "collections:Counter").__name__ == "Counter"


def test_a_new_filter_is_one_file(tmp_path):
    """A file dropped into filters/ is usable by name and is tested, with no other file touched."""
    shutil.copytree(ROOT / "src" / "fedfilt", tmp_path / "fedfilt", ignore=shutil.ignore_patterns("__pycache__"))
    new = tmp_path / "fedfilt" / "filters" / "butterworth.py"
    new.write_text(BUTTERWORTH.lstrip())
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    used = run(
        "-c",
        "import fedfilt, numpy as np; from fedfilt import parts; f = parts.find('filters', 'butterworth')();"
        "mixed = fedfilt.mix(fedfilt.Graph.paper(), f, np.ones((20, 1)));"
        "print(fedfilt.filters.Butterworth.__name__, mixed.sum().round())",
        env=environment,
    )
    assert used.stdout.startswith("Butterworth 20"), used.stderr

    def contract():
        shutil.copytree(ROOT / "tests", tmp_path / "tests", dirs_exist_ok=True)
        tests = str(tmp_path / "tests" / "test_contracts.py")
        return run(
            "-m", "pytest", "-v", "-p", "no:cacheprovider", "-k", "butterworth", tests, cwd=tmp_path, env=environment
        )

    tested = contract()
    assert tested.returncode == 0, tested.stdout
    assert "test_filter_is_a_function_of_frequency[butterworth] PASSED" in tested.stdout
    new.write_text(BUTTERWORTH.replace("1 / (1 +", "2 / (1 +").lstrip())
    assert "test_filter_is_a_function_of_frequency[butterworth] FAILED" in contract().stdout


@pytest.mark.parametrize("name", sorted({path.name for path in (ROOT / "examples").glob("*.py")} - {"smart_home.py"}))
def test_examples_run(name, tmp_path):
    done = run("-W", "error", str(ROOT / "examples" / name), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_readme_shows_the_example_that_is_run():
    for name in ("quickstart.py", "personal.py"):
        assert (ROOT / "examples" / name).read_text().strip() in (ROOT / "README.md").read_text()
