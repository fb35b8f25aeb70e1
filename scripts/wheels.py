"""The files of a release in dist/: the source archive, and a wheel for this machine's architecture and for aarch64.

`make wheels` runs this. Both wheels are built from the source archive and checked by auditwheel, twine and a look
inside; the wheel for aarch64 is cross-built, and its native core is tested under qemu. What that needs (on Debian: a
compiler, qemu, an arm64 Python) is unpacked into build/aarch64 if it is missing; see tests/aarch64.py.
"""

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import aarch64  # noqa: E402

WORK, DIST = ROOT / "build" / "wheels", ROOT / "dist"
ARM = "aarch64"


def tool(*words: object, env: dict[str, str] | None = None) -> str:
    """What a tool of this Python says; an error if it fails. Tools find those that came with them on the PATH."""
    env = {**(env or os.environ), "NO_COLOR": "1", "COLUMNS": "300"}
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"
    command = [sys.executable, "-m", *map(str, words)]
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, words))} failed:\n{done.stdout}")
    return done.stdout


def sources(into: Path) -> tuple[Path, Path]:
    """The source archive, and the folder into which it was unpacked."""
    tool("build", "--sdist", "--no-isolation", "--outdir", into, ROOT)
    [archive] = into.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(into, filter="data")
    return archive, into / archive.name.removesuffix(".tar.gz")


def built(source: Path, into: Path, env: dict[str, str]) -> Path:
    """The wheel of unpacked sources, as the compiler of an environment makes it."""
    shutil.rmtree(source / "build", ignore_errors=True)
    tool("build", "--wheel", "--no-isolation", "--outdir", into, source, env=env)
    [wheel] = into.glob("*.whl")
    return wheel


def without_compiler(source: Path, into: Path) -> Path:
    """The wheel where there is no compiler: it has no core and fits everywhere."""
    missing = dict.fromkeys(("CC", "CXX", "LDSHARED", "LDCXXSHARED"), "no-such-compiler")
    wheel = built(source, into, {**os.environ, **missing})
    if not wheel.name.endswith("-py3-none-any.whl"):
        raise RuntimeError(f"without a compiler the wheel is {wheel.name}")
    return wheel


def audited(wheel: Path, into: Path) -> Path:
    """The wheel under the oldest manylinux that it fits. It may need no library but those of the C library."""
    said = tool("auditwheel", "repair", "--wheel-dir", into, wheel)
    [found] = into.glob(f"*{wheel.stem.rpartition('_')[2]}.whl")
    if "manylinux" not in found.name:
        raise RuntimeError(f"{wheel.name} fits no manylinux:\n{said}")
    return found


def faults(wheel: Path) -> list[str]:
    """What is wrong with what a wheel holds; [] if nothing is."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    package = [path for path in (ROOT / "src" / "fedfilt").rglob("*") if path.is_file()]
    beside = (".cpp", ".h", ".so", ".pyc")  # sources of the core, and what is made from sources
    wanted = {str(path.relative_to(ROOT / "src")) for path in package if path.suffix not in beside}
    wanted.add("fedfilt/native/core.so")
    strange = {name for name in names if not re.match(r"fedfilt/|fedfilt-[^/]+\.dist-info/", name)}
    strange |= {name for name in names if name.endswith((".cpp", ".h", ".pyc"))}
    return [f"lacks {name}" for name in sorted(wanted - names)] + [f"has {name}" for name in sorted(strange)]


def tested_on_arm(wheel: Path, into: Path) -> str:
    """Tests of the native core of an unpacked wheel in the emulated Python; their last line."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(into)
    info = subprocess.check_output([*aarch64.python(into), "-m", "fedfilt", "info"], text=True)
    if "native core, neon" not in info:
        raise RuntimeError(f"the wheel for aarch64 has no core:\n{info}")
    done = aarch64.native_tests(into, "test_numpy.py", "-k", "not batch1")
    if done.returncode:
        raise RuntimeError(f"native tests on aarch64 failed:\n{done.stdout}{done.stderr}")
    return done.stdout.strip().splitlines()[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--here-only", action="store_true", help="no wheel for aarch64: this machine's alone")
    parser.add_argument("--dist", type=Path, default=DIST, help="where the files go; older ones there are removed")
    parser.add_argument("--untested", action="store_true", help="do not test the wheel for aarch64 under qemu: minutes")
    options = parser.parse_args()
    cross = platform.machine() != ARM and not options.here_only
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    archive, source = sources(WORK / "source")
    print(f"{archive.name}: {archive.stat().st_size / 1e3:.0f} kB", flush=True)
    print(f"without a compiler: {without_compiler(source, WORK / 'any').name}", flush=True)
    environments = {platform.machine(): dict(os.environ)}
    if cross:
        aarch64.HOME.mkdir(parents=True, exist_ok=True)
        aarch64.set_up(torch=False)
        environments[ARM] = aarch64.cross()
    wheels = []
    for machine, env in environments.items():
        wheels.append(audited(built(source, WORK / machine, env), WORK / "audited"))
        if wrong := faults(wheels[-1]):
            raise RuntimeError(f"{wheels[-1].name} " + ", ".join(wrong))
        print(f"{wheels[-1].name}: {wheels[-1].stat().st_size / 1e3:.0f} kB", flush=True)
    print(tool("twine", "check", "--strict", archive, *wheels).strip())
    if cross and not options.untested:
        print(f"native tests of the wheel for aarch64, under qemu: {tested_on_arm(wheels[-1], WORK / 'arm')}")
    options.dist.mkdir(parents=True, exist_ok=True)
    for old in [*options.dist.glob("fedfilt-*.whl"), *options.dist.glob("fedfilt-*.tar.gz")]:
        old.unlink()
    for made in (archive, *wheels):
        shutil.copy(made, options.dist)
    print(f"ready in {options.dist}")


if __name__ == "__main__":
    try:
        main()
    except RuntimeError as error:
        sys.exit(str(error))
