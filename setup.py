"""Builds the native core. It is optional: without a C++ compiler the package installs all the same."""

import hashlib
import os
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

HOME = Path("src/fedfilt/native")
HEADERS = sorted(map(str, HOME.glob("*.h")))
FLAGS = [
    "-std=c++17",
    "-O3",
    "-fno-math-errno",
    "-Wall",
    "-Wextra",
    *os.environ.get("FEDFILT_NATIVE_FLAGS", "").split(),
]
LEVELS = {
    "baseline": [],
    "avx2": ["-mavx2", "-mfma"],
    "avx512": ["-mavx512f", "-mavx512dq", "-mavx512vl", "-mavx2", "-mfma"],
    "neon": ["-DFEDFILT_NEON"],
}
X86, ARM = ("x86_64", "amd64"), ("aarch64", "arm64")


def sources():
    """A fingerprint of the sources: the package refuses a library that was built from others."""
    return hashlib.sha256(
        b"".join(path.read_bytes() for path in sorted([*HOME.glob("*.cpp"), *HOME.glob("*.h")]))
    ).hexdigest()


class BuildLevels(build_ext):
    """Compiles the kernels once per level of the CPU and links all of them into one library."""

    def build_extension(self, extension):
        machine = self.plat_name.rpartition("-")[2]  # that it is built for; build_ext --plat-name linux-aarch64
        x86, arm = machine in X86, machine in ARM and sys.maxsize > 2**32
        levels = ["baseline", *["avx2", "avx512"] * x86, *["neon"] * arm]
        folder = Path(self.build_temp)
        common = {"include_dirs": [str(HOME)], "depends": extension.depends}
        macros = [("FEDFILT_SOURCES", f'"{sources()}"'), *[("FEDFILT_X86", "1")] * x86, *[("FEDFILT_ARM", "1")] * arm]
        objects = self.compiler.compile(
            [str(HOME / "core.cpp")], str(folder), macros=macros, extra_postargs=FLAGS, **common
        )
        for level in levels:
            objects += self.compiler.compile(
                [str(HOME / "kernels.cpp")],
                str(folder / level),
                macros=[*macros, ("LEVEL", level)],
                extra_postargs=[*FLAGS, *LEVELS[level]],
                **common,
            )
        flags = [flag for flag in FLAGS if flag.startswith("-fsanitize")]
        target = self.get_ext_fullpath(extension.name)
        self.compiler.link_shared_object(objects, target, extra_postargs=flags, target_lang="c++")


core = Extension(
    "fedfilt.native.core",
    sources=[str(HOME / "core.cpp"), str(HOME / "kernels.cpp")],
    depends=HEADERS,
    language="c++",
    optional=True,
)
setup(ext_modules=[core], cmdclass={"build_ext": BuildLevels})
