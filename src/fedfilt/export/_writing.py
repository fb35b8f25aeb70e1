"""What all formats share: which runs, where to, and nothing is overwritten unless requested."""

import os
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from fedfilt._checks import check_choice
from fedfilt._files import write_atomically
from fedfilt._parts import names
from fedfilt.export._models import Models, models_in
from fedfilt.runs.numbers import plain
from fedfilt.runs.records import Records, find_runs

Watch = Callable[[Sequence[Any]], Iterable[Any]]  # gives what it is given, one by one, and shows how far it is


class Wanted(NamedTuple):
    """Options besides the runs and the target."""

    title: str = "fedfilt"  # of all runs together
    devices: frozenset[int] | None = None  # None: all
    force: bool = False  # overwrite
    watch: Watch = iter


def export(
    form: str,
    paths: Sequence[Path],
    out: str = "",
    devices: str = "",
    force: bool = False,
    watch: Watch = iter,
) -> list[str]:
    """Write runs (run folders, or folders that contain some) in a format, and return where. Nothing is half-written.

    Without `out`, that is in the folder, or in the current folder if there are several. `devices` are numbers separated
    by commas, "all" or "none".
    """
    check_choice("format", form, names("export"))
    for path in paths:
        if not path.is_dir():
            raise ValueError(f"there is no run folder {path}")
    try:
        module = import_module(f"fedfilt.export.{form}")
        if hasattr(module, "content"):
            return _write_models(module, paths, out, _devices(devices or "all"), force, watch)
        chosen = _devices(devices or ("all" if module.DEVICES else "none"))
        usual = module.OUT and str((paths[0] if len(paths) == 1 else Path()) / module.OUT)
        wanted = Wanted(paths[0].resolve().name, chosen, force, watch)
        return [module.write(_readable(paths), out or usual, wanted)]
    except ModuleNotFoundError as error:
        needed = (error.name or form).partition(".")[0]
        raise ValueError(f"--{form} needs {needed}: pip install 'fedfilt[{form}]'") from None


def check_free(pairs: Sequence[tuple[Path, Path]], force: bool) -> None:
    """Refuse to overwrite files, or to follow links below a folder that may be somebody else's; then make room.

    Pairs are (that folder, the file).
    """
    for root, path in pairs:
        if path.resolve() != root.resolve() / path.relative_to(root):
            raise ValueError(f"{path} is a link or behind one; choose another place with --out")
        if path.is_dir():
            raise ValueError(f"{path} is a folder; choose a file with --out")
        if os.path.lexists(path) and not force:
            raise ValueError(f"{path} exists already; --force replaces it, --out writes elsewhere")
    for _, path in pairs:
        path.parent.mkdir(parents=True, exist_ok=True)


def _devices(text: str) -> frozenset[int] | None:
    """Devices from a comma-separated list; None means all.

    >>> sorted(_devices("3,5")), _devices("all"), _devices("none")
    ([3, 5], None, frozenset())
    """
    if text in ("all", "none"):
        return None if text == "all" else frozenset()
    try:
        return frozenset(int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"device must be device numbers separated by commas, all or none, got {text!r}") from None


def _readable(paths: Sequence[Path]) -> list[Records]:
    """The runs in the folders that have finished a round; ValueError if there are none."""
    runs = find_runs(paths)
    if not any(run.rounds for run in runs):
        why = "; ".join(dict.fromkeys(note for run in runs for note in run.notes))
        raise ValueError(f"nothing to export: {why}")
    return [run for run in runs if run.rounds]


def places(titles: Iterable[str]) -> list[str]:
    """A distinct file or folder name for each title.

    >>> places(["mu=1", "a/b", "a b"])
    ['mu=1', 'a-b', 'a-b-2']
    """
    found: dict[str, None] = {}
    for name in map(plain, titles):
        unlike = (name if number == 1 else f"{name}-{number}" for number in count(1))
        found[next(one for one in unlike if one not in found)] = None
    return list(found)


def _write_models(
    module: Any, paths: Sequence[Path], out: str, devices: frozenset[int] | None, force: bool, watch: Watch
) -> list[str]:
    """Write every model as a separate file: into its run folder or, with `out`, there."""
    found = [one for path in paths for one in models_in(path, devices)]
    many = len(found) > 1
    jobs: list[tuple[Models, str, Path]] = []
    written, pairs = [], []
    for models, title in zip(found, places(one.title for one in found), strict=True):
        folder = Path(out) / (title if many else "") if out else models.folder / module.OUT
        files = [folder / f"{name}{module.SUFFIX}" for name in places(models.files)]
        if out.endswith(module.SUFFIX) and len(files) == 1 and not many:
            files = [Path(out)]
        pairs += [(Path(out).parent if out else models.folder, file) for file in files]
        jobs += [(models, name, file) for name, file in zip(models.files, files, strict=True)]
        written.append(str(files[0]) if len(files) == 1 else f"{len(files)} models in {folder}")
    check_free(pairs, force)
    for models, name, file in watch(jobs):
        write_atomically(file, module.content(models.read(name)))
    return written
