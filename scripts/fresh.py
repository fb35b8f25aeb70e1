"""What a stranger gets: the wheel of dist/ in a fresh environment of every Python found, and its first commands.

`make fresh` runs this after `make wheels`. Packages are downloaded once. Everything after that happens without a
compiler, in a folder that is not the clone, and (for root) without a network and as the user nobody. Prints a table.
"""

import argparse
import json
import os
import pwd
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
VERSIONS = ("3.11", "3.12", "3.13")
NOBODY = "nobody"
TRAIN_WITH_TORCH = """
import numpy as np
from torch import nn
import fedfilt

rng = np.random.default_rng(0)
x = rng.standard_normal((3, 40, 5)).astype(np.float32)
graph = fedfilt.Graph.from_rooms(["home"] * 3)
module = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2))
fitted = fedfilt.fit(list(zip(x, (x[:, :, 0] > 0).astype(int))), module, graph, rounds=20, learning_rate=0.3)
assert fitted.accuracy["local"].mean() > 0.7, fitted.accuracy
"""
OWN_DATA = """
from pathlib import Path

for device in range(4):
    folder = Path(f"homes/device-{device:03d}/data")
    folder.mkdir(parents=True)
    rows = [f"{row / 10},{10 * (row // 60 % 2) + row * 7 % 5},{'ab'[row // 60 % 2]}" for row in range(360)]
    (folder / "recording.csv").write_text("\\n".join(["time,sensor,label", *rows]))
Path("homes/experiment.toml").write_text('''
rounds = 2
data = {name = "own", shape = [1, 10], labels = ["a", "b"], rate = 10.0, folders = "homes/device-*"}
samples = {train = 30}
model = {name = "mlp", hidden = 8}
graph = {name = "rooms", rooms = 1, devices = 4}
''')
"""
LOOPBACK = """
import fcntl, socket, struct
with socket.socket() as one:
    fcntl.ioctl(one, 0x8914, struct.pack("16sh14x", b"lo", 1))
"""
FACTS = """
import os, pwd, shutil, socket
links = [name for _, name in socket.if_nameindex()]
found = shutil.which("cc") or shutil.which("gcc") or shutil.which("g++")
user, network = pwd.getpwuid(os.getuid()).pw_name, "no network" if links == ["lo"] else "network left on (not root)"
print(f"user {user}, {network}, {f'compiler {found}' if found else 'no compiler'}")
"""


class Place(NamedTuple):
    """A folder of its own for one Python."""

    home: Path
    python: str  # the interpreter, as it is called from inside
    prefix: list[str]  # before every command from inside

    def run(self, *command: object, cwd: str = "user") -> str:
        """What a command says that runs inside; an error if it fails."""
        words = [*self.prefix, *map(str, command)]
        done = subprocess.run(words, cwd=self.home / cwd, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(map(str, command))[:200]} failed:\n{done.stdout}{done.stderr}")
        return done.stdout


def interpreter(version: str) -> Path | None:
    """The Python of a version: of pyenv, or on the PATH."""
    folder = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = sorted(folder.glob(f"{version}.*/bin/python{version}"))
    which = shutil.which(f"python{version}")
    return found[-1] if found else Path(which) if which else None


def place(python: Path) -> Place:
    """A fresh folder for a Python, and how commands are started in it."""
    home = Path(tempfile.mkdtemp(prefix="fedfilt-fresh-"))
    home.chmod(0o755)
    for name in ("user", "wheels", "python"):
        (home / name).mkdir()
    where = {"PATH": home / "user" / "env" / "bin", "HOME": home / "user", "LANG": "C.UTF-8", "TMPDIR": "/tmp"}
    where |= dict.fromkeys(("CC", "CXX"), "no-such-compiler")
    inside, mount = python, ""
    if not os.getuid():
        shutil.chown(home / "user", NOBODY, pwd.getpwnam(NOBODY).pw_gid)
        # A Python below somebody's home folder is not there for others; it gets a place where it is
        base = Path(subprocess.check_output([python, "-c", "import sys; print(sys.base_prefix)"], text=True).strip())
        if any(not folder.stat().st_mode & 0o001 for folder in (base, *base.parents)):
            mount, inside = f"mount --bind '{base}' '{home / 'python'}' && ", home / "python" / "bin" / python.name
            where["LD_LIBRARY_PATH"] = home / "python" / "lib"
    clean = ["/usr/bin/env", "-i", *(f"{name}={value}" for name, value in where.items())]
    if os.getuid():
        return Place(home, str(inside), clean)
    user = pwd.getpwnam(NOBODY)
    up = f"{shlex.quote(sys.executable)} -c {shlex.quote(LOOPBACK)} && "  # processes of a deployment talk on it
    drop = f'exec setpriv --reuid {user.pw_uid} --regid {user.pw_gid} --clear-groups -- "$@"'
    cut = ["unshare", "--net", "--mount", "sh", "-c", mount + up + drop, "sh"]
    return Place(home, str(inside), [*cut, *clean])


