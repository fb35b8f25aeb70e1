"""The plan of the house: imports go down, never in a circle, and none is hidden in a function."""

import ast
import shutil
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from itertools import accumulate, pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from fedfilt._parts import FOLDERS
from helpers import ROOT

LAYERS = (
    "_types _brief _checks _draws _files _parts _progress _reading _start _threads _trust _version",
    "native graph data system",
    "mixing training",
    "rounds",
    "home",
    " ".join(folder for folder in FOLDERS if folder != "engines"),
    "engines",
    "runs",
    "export",
    "show flower",
    "calls",
    "paper",
    "cli",
    "__init__ __main__",  # the door, which opens everything
)
LAYER = {room: layer for layer, rooms in enumerate(LAYERS) for room in rooms.split()}
SHARED = {LAYER["_types"], LAYER["filters"], LAYER["__init__"]}  # here neighbours may use each other


class Import(NamedTuple):
    """Module `user` imports module `used`; `where` is "", "typing" or the name of a function."""

    user: str
    used: str
    place: str  # file:line
    where: str


def statements(node: ast.AST, where: str = "") -> Iterator[tuple[ast.Import | ast.ImportFrom, str]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, where
        elif isinstance(child, ast.If) and not where and "TYPE_CHECKING" in ast.unparse(child.test):
            yield from statements(ast.Module(child.body, []), "typing")
            yield from statements(ast.Module(child.orelse, []), where)
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from statements(child, child.name)
        else:
            yield from statements(child, where)


def imports(home: Path) -> Iterator[Import]:
    """Every import of the package inside itself."""
    files = {".".join(path.relative_to(home.parent).with_suffix("").parts): path for path in home.rglob("*.py")}
    modules = {name.removesuffix(".__init__"): path for name, path in files.items()}
    for user, path in sorted(modules.items()):
        package = user if path.name == "__init__.py" else user.rpartition(".")[0]
        for node, where in statements(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                used = [alias.name for alias in node.names]
            else:
                parents = package.split(".")[: 1 - node.level or None] if node.level else []
                base = ".".join([*parents, *([node.module] if node.module else [])])
                used = [name if (name := f"{base}.{a.name}") in modules else base for a in node.names]
            for name in used:
                if name.split(".")[0] == home.name:
                    yield Import(user, name, f"{path.relative_to(home.parent)}:{node.lineno}", where)


def room(module: str) -> str:
    return [*module.split("."), "__init__"][1]


def wrong(home: Path) -> list[str]:
    """What is wrong with the imports of a package: a line for each."""
    found, problems = list(imports(home)), []
    for one in found:
        user, used = room(one.user), room(one.used)
        said = f"{one.place}: {one.user} imports {one.used}"
        if user not in LAYER or used not in LAYER:
            problems.append(f"{said}: {user if user not in LAYER else used} has no layer in {Path(__file__).name}")
        elif LAYER[used] > LAYER[user]:
            problems.append(f"{said}: up, from {user} to {used}, which lies above it")
        elif LAYER[used] == LAYER[user] and used != user and LAYER[user] not in SHARED:
            problems.append(f"{said}: across, from {user} to {used}, which lies beside it")
        lazy = one.where == "__getattr__" and one.place.split(":")[0].endswith("__init__.py")
        if one.where not in ("", "typing") and user != "cli" and not lazy:
            problems.append(f"{said}: hidden in the function {one.where}; imports stand at the top")
    places = {}
    for one in found:
        for package in accumulate(one.used.split("."), "{}.{}".format):  # Python runs those around a module first
            if not one.where and (package == one.used or not f"{one.user}.".startswith(f"{package}.")):
                places[one.user, package] = one.place
    order = TopologicalSorter[str]()
    for user, used in places:
        order.add(user, used)
    try:
        order.prepare()
    except CycleError as error:
        steps = [f"{user} imports {used} ({places[user, used]})" for used, user in pairwise(error.args[1])]
        problems.append(f"a circle: {', '.join(reversed(steps))}")
    return problems


def test_imports_go_down():
    found = wrong(ROOT / "src" / "fedfilt")
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("file", "line", "said"),
    [
        ("graph/serial.py", "from fedfilt.models.mlp import MLP", "fedfilt.models.mlp: up, from graph to models"),
        ("mixing/_solvers.py", "if TYPE_CHECKING:\n    import fedfilt.cli", "imports fedfilt.cli: up, from mixing"),
        ("filters/heat.py", "from fedfilt import Graph", "imports fedfilt: up, from filters to __init__"),
        ("native/__init__.py", "from fedfilt.data import Samples", "imports fedfilt.data: across, from native to data"),
        ("graph/_edges.py", "from .building import Building", "fedfilt.graph.building imports fedfilt.graph.graph ("),
        ("filters/heat.py", "import fedfilt.aggregators.sfl", "a circle: fedfilt.filters.heat imports fedfilt.agg"),
        ("runs/folder.py", "def f():\n    from fedfilt.graph import Graph", "hidden in the function f"),
        ("attic/__init__.py", "import fedfilt.graph", "attic has no layer"),
    ],
)
def test_a_planted_fault_is_found(tmp_path, file, line, said):
    home = tmp_path / "fedfilt"
    shutil.copytree(ROOT / "src" / "fedfilt", home, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    place = home / file
    place.parent.mkdir(exist_ok=True)
    with place.open("a") as text:
        text.write(f"\n{line}\n")
    if said.startswith("a circle"):
        (home / "aggregators" / "sfl.py").write_text("import fedfilt.filters.heat\n")
    [problem] = wrong(home)
    assert said in problem
    assert f"fedfilt/{file}:" in problem
