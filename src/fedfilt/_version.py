"""The version of fedfilt, and of installed packages."""

from importlib.metadata import PackageNotFoundError, version

__version__ = "0.1.0"


def version_of(package: str) -> str | None:
    """The version of an installed package, None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