def download(here: Place, version: str, wheel: Path, extras: str) -> int:
    """Fetch the packages that a fresh environment needs; their bytes."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--only-binary", ":all:", "--python-version", version, "--dest", str(here.home / "wheels")]
    done = subprocess.run([*command, f"{wheel}{extras}"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"packages for Python {version} cannot be fetched:\n{done.stderr}")
    return size(here.home / "wheels")


def size(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())


def first_block(page: Path) -> str:
    """The first block of Python of a page."""
    found = re.search(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    assert found, f"{page} shows no Python"
    return found[1]


def tried(version: str, wheel: Path, *extras: str) -> dict[str, str]:
    """A row of the table."""
    python = interpreter(version)
    assert python
    here = place(python)
    row = {"Python": f"{version} with {', '.join(extras)}"}
    wanted = f"[{','.join(extras)}]"
    try:
        start = time.monotonic()
        row["download"] = f"{download(here, version, wheel, wanted) / 1e6:.0f} MB"
        row["download"] += f", {time.monotonic() - start:.0f} s"
        here.run(here.python, "-m", "venv", "env")
        env = here.home / "user" / "env"
        packages = env / "lib" / f"python{version}" / "site-packages"
        before, start = size(packages), time.monotonic()
        options = ["--quiet", "--disable-pip-version-check", "--no-index", "--find-links", here.home / "wheels"]
        here.run(env / "bin" / "pip", "install", *options, f"{here.home / 'wheels' / wheel.name}{wanted}")
        row["install"] = f"{(size(packages) - before) / 1e6:.0f} MB, {time.monotonic() - start:.0f} s"
        print(f"Python {version}: {here.run(env / 'bin' / 'python', '-c', FACTS).strip()}", flush=True)
        for name, command in commands(env / "bin", extras).items():
            start = time.monotonic()
            said = here.run(*command)
            row[name] = f"{time.monotonic() - start:.1f} s"
            if "--version" in command and said != f"fedfilt {wheel.name.split('-')[1]}\n":
                raise RuntimeError(f"{name} says {said!r}")
            if name == "info" and not json.loads(said)["training"].startswith("native core"):
                raise RuntimeError(f"the native core of the wheel is not used: {json.loads(said)['why']}")
    finally:
        shutil.rmtree(here.home)
    return row


def commands(binaries: Path, extras: Sequence[str]) -> dict[str, Sequence[object]]:
    """What is run in an environment, by the name of its column."""
    fedfilt, python = binaries / "fedfilt", binaries / "python"
    found: dict[str, Sequence[object]] = {
        "--version": (fedfilt, "--version"),
        "-m --version": (python, "-m", "fedfilt", "--version"),
        "info": (fedfilt, "info", "--json"),
        "README block": (python, "-c", first_block(ROOT / "README.md")),
    }
    if "digits" in extras:
        found |= {"demo": (fedfilt, "demo"), "report": (fedfilt, "report", "demo/mnist_2")}
    if "torch" in extras:
        found["own torch module"] = (python, "-W", "error", "-c", TRAIN_WITH_TORCH)
    if "flower" in extras:
        found |= {
            "own data": (python, "-c", OWN_DATA),
            "deploy write": (fedfilt, "deploy", "write", "homes/experiment.toml"),
            "deploy all": (fedfilt, "deploy", "all", "building"),
            "deploy status": (fedfilt, "deploy", "status"),
            "deploy renew": (fedfilt, "deploy", "renew"),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="folder of the wheels")
    parser.add_argument(
        "--torch", metavar="VERSION", default="", help="a Python, such as 3.11, to try torch in as well"
    )
    options = parser.parse_args()
    wheels = list(options.dist.glob(f"fedfilt-*-py3-none-*{os.uname().machine}.whl"))
    if len(wheels) != 1:
        raise RuntimeError(
            f"{options.dist} must hold one wheel for {os.uname().machine}, not {len(wheels)}; make wheels"
        )
    found = [version for version in VERSIONS if interpreter(version)]
    if missing := set(VERSIONS) - set(found):
        print(f"not tried, as it is not here: Python {', '.join(sorted(missing))}")
    if not found:
        raise RuntimeError(f"there is none of Python {', '.join(VERSIONS)}")
    newest = found[-1]
    rows = [tried(version, wheels[0].resolve(), "digits") for version in found]
    rows.append(tried(newest, wheels[0].resolve(), "flower"))
    if options.torch:
        rows.append(tried(options.torch, wheels[0].resolve(), "digits", "torch"))
    names = list(dict.fromkeys(name for row in rows for name in row))
    print("\n" + "\n".join(f"| {' | '.join(cells)} |" for cells in (names, ["---"] * len(names))))
    for row in rows:
        print(f"| {' | '.join(row.get(name, '') for name in names)} |")


if __name__ == "__main__":
    try:
        main()
    except RuntimeError as error:
        sys.exit(str(error))
