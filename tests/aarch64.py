"""The native core on 64-bit ARM, on a machine that is none: cross-built, read, and run under qemu.

`make aarch64` runs this on Debian. What is missing (cross compiler, qemu, an arm64 Python and its wheels) is unpacked
into build/aarch64; nothing is installed.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / "build" / "aarch64"
TOOLS, SYSTEM = HOME / "tools", HOME / "system"
SITE, TORCH = HOME / "site-packages", HOME / "torch" / "site-packages"  # by this name, Hypothesis leaves them alone
CPU = "cortex-a72"  # that of a Raspberry Pi 4: NEON and nothing newer
PACKAGES = ["numpy", "scipy", "threadpoolctl", "safetensors", "rich", "typer", "plotly", "tomli-w"]
PACKAGES += ["flwr", "cryptography", "pytest", "hypothesis"]
WITH_TORCH = ["torch==2.8.0", "filelock", "fsspec", "jinja2", "markupsafe", "mpmath", "networkx", "sympy"]
WITH_TORCH += ["typing-extensions"]  # the wheel of this torch has no CUDA; the pinned one is four times as large
LONG = 3600.0  # seconds that a set of tests may take; ten minutes are usual
EMULATED = "FEDFILT_EMULATED"  # holds the command of the emulated Python in the test that plays rounds with it


# ------------------------------------------------------------------------------------------------- what is needed


def compiler() -> str | None:
    """The C++ compiler for aarch64, with its options; None if there is none."""
    if found := shutil.which("aarch64-linux-gnu-g++"):
        return found
    own = TOOLS / "usr" / "bin" / "aarch64-linux-gnu-g++"
    return f"{own} --sysroot={TOOLS}" if own.exists() else None


def emulator() -> str | None:
    """qemu for aarch64; None if there is none."""
    own = TOOLS / "usr" / "bin" / "qemu-aarch64-static"
    return shutil.which("qemu-aarch64") or shutil.which(own.name) or (str(own) if own.exists() else None)


def interpreter() -> Path | None:
    """The arm64 Python; None if there is none."""
    found = [path for path in SYSTEM.glob("usr/bin/python3.*") if re.fullmatch(r"python3\.\d+", path.name)]
    return found[0] if found else None


def python(source: Path, *more: Path) -> list[str]:
    """The command that starts the emulated Python, with the package of a folder that `build` filled."""
    paths = os.pathsep.join(map(str, (source, SITE, *more)))
    return [str(emulator()), "-cpu", CPU, "-L", str(SYSTEM), "-E", f"PYTHONPATH={paths}", str(interpreter())]


def environment() -> dict[str, str]:
    """An environment in which the unpacked tools find each other and their libraries."""
    own = TOOLS / "usr"
    libraries = os.pathsep.join(map(str, own.glob("lib/*-linux-gnu")))
    return {**os.environ, "PATH": f"{os.environ['PATH']}{os.pathsep}{own / 'bin'}", "LD_LIBRARY_PATH": libraries}


def cross() -> dict[str, str]:
    """An environment in which Python builds for aarch64; see `sysconfig.get_platform`."""
    found = compiler()
    assert found
    tools = dict.fromkeys(("CC", "CXX"), found) | dict.fromkeys(("LDSHARED", "LDCXXSHARED"), f"{found} -shared")
    return {**environment(), **tools, "_PYTHON_HOST_PLATFORM": "linux-aarch64"}


def set_up(torch: bool) -> None:
    """Fetch what is missing."""
    if not (compiler() and emulator()):
        print("fetching a cross compiler and qemu", flush=True)
        unpack(TOOLS, [], ["g++-aarch64-linux-gnu", "qemu-user-static"])
    if not interpreter():
        print("fetching an arm64 Python", flush=True)
        system = ["APT::Architecture=arm64", f"Dir::State::status={os.devnull}"]  # as if nothing were installed
        unpack(SYSTEM, system, ["python3-minimal", "libpython3-stdlib", "libstdc++6"])
    if not SITE.exists():
        print("fetching wheels", flush=True)
        install(SITE, PACKAGES)
    if torch and not TORCH.exists():
        print("fetching torch", flush=True)
        install(TORCH, ["--no-deps", *WITH_TORCH])  # pip would take what torch needs on this machine


def unpack(target: Path, options: list[str], packages: list[str]) -> None:
    """Unpack Debian packages, and those that they need, into a folder."""
    lists, cache = HOME / "apt" / "lists", HOME / "apt" / target.name
    for folder in (lists / "partial", cache / "archives" / "partial"):
        folder.mkdir(parents=True, exist_ok=True)
    here = subprocess.check_output(["dpkg", "--print-architecture"], text=True).strip()
    common = [f"Dir::State::lists={lists}/", f"Dir::Cache={cache}/", f"APT::Architectures={{{here};arm64}}"]
    common += ["Debug::NoLocking=1", "APT::Sandbox::User=", *options]
    apt = ["apt-get", "-qq", *(word for option in common for word in ("-o", option))]
    subprocess.run([*apt, "update"], check=True)
    subprocess.run([*apt, "install", "--download-only", "--no-install-recommends", "-y", *packages], check=True)
    part = fresh(target.with_suffix(".part"))
    for package in sorted((cache / "archives").glob("*.deb")):
        subprocess.run(["dpkg-deb", "--extract", package, part], check=True)
    if not (part / "lib").exists():
        (part / "lib").symlink_to("usr/lib")
    part.rename(target)
    shutil.rmtree(cache)


def fresh(folder: Path) -> Path:
    """A folder without what an attempt that was cut short left in it."""
    shutil.rmtree(folder, ignore_errors=True)
    return folder


def install(target: Path, packages: list[str]) -> None:
    """Install the aarch64 wheels of packages, in the versions that fedfilt is tested with."""
    pins = (ROOT / "constraints.txt").read_text().splitlines(keepends=True)
    (HOME / "constraints.txt").write_text("".join(pin for pin in pins if not pin.startswith("torch==")))
    found = interpreter()
    assert found
    tags = ["manylinux2014_aarch64", *(f"manylinux_2_{minor}_aarch64" for minor in range(17, 37))]
    part = fresh(target.with_suffix(".part"))
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    command += ["--only-binary=:all:", "--python-version", found.name.removeprefix("python"), "--target", str(part)]
    command += [word for tag in tags for word in ("--platform", tag)]
    subprocess.run([*command, "--constraint", HOME / "constraints.txt", *packages], check=True)
    part.rename(target)


# ------------------------------------------------------------------------------------------------- the build


def build(folder: Path) -> Path:
    """Cross-build a copy of the package with setup.py; its Python path."""
    fresh(folder)
    ignored = shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", folder / "src", ignore=ignored)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace", "--build-temp", "objects"]
    done = subprocess.run(command, cwd=folder, env=cross(), capture_output=True, text=True)
    if done.returncode or not (folder / "src" / "fedfilt" / "native" / "core.so").exists():
        raise RuntimeError(f"the core cannot be built for aarch64: {done.stdout}{done.stderr}")
    return folder / "src"


# ------------------------------------------------------------------------------------------------- the code

INSTRUCTION = re.compile(r"^\s*([0-9a-f]+):\t(.*)$")
JUMP = re.compile(r"^(?:b\.\w+|cbn?z|tbn?z)\b.*?\b([0-9a-f]+) <")
VECTOR = re.compile(r"^fml[as]\s+v\d+\.(?:4s|2d)")  # a multiply-add of whole registers
SCALAR = re.compile(r"^f(?:n?madd|n?msub|mul|add|sub|div)\s+[sd]\d")


class Loop(NamedTuple):
    """An innermost loop that computes, and how many of its instructions are of a kind."""

    function: str
    instructions: int
    vector: int
    scalar: int
    stack: int


def disassembly(folder: Path) -> str:
    """The code of the level neon in a folder that `build` filled."""
    [found] = folder.glob("objects/neon/**/kernels.o")
    command = ["aarch64-linux-gnu-objdump", "--disassemble", "--demangle", "--no-show-raw-insn", str(found)]
    return subprocess.check_output(command, env=environment(), text=True)


def loops(code: str) -> Iterator[Loop]:
    """All innermost loops with floating-point arithmetic."""
    for text in re.split(r"\n(?=[0-9a-f]+ <)", code):
        name = re.sub(r"^\w+ |fedfilt::|\(anonymous namespace\)::", "", text.partition("\n")[0])
        lines = [(int(line[1], 16), line[2]) for line in map(INSTRUCTION.match, text.splitlines()) if line]
        jumps = [(at, int(jump[1], 16)) for at, words in lines if (jump := JUMP.match(words))]
        back = [(start, end) for end, start in jumps if start <= end]
        for start, end in back:
            if any(start <= other <= last < end for other, last in back):
                continue
            body = [words for at, words in lines if start <= at <= end]
            vector, scalar = (sum(bool(kind.match(words)) for words in body) for kind in (VECTOR, SCALAR))
            if vector or scalar:
                yield Loop(name, len(body), vector, scalar, sum("[sp" in words for words in body))


def faults(code: str) -> list[str]:
    """What is wrong with the loops that take the time; [] if nothing is."""
    found = list(loops(code))
    wrong = []
    for loop in found:
        hot = re.search(r"<void (?:tile|to_pixels|to_weights)<", loop.function)
        if hot and (loop.scalar or loop.stack):
            wrong.append(f"{loop.scalar} scalar instructions and {loop.stack} uses of the stack: {loop}")
        size = re.search(r"<void tile<(\d+)l, (\d+)l>", loop.function)
        if size and loop.vector != int(size[1]) * int(size[2]):
            wrong.append(f"{loop.vector} multiply-adds instead of {size[1]} x {size[2]}: {loop}")
    for kind in ("tile<5l, 4l>", "to_pixels<12l>", "to_weights<12l>", "solve<float, float>", "solve<double, double>"):
        if not any(kind in loop.function and loop.vector >= 8 and not loop.scalar for loop in found):
            wrong.append(f"{kind} has no loop of vectors")
    return wrong


# ------------------------------------------------------------------------------------------------- the tests


def native_tests(source: Path, *which: str) -> "subprocess.CompletedProcess[str]":
    """Tests of tests/native in the emulated Python; those of test_native.py compare with torch."""
    torch = "test_native.py" in which
    options = ["-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT)]
    options += [] if torch else ["--noconftest"]  # it wants torch
    command = [*python(source, *[TORCH] * torch), "-m", "pytest", *options, *which]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    env["HYPOTHESIS_STORAGE_DIRECTORY"] = str(HOME / "hypothesis")
    env.pop("FEDFILT_NATIVE", None)
    return subprocess.run(command, cwd=ROOT / "tests" / "native", env=env, capture_output=True, text=True, timeout=LONG)


def play_round(source: Path) -> "subprocess.CompletedProcess[str]":
    """A deployment on loopback, one of whose devices runs in the emulated Python."""
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider"]
    command += ["tests/flower/test_resident.py", "-k", "emulated"]
    env = {**os.environ, EMULATED: "\n".join(python(source))}
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=LONG)


def main() -> None:
    """Set up, build, read, test."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--without-torch", action="store_true", help="compare with NumPy only, which is quicker")
    parser.add_argument("--round", action="store_true", help="let an emulated device take part in rounds")
    options = parser.parse_args()
    HOME.mkdir(parents=True, exist_ok=True)
    set_up(torch=not options.without_torch)
    source = build(HOME / "fedfilt")
    code = disassembly(HOME / "fedfilt")
    for loop in loops(code):
        if loop.vector >= 8:
            counts = f"{loop.vector:3} vector, {loop.scalar} scalar, {loop.stack} stack"
            print(f"{counts} of {loop.instructions:3} instructions  {loop.function[:80]}")
    if wrong := faults(code):
        sys.exit("\n".join(wrong))
    print(subprocess.check_output([*python(source), "-m", "fedfilt.cli", "info"], text=True))
    jobs = {"against NumPy": lambda: native_tests(source, "test_numpy.py")}
    if not options.without_torch:  # there is no compiler, and no way to start another Python, inside the emulator
        some = "-k", "not compiler and not sanitizers"
        jobs["against torch"] = lambda: native_tests(source, "test_native.py", *some)
    if options.round:
        jobs["rounds with an emulated device"] = lambda: play_round(source)
    failed = False
    for name, job in jobs.items():
        start = time.monotonic()
        done = job()
        print(f"{name} ({time.monotonic() - start:.0f} s):\n{done.stdout}{done.stderr}", flush=True)
        failed = failed or done.returncode != 0
    sys.exit(failed)


if __name__ == "__main__":
    main()
