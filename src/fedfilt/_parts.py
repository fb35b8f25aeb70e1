"""Find the parts of an experiment by name: the file's name in its folder is the part's name.

`find("filters", "tikhonov")` is the class in `fedfilt/filters/tikhonov.py`; `find("filters", "my.module:Mine")`
is code outside the package.

>>> from fedfilt._parts import find, names
>>> "tikhonov" in names("filters")
True
>>> find("filters", "tikhonov")(mu=2.0)
Tikhonov(mu=2.0)
"""

import inspect
import pkgutil
import sys
import typing
from collections.abc import Callable
from contextlib import suppress
from dataclasses import is_dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

from fedfilt._checks import check_choice

FOLDERS = (  # of parts that an experiment (or, for sources, a device's own.toml) can name
    "aggregators",
    "clients",
    "datasets",
    "engines",
    "filters",
    "models",
    "partitions",
    "populations",
    "schedulers",
    "sources",
    "sparsifiers",
    "topologies",
)
READERS = "readers"  # of a device's own data; these have no folder: see `fedfilt.data.own`
# Methods that a part's class must have, by kind: a class without them is never called, whoever names it
METHODS = {
    "aggregators": ("__call__",),
    "clients": ("__call__",),
    "datasets": ("load",),
    "engines": ("train", "test", "__enter__", "__exit__"),
    "filters": ("__call__",),
    "models": (),  # layers, or torch's: see `check_kind`
    "partitions": ("__call__",),
    "populations": ("draw",),
    READERS: ("__call__",),
    "schedulers": ("__call__",),
    "sources": ("readings",),
    "sparsifiers": ("full_bytes", "__call__"),
    "topologies": ("__call__",),
}
PLAIN = ("engines", "models", READERS, "sources")  # kinds whose classes need not be dataclasses
TORCH = "torch.nn.modules.module", "Module"


def names(kind: str) -> list[str]:
    """Names of all parts of a kind ("filters", "aggregators", ...): the files in its folder."""
    package = import_module(f"fedfilt.{kind}")
    return sorted(m.name for m in pkgutil.iter_modules(package.__path__) if not m.name.startswith("_"))


def find(kind: str, name: str) -> Any:
    """Return the class called `name`: a file in the folder `kind`, or `module:Class` from anywhere.

    The reader of a file must check whether the file may name code: see `fedfilt._trust`.
    """
    if not isinstance(name, str):
        raise ValueError(f"name in {kind} must be a text, got {name!r}")
    if ":" in name:
        return _outside(kind, name)
    check_choice(f"name in {kind}", name, names(kind))
    try:
        module = import_module(f"fedfilt.{kind}.{name}")
    except (ImportError, SyntaxError) as error:
        raise ValueError(f"fedfilt/{kind}/{name}.py cannot be loaded: {error}") from error
    classes = _public(module)
    if len(classes) != 1:
        raise ValueError(f"{module.__name__} must define exactly one public class, found {len(classes)}")
    return classes[0]


def name_of(part: Any, kind: str) -> str:
    """The name for which `find` returns the class of a part."""
    made = type(part)
    package, _, name = made.__module__.rpartition(".")
    return name if package == f"fedfilt.{kind}" else f"{made.__module__}:{made.__qualname__}"


def figure(name: str) -> Any:
    """A function in `fedfilt.show.figures` by name: results draw themselves with it, and load Plotly only then."""
    return getattr(import_module("fedfilt.show.figures"), name)


def folder(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` for a folder of parts, so that `fedfilt.filters.Tikhonov` needs no list of names."""
    kind = package.rpartition(".")[2]

    def classes() -> dict[str, Any]:
        found = {}
        for name in names(kind):
            with suppress(ValueError):  # a broken file is reported when it is requested; the others work
                part = find(kind, name)
                found[part.__name__] = part
        return found

    def get(name: str) -> Any:
        if name == "__all__":
            return sorted(classes())
        if name.startswith("_") or name not in (found := classes()):
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return found[name]

    return get, lambda: sorted(classes())


def check_kind(kind: str, name: str, found: Any) -> Any:
    """The class behind a name, if it can be a part of this kind; nothing is called to find out.

    >>> import subprocess
    >>> check_kind("models", "subprocess:Popen", subprocess.Popen)
    Traceback (most recent call last):
    ValueError: subprocess:Popen cannot be one of the models: it must be a torch.nn.Module, or have the method layers
    """
    why = ""
    if not isinstance(found, type):
        why = f"it must be a class, got {type(found).__name__}"
    elif kind == "models":
        bases = {(base.__module__, base.__qualname__) for base in found.__mro__}
        if TORCH not in bases and not _has(found, "layers"):
            why = "it must be a torch.nn.Module, or have the method layers"
    elif kind not in PLAIN and not is_dataclass(found):
        why = "it must be a dataclass, so that its options can be saved with a run"
    elif missing := [method for method in METHODS[kind] if not _has(found, method)]:
        why = f"it must have the method {' and '.join(missing)}"
    if why:
        raise ValueError(f"{name} cannot be one of the {kind}: {why}")
    return found


def _has(kind: type, method: str) -> bool:
    """Whether a class defines a method; being callable as a class does not count."""
    return any(vars(base).get(method) is not None for base in kind.__mro__ if base is not object)


def _public(module: ModuleType) -> list[type]:
    """The public classes that a module defines, or re-exports in `__all__`."""
    if passed := getattr(module, "__all__", None):
        return [value for name in passed if isinstance(value := getattr(module, name), type)]
    return [
        value
        for key, value in vars(module).items()
        if isinstance(value, type) and value.__module__ == module.__name__ and not key.startswith("_")
    ]


def _outside(kind: str, name: str) -> Any:
    """Code outside the package."""
    return check_kind(kind, name, _imported(kind, name))


def function(key: str, named: Any) -> Callable[..., Any]:
    """A function of two arguments, given itself or as module:function; `key` is where it was given."""
    found = _imported(key, named) if isinstance(named, str) else named
    try:
        inspect.signature(found).bind("first", "second")
    except (TypeError, ValueError):
        raise ValueError(f"{key} must be a function of two arguments, got {named!r}") from None
    if isinstance(named, str) and not inspect.isfunction(found):
        raise ValueError(f"{key} must name a function, got {named!r}")
    return typing.cast(Callable[..., Any], found)


def _imported(kind: str, name: str) -> Any:
    """The object that module:name refers to. Only this searches the current folder, after all installed modules."""
    module_name, _, attribute = name.partition(":")
    if not all(word.isidentifier() for word in [*module_name.split("."), attribute]):
        raise ValueError(f"code for {kind} must be named module:Class, got {name!r}")
    if "" not in sys.path:
        sys.path.append("")
    try:
        return getattr(import_module(module_name), attribute)
    except (ImportError, AttributeError, SyntaxError) as error:
        hint = "; pip install 'fedfilt[torch]'" if getattr(error, "name", None) == "torch" else ""
        raise ValueError(f"cannot load {name!r} for {kind}: {error}{hint}") from error
