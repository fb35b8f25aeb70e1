"""Telling runs apart: the keys in which they differ, a name for each, and a look of its own."""

import colorsys
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from fedfilt._types import Array, Table
from fedfilt.runs.config import PLACE
from fedfilt.runs.rules import Look, look

RULE = ("aggregator", "client")  # tables that the name of a rule describes
LONGEST = 40  # letters of a value in a name

# --- keys and names -----------------------------------------------------------------------------------------------


def differing(tables: Sequence[Table]) -> dict[str, list[Any]]:
    """The keys in which experiments differ, except the seed and where they run, with each table's value or None.

    >>> differing([{"seed": 0, "training": {"learning_rate": 0.1}}, {"seed": 1, "training": {"learning_rate": 0.2}}])
    {'training.learning_rate': [0.1, 0.2]}
    """
    flat = [
        dict(_flat({key: value for key, value in table.items() if key not in ("seed", *PLACE)})) for table in tables
    ]
    keys = dict.fromkeys(key for table in flat for key in table)
    found = {key: [table.get(key) for table in flat] for key in keys}
    return {key: values for key, values in found.items() if any(value != values[0] for value in values)}


def besides(tables: Sequence[Table]) -> dict[str, list[Any]]:
    """The keys in which experiments differ, except the seed, where they run, and the rule."""
    return {key: values for key, values in differing(tables).items() if key.split(".")[0] not in RULE}


def labels(runs: Sequence[tuple[str, Table]]) -> list[str]:
    """A name for each of several runs: its rule, and the values of the fewest keys that tell all of them apart.

    >>> slow, fast = {"training": {"learning_rate": 0.01}}, {"training": {"learning_rate": 0.1}}
    >>> labels([("fedavg", slow), ("mu=1", slow), ("mu=1", fast)])
    ['fedavg, learning_rate=0.01', 'mu=1, learning_rate=0.01', 'mu=1, learning_rate=0.1']
    """
    found = differing([table for _, table in runs])
    # Different parts first, then their options; keys that the rule's name may already describe come last
    order = sorted(found, key=lambda key: (key.split(".")[0] in RULE, not key.endswith(".name")))
    parts: list[tuple[str, ...]] = [(rule,) for rule, _ in runs]
    chosen: list[str] = []
    for key in order:
        longer = [(*part, _text(value)) for part, value in zip(parts, found[key], strict=True)]
        if len(set(longer)) > len(set(parts)):
            parts, chosen = longer, [*chosen, key]
    words = short(chosen)
    return [
        ", ".join([part[0], *(f"{words[key]}={value}" for key, value in zip(chosen, part[1:], strict=True) if value)])
        for part in parts
    ]


def short(keys: Iterable[str]) -> dict[str, str]:
    """Dotted keys, shortened to the last words that distinguish them.

    >>> short(["data.name", "training.learning_rate", "client.weight", "scheduler.weight"])
    {'data.name': 'data', 'training.learning_rate': 'learning_rate', 'client.weight': 'client.weight', \
'scheduler.weight': 'scheduler.weight'}
    """
    keys = list(keys)
    last = {key: key.removesuffix(".name").rpartition(".")[2] for key in keys}
    return {key: word if list(last.values()).count(word) == 1 else key for key, word in last.items()}


def rising(label: str) -> list[tuple[str, float]]:
    """A sort key for names by which values rise like numbers.

    >>> sorted(["mu=1, rate=0.2", "mu=1, rate=1e-05", "mu=1, rate=0.05"], key=rising)
    ['mu=1, rate=1e-05', 'mu=1, rate=0.05', 'mu=1, rate=0.2']
    """
    found = re.findall(r"([^=]*=?)(\d*\.?\d+(?:e[+-]?\d+)?(?=,|$))?", label)
    return [(text, float(number or 0)) for text, number in found]


