"""The transport over Flower: an engine whose devices are the nodes of a Flower Grid, real or simulated.

`engine` is the server's side, `device` the device's; `messages` is what travels between them, `exchange` how. `nodes`
and `identity` say which node is which device. `_compat` holds everything that is not Flower's public API.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedfilt.engines.flower.engine import Flower

__all__ = ["Flower"]


def __getattr__(name: str) -> Any:
    if name != "Flower":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from fedfilt.engines.flower.engine import Flower
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] != "flwr":
            raise
        from fedfilt.engines.flower._compat import MISSING

        raise ValueError(f"engine.name = 'flower': {MISSING}") from missing
    return Flower
