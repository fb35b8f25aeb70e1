import glob
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from fedfilt._types import Array
from fedfilt.data.own import Making, Public, public, read
from fedfilt.data.samples import FederatedData, Samples
from fedfilt.data.store import DataFile, Store


@dataclass(frozen=True)
class Own(Making):
    """Every device has its own data, in files on its own disk; the server has none, see docs/own_data.md.

    `folders` names the devices' folders where all are on this machine, to try an experiment out: with a pattern, device
    k has the k-th by name; with a list, the k-th of that. `kinds` are the kinds of devices whose sensors differ.

    >>> Own(shape=(2, 10), labels=("walk", "rest")).federated(3).count
    3
    """

    folders: str | tuple[str, ...] = ""
    kinds: tuple[str, ...] = ()
    public: Public = Public()

    files: ClassVar[tuple[DataFile, ...]] = ()

    def load(self, store: Store) -> Samples:
        """There is nothing to load."""
        raise ValueError("own data stays on the devices: it is not fetched, and not dealt by a partition")

    def federated(self, count: int) -> FederatedData:
        """What `count` devices hold: all of it if their folders are here, else only the public samples."""
        self.check_complete()
        if self.kinds and len(self.kinds) != count:
            raise ValueError(f"data.kinds must be one per device, {count}, got {len(self.kinds)}")
        parts: list[tuple[Array, Array]] = []
        for folder in self.places(count):
            held = read(folder, self)
            parts += [held[0:2], held[2:4], held[4:6]]
        devices = len(parts)
        if self.public.file:
            parts.append(public(Path(self.public.file), self))
        if len({x.dtype for x, _ in parts if len(x)}) > 1:
            raise ValueError("the devices' data and data.public must be all uint8 or all floating-point numbers")
        filled = [x for x, _ in parts if len(x)]
        x = np.concatenate(filled) if filled else np.empty((0, *self.shape), np.float32)
        y = np.concatenate([np.empty(0, np.int64), *(y for _, y in parts)])
        ends = np.cumsum([len(y) for _, y in parts])
        rows = np.split(np.arange(len(y)), ends)[:-1] if parts else []
        everybody = rows[-1] if self.public.file else np.arange(0)
        none = tuple(np.arange(0) for _ in range(count))
        train, validation, test = (tuple(rows[i:devices:3]) if devices else none for i in range(3))
        classes, kinds = len(self.labels), self.kinds or None
        elsewhere = not self.folders
        return FederatedData("own", x, y, classes, train, test, everybody, None, kinds, validation, elsewhere)

    def places(self, count: int) -> list[Path]:
        """The folders of `count` devices on this machine; none if they are elsewhere."""
        if not self.folders:
            return []
        named = sorted(glob.glob(self.folders)) if isinstance(self.folders, str) else self.folders
        found = [Path(name) for name in named if Path(name).is_dir()]
        if len(found) != count:
            raise ValueError(
                f"data.folders = {self.folders!r} finds {len(found)} folders, the graph has {count} devices"
            )
        return found
