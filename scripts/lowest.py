"""Whether the lower bounds of pyproject.toml are true: the fast tests with the lowest versions that they allow.

`make lowest` runs this, in an environment of its own in build/lowest. What fedfilt asks for is held at its bound, and
everything else has the version of constraints.txt. A bound that cannot be had here, because an index lacks it, is
replaced with --have: --have torch==2.13.0
"""

import argparse
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / "build" / "lowest"
PINS = ROOT / "constraints.txt"
FREE = ("sympy",)  # not held: each torch asks for its own version
NOT_FOR_TESTS = ("bandit", "pip-audit")  # they ask for newer packages than fedfilt does
DEVELOPERS = (
    "test",
    "bench",
    "release",
    "rivals",
    "docs",
)  # extras whose packages are pinned in constraints.txt instead


def project() -> dict[str, Any]:
    """pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def extras() -> dict[str, list[Requirement]]:
    """What every extra asks for, apart from other extras."""
    found = project()["project"]["optional-dependencies"]
    every = {name: [Requirement(text) for text in texts] for name, texts in found.items()}
    return {name: [one for one in wanted if one.name != "fedfilt"] for name, wanted in every.items()}


def requirements() -> list[Requirement]:
    """What users are asked to have: to build fedfilt, to use it, and for its extras."""
    found = project()
    first = [Requirement(text) for text in [*found["build-system"]["requires"], *found["project"]["dependencies"]]]
    return first + [one for name, wanted in extras().items() if name not in DEVELOPERS for one in wanted]


def lowest(requirement: Requirement) -> str | None:
    """The least version of a requirement, None if it names none.

    >>> lowest(Requirement("rich>=13.9,<15"))
    '13.9'
    """
    found = [one.version for one in requirement.specifier if one.operator in (">=", "==", "~=")]
    return found[0] if found else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--have", action="append", default=[], metavar="NAME==VERSION", help="instead of the bound")
    parser.add_argument("--without", action="append", default=[], metavar="EXTRA", help="an extra to leave out")
    parser.add_argument("tests", nargs="*", help="for pytest; the fast tests if nothing is given")
    options = parser.parse_args()
    instead = {canonicalize_name(text.partition("==")[0]): text for text in options.have}
    bounds = {canonicalize_name(one.name): f"{one.name}=={lowest(one)}" for one in requirements()} | instead
    pins = {canonicalize_name(line.partition("==")[0]): line for line in PINS.read_text().splitlines() if "==" in line}
    pins = {name: line for name, line in pins.items() if name not in FREE}
    HOME.mkdir(parents=True, exist_ok=True)
    held = HOME / "constraints.txt"
    held.write_text("".join(f"{one}\n" for one in sorted((pins | bounds).values())))
    python = HOME / "venv" / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", HOME / "venv"], check=True)
    users = ",".join(name for name in extras() if name not in (*DEVELOPERS, *options.without))
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    install += ["--constraint", str(held)]
    subprocess.run([*install, "setuptools"], check=True)  # its bound is tried as well
    tools = [str(one) for one in extras()["test"] if one.name not in NOT_FOR_TESTS]
    subprocess.run([*install, "--no-build-isolation", "--editable", f"{ROOT}[{users}]", *tools], check=True)
    found = subprocess.check_output([python, "-m", "pip", "list", "--format", "freeze"], text=True)
    installed = {canonicalize_name(name): version for name, version in re.findall(r"^(\S+)==(\S+)$", found, re.M)}
    print(", ".join(f"{name} {installed[name]}" for name in sorted(bounds) if name in installed), flush=True)
    tests = options.tests or ["-n", "auto", "--dist", "loadgroup", "-m", "not slow"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    env.pop("PYTHONPATH", None)
    sys.exit(subprocess.run([python, "-m", "pytest", *tests], cwd=ROOT, env=env, check=False).returncode)


if __name__ == "__main__":
    main()
