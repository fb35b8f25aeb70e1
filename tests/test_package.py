"""The package as a whole: its public names, its start-up, its examples, and how it grows."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from textwrap import dedent

import mypy.api
import pytest

import fedfilt
from fedfilt import _parts
from helpers import ROOT, SLOW

SHIPPED = {
    "aggregators": "FedAdam FedAvg FedAvgM FedDyn FedU FedYogi GFedFilt Local PaperLiteral RoomAverage SFL Scaffold "
    "SelfBlend",
    "clients": "APFL Ditto FedBN FedDyn FedPer FedProx FedRep FineTune LGFedAvg PFedMe PerFedAvg Plain Scaffold",
    "datasets": "Digits Dsads Emnist FashionMnist Femnist Hapt Mnist MnistWriters Own Watch",
    "engines": "Flower Local",
    "filters": "AllPass Floor Heat Ideal Tikhonov",
    "models": "CNN1d Logistic MLP Motifs PaperCNN",
    "partitions": "Dirichlet Labels RoomLabels Wearers Writers",
    "populations": "Everyday Measured Paper Prescribed",
    "schedulers": "Everything SameDeadline",
    "sources": "Csv Mqtt Replay",
    "sparsifiers": "TopK",
    "topologies": "Complete Distance Edges Empty Homes Nearest Paper Rooms",
}


def run(*arguments, **options):
    return subprocess.run(
        [sys.executable, *map(str, arguments)], capture_output=True, text=True, timeout=SLOW, check=False, **options
    )


def tree(file):
    return ast.parse((Path(fedfilt.__file__).parent / file).read_text())


def for_type_checkers(file):
    """Name -> where it comes from, of the imports under TYPE_CHECKING."""
    [block] = [node for node in tree(file).body if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node)]
    return {a.asname or a.name: n.module for n in block.body if isinstance(n, ast.ImportFrom) for a in n.names}


# --- names --------------------------------------------------------------------------------------------------------


def test_public_names_are_pinned():
    assert fedfilt.__all__ == [
        "Advice",
        "Building",
        "Comparison",
        "Config",
        "DataMissing",
        "Diverged",
        "Encoder",
        "Evaluation",
        "Event",
        "Experiment",
        "FederatedData",
        "Fitted",
        "Graph",
        "Guard",
        "Hardware",
        "Participation",
        "Plan",
        "Privacy",
        "Record",
        "Records",
        "Remembered",
        "Rooms",
        "Run",
        "Schedule",
        "Sent",
        "State",
        "Store",
        "Strength",
        "Task",
        "Training",
        "Tuned",
        "Updates",
        "advise",
        "aggregators",
        "clients",
        "compare",
        "datasets",
        "engines",
        "filters",
        "fit",
        "from_table",
        "load",
        "mix",
        "mixing_matrix",
        "models",
        "partitions",
        "play",
        "play_in_folder",
        "play_round",
        "populations",
        "report",
        "run",
        "schedulers",
        "sources",
        "sparsifiers",
        "strength",
        "summary",
        "topologies",
        "torch_module",
        "tune",
        "vote",
    ]
    assert dir(fedfilt) == sorted([*fedfilt.__all__, "__version__"])
    assert set(SHIPPED) == set(_parts.FOLDERS)


def test_every_public_name_is_there_and_documented():
    for name in fedfilt.__all__:
        assert getattr(fedfilt, name).__doc__, f"fedfilt.{name} has no docstring"
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", fedfilt.__version__)


def test_public_names_have_one_home():
    """What is loaded on first use, what type checkers see and what is listed are the same names."""
    assert sorted([*fedfilt._HOMES, *_parts.FOLDERS]) == fedfilt.__all__
    homes = {name: f"fedfilt.{home}" for name, home in fedfilt._HOMES.items()}
    assert for_type_checkers("__init__.py") == homes | dict.fromkeys(_parts.FOLDERS, "fedfilt")
    for name, home in homes.items():
        assert getattr(import_module(home), name) is getattr(fedfilt, name)


@pytest.mark.parametrize("folder", _parts.FOLDERS)
def test_public_parts_are_there(folder):
    package, shipped = import_module(f"fedfilt.{folder}"), SHIPPED[folder].split()
    assert set(shipped) <= set(dir(package))
    assert dir(package) == sorted(package.__all__)
    seen = for_type_checkers(f"{folder}/__init__.py")
    assert set(shipped) <= set(seen), "type checkers do not see every part"
    for name, home in seen.items():
        assert getattr(package, name) is getattr(import_module(home), name)
    everything: dict[str, type] = {}
    exec(f"from fedfilt.{folder} import *", everything)
    assert set(dir(package)) <= set(everything)


@pytest.mark.slow(7)
def test_type_checkers_know_public_names(tmp_path):
    file, settings = tmp_path / "user.py", tmp_path / "mypy.ini"
    heavy = ",".join(f"{name}.*" for name in ("cryptography", "flwr", "numpy", "plotly", "rich", "scipy", "torch"))
    settings.write_text(f"[mypy]\nmypy_path = {ROOT / 'src'}\n[mypy-{heavy}]\nfollow_imports = skip\n")
    shown = ["fedfilt.Graph.paper()", "fedfilt.fit", "fedfilt.filters.Tikhonov(mu=1.0)", "fedfilt.engines.Flower"]
    file.write_text("import fedfilt\n" + "".join(f"reveal_type({what})\n" for what in shown))
    options = ["--config-file", str(settings), "--cache-dir", str(tmp_path / "cache")]
    said, errors, _ = mypy.api.run([*options, str(file)])
    revealed = re.findall(r'user.py:\d+: note: Revealed type is "(.*)"', said)
    assert len(revealed) == len(shown), said + errors
    assert revealed[0] == "fedfilt.graph.graph.Graph"
    assert revealed[1].endswith("-> fedfilt.runs.fit.Fitted")
    assert revealed[2] == "fedfilt.filters.tikhonov.Tikhonov"
    assert revealed[3].endswith("-> fedfilt.engines.flower.engine.Flower")


def test_importing_the_package_loads_nothing_heavy():
    heavy = "{'torch', 'scipy', 'numpy', 'plotly'} & set(sys.modules)"
    assert run("-c", f"import sys, fedfilt; print({heavy})").stdout.strip() == "set()"


def test_unknown_names_are_refused_with_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'tikhonov'"):
        _parts.find("filters", "tikhonof")
    with pytest.raises(ValueError, match="cannot load 'no_such_module:X'"):
        _parts.find("filters", "no_such_module:X")
    with pytest.raises(AttributeError):
        _ = fedfilt.nothing
    with pytest.raises(AttributeError):
        _ = fedfilt.filters.Nothing
    assert _parts.find("filters", "fedfilt.filters.heat:Heat") is fedfilt.filters.Heat


# --- what users read ----------------------------------------------------------------------------------------------


def shown_code():
    """(where, code) of every example and every block of Python in the pages."""
    for path in sorted((ROOT / "examples").rglob("*.py")):
        yield path.relative_to(ROOT), path.read_text()
    for path in sorted((ROOT / "examples").rglob("*.ipynb")):
        for cell in json.loads(path.read_text())["cells"]:
            if cell["cell_type"] == "code":
                yield path.relative_to(ROOT), "".join(cell["source"])
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "examples").rglob("*.md"))]:
        for block in re.findall(r"^```python\n(.*?)^```", path.read_text(), re.DOTALL | re.MULTILINE):
            yield path.relative_to(ROOT), re.sub(r"^(>>>|\.\.\.) ?", "", block, flags=re.MULTILINE)


def test_examples_and_pages_import_only_public_names():
    public = {"fedfilt", "fedfilt.flower", *(f"fedfilt.{folder}" for folder in _parts.FOLDERS)}
    wrong = []
    for where, code in shown_code():
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.Import):
                used = [(alias.name, "") for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                used = [(node.module or "", alias.name) for alias in node.names]
            else:
                continue
            for module, name in used:
                known = module in public and (not name or name in dir(import_module(module)))
                if module.partition(".")[0] == "fedfilt" and not known:
                    wrong.append(f"{where} line {node.lineno}: {ast.unparse(node)}")
    assert not wrong, "not public:\n" + "\n".join(wrong)


@pytest.mark.slow(3)
@pytest.mark.parametrize("name", sorted({path.name for path in (ROOT / "examples").glob("*.py")} - {"smart_home.py"}))
def test_examples_run(name, tmp_path):
    done = run("-W", "error", ROOT / "examples" / name, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_pages_show_the_examples_that_are_run():
    for name, page in {"personal.py": "README.md", "quickstart.py": "docs/mixing.md"}.items():
        assert (ROOT / "examples" / name).read_text().strip() in (ROOT / page).read_text()


# --- how it grows -------------------------------------------------------------------------------------------------

# A new part for every folder, a change that breaks it, and the test of the contract that then fails
NEW = {
    "aggregators": (
        '''
        from fedfilt._types import Array
        from fedfilt.graph import Graph
        from fedfilt.rounds.types import Updates

        @dataclass(frozen=True)
        class New:
            """Halfway to what was trained.

            >>> New()
            New()
            """

            def __call__(self, models: Array, updates: Updates, graph: Graph) -> Array:
                updates.check(models, graph)
                return models + updates.rows / 2
        ''',
        ("updates.check(models, graph)", "pass"),
        "test_what_does_not_belong_together_is_refused",
    ),
    "clients": (
        '''
        from fedfilt.training.client import Kept, Sent, Task

        @dataclass(frozen=True)
        class New:
            """Counts its rounds.

            >>> New()
            New()
            """

            def start(self, task: Task) -> Kept:
                return {"rounds": task.model[:1] * 0}

            def __call__(self, task: Task) -> Sent:
                rounds = task.state["rounds"].copy()
                rounds += 1
                loss = task.train(task.model)
                return Sent(task.model, loss, {"rounds": rounds})
        ''',
        ("Sent(task.model, loss", "Sent(task.model.astype(float), loss"),
        "test_client_says_what_it_keeps_and_leaves_what_it_is_given_alone",
    ),
    "datasets": (
        '''
        from typing import ClassVar
        import numpy as np
        from fedfilt.data.samples import Samples
        from fedfilt.data.store import DataFile, Store

        @dataclass(frozen=True)
        class New:
            """Black pictures.

            >>> New().load(Store()).classes
            2
            """

            files: ClassVar[tuple[DataFile, ...]] = ()

            def load(self, store: Store) -> Samples:
                y = np.arange(40) % 2
                return Samples("attic", np.zeros((40, 1, 4, 4), np.uint8), y, 2, np.arange(40) < 10)
        ''',
        ("y, 2,", "y, 1,"),
        "test_dataset_says_which_files_it_needs",
    ),
    "engines": (
        '''
        from collections.abc import Iterator, Sequence
        from fedfilt.engines.local import Local
        from fedfilt.rounds.types import Reply
        from fedfilt.system.orders import Job

        class New(Local):
            """The local engine by another name.

            >>> issubclass(New, Local)
            True
            """

            def train(self, jobs: Sequence[Job], deadline: float) -> Iterator[Reply]:
                yield from super().train(jobs, deadline)
        ''',
        ("train(jobs,", "train(jobs[1:],"),
        "test_engine_trains_and_tests_as_the_local_one_does",
    ),
    "filters": (
        '''
        from fedfilt._types import Array

        @dataclass(frozen=True)
        class New:
            """Low-pass response h(λ) = 1 / (1 + (λ/c)^4).

            >>> import numpy as np
            >>> New(2.0)(np.array([0.0, 2.0]))
            array([1. , 0.5])
            """

            cutoff: float = 1.0

            def __call__(self, frequencies: Array) -> Array:
                return 1 / (1 + (frequencies / self.cutoff) ** 4)
        ''',
        ("1 / (1 + (f", "2 / (1 + (f"),
        "test_filter_is_a_function_of_frequency",
    ),
    "models": (
        '''
        import math
        from collections.abc import Iterator
        from fedfilt.training.description import Dense, Flatten, Layer, Relu

        @dataclass(frozen=True)
        class New:
            """A narrow network.

            >>> len(list(New((2, 2), 3).layers()))
            4
            """

            shape: tuple[int, ...]
            classes: int

            def layers(self) -> Iterator[Layer]:
                yield from (Flatten(), Dense(math.prod(self.shape), 2), Relu(), Dense(2, self.classes))
        ''',
        ("2, self.classes", "2, 7"),
        "test_model_gives_a_number_per_class_for_any_batch",
    ),
    "partitions": (
        '''
        import numpy as np
        from fedfilt._types import Array
        from fedfilt.data.deal import Sizes, deal_by_shares
        from fedfilt.data.samples import FederatedData, Samples

        @dataclass(frozen=True)
        class New:
            """All labels for everybody.

            >>> New()
            New()
            """

            def __call__(self, samples: Samples, rooms: Array, sizes: Sizes, rng: np.random.Generator) -> FederatedData:
                shares = np.full((len(rooms), samples.classes), 1 / samples.classes)
                return deal_by_shares(samples, shares, sizes, rng)
        ''',
        ("(len(rooms),", "(len(rooms) - 1,"),
        "test_partition_deals_no_sample_twice",
    ),
    "populations": (
        '''
        import numpy as np
        from fedfilt._types import Array
        from fedfilt.system.hardware import Hardware

        @dataclass(frozen=True)
        class New:
            """Devices that are all alike.

            >>> New().draw(np.ones(3), 100, np.random.default_rng(0)).count
            3
            """

            def draw(self, samples: Array, update_bytes: int, rng: np.random.Generator) -> Hardware:
                one = np.ones(len(samples))
                return Hardware(np.asarray(samples), 1e4 * one, 1e9 * one, one, -80 * one, 1e6 * one, np.inf * one)
        ''',
        ("1e9 * one", "np.random.default_rng().uniform() * one"),
        "test_population_gives_every_device_its_hardware",
    ),
    "schedulers": (
        '''
        from fedfilt.system.hardware import Hardware
        from fedfilt.system.orders import Plan, Schedule

        @dataclass(frozen=True)
        class New:
            """One epoch each.

            >>> New()
            New()
            """

            def __call__(self, hardware: Hardware, update_bytes: int) -> Schedule:
                return Schedule([Plan(1) if held else Plan(0, 0.0, 0.0) for held in hardware.samples])
        ''',
        ("if held else Plan(0, 0.0, 0.0) ", ""),
        "test_scheduler_plans_what_every_device_can_do",
    ),
    "sources": (
        '''
        import threading
        from collections.abc import Iterator
        import numpy as np
        from fedfilt.data.own import Making
        from fedfilt.home.bus import Bus
        from fedfilt.home.clock import Clock
        from fedfilt.home.readings import Reading

        @dataclass(frozen=True)
        class New:
            """Silence.

            >>> New()
            New()
            """

            def readings(self, making: Making, bus: Bus, clock: Clock, stop: threading.Event) -> Iterator[Reading]:
                while clock.sleep(0.1, stop):
                    yield Reading(clock.now(), np.zeros(making.shape[0]))
        ''',
        ("clock.sleep(0.1, stop)", "clock.sleep(0.1)"),
        "test_source_gives_readings_until_it_is_stopped",
    ),
    "sparsifiers": (
        '''
        import numpy as np
        from fedfilt._types import Array
        from fedfilt.system.wire import pack, unpack, values_within, wire_size

        @dataclass(frozen=True)
        class New:
            """Sends the first values.

            >>> New().full_bytes(10)
            56
            """

            def full_bytes(self, size: int) -> int:
                return wire_size(size, size)

            def __call__(self, update: Array, residual: Array | None, density: float) -> tuple[bytes, Array | None]:
                total = update if residual is None else update + residual
                count = values_within(len(total), density * self.full_bytes(len(total)))
                content = pack(total, np.arange(count))
                return content, total - unpack(content, len(total))
        ''',
        ("return content, total", "return content, update"),
        "test_sparsifier_sends_what_fits_and_keeps_the_rest",
    ),
    "topologies": (
        '''
        from fedfilt.graph import Graph

        @dataclass(frozen=True)
        class New:
            """A row of devices.

            >>> New(devices=3)(seed=0)
            Graph(3 devices, 2 links, 1 component)
            """

            devices: int = 5

            def __call__(self, seed: int) -> Graph:
                return Graph.from_edges(self.devices, [(i, i + 1) for i in range(self.devices - 1)])
        ''',
        ("edges(self.devices, ", "edges(self.devices + 1, "),
        "test_topology_gives_the_same_graph_for_the_same_seed",
    ),
}


@pytest.mark.slow(8)
def test_a_new_part_is_one_file(tmp_path):
    """A file dropped into a folder of parts is usable by its name, and tested; nothing else is touched.

    Every folder gets a good part, "attic", and a broken one, "cellar": the contract of the folder tells them apart.
    """
    shutil.copytree(ROOT / "src" / "fedfilt", tmp_path / "fedfilt", ignore=shutil.ignore_patterns("__pycache__"))
    files = []
    for folder, (code, (good, bad), _) in NEW.items():
        text = "from dataclasses import dataclass\n" + dedent(code)
        assert good in text
        files.append(tmp_path / "fedfilt" / folder / "attic.py")
        files[-1].write_text(text)
        files[-1].with_name("cellar.py").write_text(text.replace(good, bad).replace("New", "Broken"))
    ran = run(
        *["-m", "pytest", "-vv", "-p", "no:cacheprovider", "-p", "no:xdist", "-c", "pyproject.toml", "--rootdir"],
        ROOT,
        *(ROOT / "tests" / "test_contracts.py", ROOT / "tests" / "test_package.py", *files),
        *("-k", "attic or cellar or public and not type_checkers and not pages"),
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    results = re.findall(r"^(\S*::.*) (PASSED|FAILED|ERROR|SKIPPED)", ran.stdout, re.MULTILINE)
    fine = {test for test, how in results if how == "PASSED"}
    assert all(test in fine for test, _ in results if "cellar" not in test), ran.stdout[-5000:] + ran.stderr[-2000:]
    for folder in _parts.FOLDERS:
        assert any(f"fedfilt.{folder}.attic" in test for test in fine), "its example was run"
        back = "comes_back_from_own_settings" if folder == "sources" else "comes_back_from_the_file_of_an_experiment"
        assert any(f"{back}[{folder}-attic]" in test or f"{back}[attic]" in test for test in fine)
        assert any(f"test_public_parts_are_there[{folder}]" in test for test in fine)
    failed = {test.partition("::")[2].partition("[")[0] for test, how in results if how == "FAILED"}
    assert failed == {test for _, _, test in NEW.values()}
