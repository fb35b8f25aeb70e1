"""G-Fedfilt on Flower: a strategy for Flower apps, and everything to run an experiment on real devices.

`GFedFilt` is the strategy. It needs the extra `fedfilt[flower]`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedfilt.flower.strategy import GFedFilt

__all__ = ["GFedFilt"]


def __getattr__(name: str) -> Any:
    if name != "GFedFilt":
        raise AttributeError(f"module 'fedfilt.flower' has no attribute {name!r}")
    from fedfilt.flower.strategy import GFedFilt

    return GFedFilt


def __dir__() -> list[str]:
    return __all__