def told(values: Sequence[Any]) -> str:
    """The values that runs have for a key, each once.

    >>> told([0.2, 0.05, 0.2, None])
    '0.05, 0.2, none'
    """
    numbers = all(isinstance(value, int | float) for value in values if value is not None)
    rank = (lambda value: (value is None, value or 0)) if numbers else (lambda value: (value is None, _text(value)))
    return ", ".join(dict.fromkeys(_text(value) or "none" for value in sorted(values, key=rank)))


def _flat(table: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


def _text(value: Any) -> str:
    """A value as part of a name; "" for a key that a run does not have."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:g}"
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


# --- looks --------------------------------------------------------------------------------------------------------

DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
TRIANGLES = tuple(f"triangle-{way}" for way in ("up", "down", "left", "right"))
FILLED = ("circle", "square", "diamond", "cross", "x", *TRIANGLES, "pentagon", "hexagon", "star")
ODD = ("hexagram", "star-square", "star-diamond", "hourglass", "bowtie", "diamond-tall", "diamond-wide", "octagon")
SHAPES = (*FILLED, *ODD, *(f"{shape}-open" for shape in FILLED))
APART = 16.0  # least distance between two colours in CIELAB
PALEST = 76.0  # CIELAB lightness of a colour that is still visible on white


def looks(rules: Mapping[str, str]) -> dict[str, Look]:
    """A look for every name, given its rule: the first name of a rule gets the rule's look, the others get shades.

    No two share a colour, nor a mark as long as there are enough marks. If a rule occurs more than once, the dash tells
    its runs apart.

    >>> found = looks({"mu=1, learning_rate=0.1": "mu=1", "mu=1, learning_rate=0.2": "mu=1"})
    >>> [one.dash for one in found.values()], len({one.colour for one in found.values()})
    (['solid', 'dash'], 2)
    """
    found: dict[str, Look] = {}
    seen: dict[str, int] = {}
    taken: list[Array] = []
    for name, rule in rules.items():
        own, number = look(rule), seen.get(rule, 0)
        seen[rule] = number + 1
        colour = _free([own.colour, _mixed(own.colour, 255, 0.45), _mixed(own.colour, 0, 0.5)], taken)
        taken.append(_lab(colour))
        several = list(rules.values()).count(rule) > 1
        dash = DASHES[number % len(DASHES)] if several else own.dash
        found[name] = Look(colour, dash, _mark(own.symbol, dash, list(found.values())))
    return found


def _mark(own: str, dash: str, others: Sequence[Look]) -> str:
    """The rule's own mark if it is free, else any free mark, else one that is free with this dash."""
    marks = {other.symbol for other in others}
    dashed = {other.symbol for other in others if other.dash == dash}
    free = (shape for taken in (marks, dashed) for shape in (own, *SHAPES) if shape not in taken)
    return next(free, own)


def _free(wanted: Sequence[str], taken: Sequence[Array]) -> str:
    """The first wanted colour that differs enough from those taken, else one of many that is furthest from them."""

    def distance(colour: str) -> float:
        return min((float(np.linalg.norm(_lab(colour) - other)) for other in taken), default=np.inf)

    near = (colour for colour in wanted if _lab(colour)[0] <= PALEST and distance(colour) >= APART)
    return next(near, None) or max(_many(), key=distance)


def _many() -> list[str]:
    """Colours of all hues, in three lightnesses, that are visible on white."""
    found = []
    for hue, lightness, colourful in product(range(24), (0.28, 0.42, 0.58), (0.9, 0.45)):
        rgb = colorsys.hls_to_rgb(hue / 24, lightness, colourful)
        found.append("#" + "".join(f"{round(255 * value):02X}" for value in rgb))
    return [colour for colour in found if _lab(colour)[0] <= PALEST]


def _mixed(colour: str, other: int, share: float) -> str:
    """A colour mixed with a share of white (255) or black (0)."""
    return "#" + "".join(f"{round((1 - share) * value + share * other):02X}" for value in bytes.fromhex(colour[1:]))


def _lab(colour: str) -> Array:
    """A colour in CIELAB, where distances roughly match what people see."""
    rgb = np.frombuffer(bytes.fromhex(colour[1:]), np.uint8) / 255
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ linear / [0.9505, 1.0, 1.089]
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])
