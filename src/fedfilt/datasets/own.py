import glob
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from fedfilt._types import Array
from fedfilt.data.own import Making, Public, public, read
from fedfilt.data.samples import FederatedData, Samples, flat
from fedfilt.data.store import DataFile, Store


@dataclass(frozen=True)
class Own(Making):
    """Every device has its own data, in files on its own disk; the server has none, see docs/own_data.md.

    To try out an experiment with all folders on this machine, set `folders`: with a pattern, device k has the k-th
    folder by name; with a list, the k-th in the list. `kinds` are the kinds of devices whose sensors differ; if shapes
    or rates differ, [[data.sensors]] describes each kind.

    >>> Own(shape=(2, 10), labels=("walk", "rest")).federated(3).count
    3
    """

    folders: str | tuple[str, ...] = ""  # of devices on this machine, to try an experiment out: a pattern, or a list
    kinds: tuple[str, ...] = ()  # of devices whose sensors differ
    public: Public = Public()  # the global test, if the server has one

    files: ClassVar[tuple[DataFile, ...]] = ()

    def load(self, store: Store) -> Samples:
        """There is nothing to load."""
        raise ValueError("own data stays on the devices: it is not loaded here, and not dealt by a partition")

    def federated(self, count: int) -> FederatedData:
        """The data of `count` devices: all of it if their folders are here, else only the public samples."""
        self.check_complete()
        if self.kinds and len(self.kinds) != count:
            raise ValueError(f"data.kinds must have {count} entries, one per device, got {len(self.kinds)}")
        if self.sensors and (not self.kinds or self.public.file):
            raise ValueError("data.sensors needs data.kinds, one per device, and no data.public, which has one shape")
        making = [self.of(kind) for kind in self.kinds] if self.sensors else [self] * count
        parts: list[tuple[Array, Array]] = []
        for folder, own in zip(self.places(count), making, strict=False):
            held = read(folder, own)
            parts += [held[0:2], held[2:4], held[4:6]]
        devices = len(parts)
        if self.public.file:
            parts.append(public(Path(self.public.file), self))
        if len({x.dtype for x, _ in parts if len(x)}) > 1:
            raise ValueError("the devices' data and data.public must be all uint8 or all floating-point numbers")
        unlike = len({one.shape for one in making}) > 1
        nothing = [np.empty((0, *one.shape), np.float32) for one in making]
        filled = flat([*nothing, *(x for x, _ in parts)]) if unlike else [x for x, _ in parts]
        filled = [x for x in filled if len(x)]
        x = np.concatenate(filled) if filled else flat(nothing)[0] if unlike else nothing[0]
        y = np.concatenate([np.empty(0, np.int64), *(y for _, y in parts)])
        ends = np.cumsum([len(y) for _, y in parts])
        rows = np.split(np.arange(len(y)), ends)[:-1] if parts else []
        everybody = rows[-1] if self.public.file else np.arange(0)
        none = tuple(np.arange(0) for _ in range(count))
        train, validation, test = (tuple(rows[i:devices:3]) if devices else none for i in range(3))
        classes, kinds = len(self.labels), self.kinds or None
        elsewhere = not self.folders
        found = FederatedData("own", x, y, classes, train, test, everybody, None, kinds, validation, elsewhere)
        if not unlike:
            return found
        made_by = np.repeat(np.repeat(self.kinds, 3)[: len(parts)], [len(y) for _, y in parts])
        return replace(found, shapes=tuple(one.shape for one in making), made_by=made_by)

    def places(self, count: int) -> list[Path]:
        """The folders of `count` devices on this machine; none if they are elsewhere."""
        if not self.folders:
            return []
        named = sorted(glob.glob(self.folders)) if isinstance(self.folders, str) else self.folders
        found = [Path(name) for name in named if Path(name).is_dir()]
        if len(found) != count:
            raise ValueError(
                f"data.folders = {self.folders!r} finds {len(found)} folders, but the graph has {count} devices"
            )
        return found
