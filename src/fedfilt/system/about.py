"""What the edge server and a device must agree on, as short hashes that show which part differs."""

import hashlib
import json

from fedfilt._types import Table


def about(table: Table) -> str:
    """A short hash of every part of an experiment that a device must know.

    >>> about({"seed": 0, "model": {"name": "logistic"}})
    'model=c73d77c2 seed=5feceb66'
    """
    parts = {key: hashlib.sha256(json.dumps(value, sort_keys=True).encode()) for key, value in sorted(table.items())}
    return " ".join(f"{key}={digest.hexdigest()[:8]}" for key, digest in parts.items())


def differing(own: str, other: str) -> list[str]:
    """The parts in which two of them differ.

    >>> differing("data=12 seed=34", "data=12 seed=56")
    ['seed']
    """
    here, there = (dict(part.split("=", 1) for part in text.split() if "=" in part) for text in (own, other))
    return [key for key in sorted(here | there) if here.get(key) != there.get(key)]
