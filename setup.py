"""Builds the native core. It is optional: without a C++ compiler the package installs all the same."""

import hashlib
import os
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
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

    def get_ext_filename(self, fullname):
        """The core is loaded by ctypes and is no Python module: no version of Python belongs in its name."""
        return str(Path(*fullname.split("."))) + ".so"

    def build_extension(self, extension):
        target = Path(self.get_ext_fullpath(extension.name))
        target.unlink(missing_ok=True)  # one of an earlier build, if this one fails
        machine = self.plat_name.rpartition("-")[2]  # that it is built for
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
        if sys.platform.startswith("linux") and "FEDFILT_NATIVE_FLAGS" not in os.environ:
            flags.append("-s")  # a quarter of the size, without what only a debugger or profiler reads
        self.compiler.link_shared_object(objects, str(target), extra_postargs=flags, target_lang="c++")


class AnyPython(bdist_wheel):
    """A wheel for every Python 3 of a platform; without a core, for every platform."""

    def run(self):
        if not self.skip_build:
            self.run_command("build")
            self.skip_build = True  # not twice
        if not Path(self.get_finalized_command("build").build_lib, "fedfilt", "native", "core.so").exists():
            self.distribution.ext_modules = None
            self.root_is_pure = True
        super().run()

    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


core = Extension(
    "fedfilt.native.core",
    sources=[str(HOME / "core.cpp"), str(HOME / "kernels.cpp")],
    depends=HEADERS,
    language="c++",
    optional=True,
)
setup(ext_modules=[core], cmdclass={"build_ext": BuildLevels, "bdist_wheel": AnyPython})
