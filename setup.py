"""Builds the CPU kernels, once per instruction set; everything else is in ``pyproject.toml``.

The extensions are optional: without a C++ compiler the package installs all the same, and kernels run in PyTorch. They
use Python's stable interface and nothing of torch, so one build serves every version of both.
"""

import copy
import os
import platform
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

# A tile's sums stay in registers only if values of x are loaded one by one, hence no vectorisation of such loads.
FLAGS = ["-std=c++17", "-O3", "-pthread", "-fvisibility=hidden", "-g0", "-fno-tree-slp-vectorize"]
# GCC 12 warns about its own headers.
FLAGS += ["-Wno-psabi", "-Wno-maybe-uninitialized", "-Wno-uninitialized"]

AVX512 = ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mprefer-vector-width=512"]
AVX2 = ["-mavx2", "-mfma", "-mf16c", "-mbmi2"]
AVX512_BF16 = [*AVX2, *AVX512, "-mavx512vnni", "-mavx512bf16"]
INSTRUCTION_SETS = {
    "x86_64": {
        "avx2": AVX2,
        "avx512_vnni": [*AVX2, *AVX512, "-mavx512vnni"],
        "avx512_bf16": AVX512_BF16,
        "amx": [*AVX512_BF16, "-mamx-tile", "-mamx-bf16", "-mamx-int8"],
    },
    "aarch64": {"neon": ["-march=armv8.2-a+fp16+dotprod"]},
}
# Builds for tests only, which take the others' place where OCTAVO_TEST_BUILDS names them: what AMX does, on other
# processors.
TEST_BUILDS = {"amx_emulated": [*AVX512_BF16, "-DOCTAVO_EMULATE_TILES"]}


class BuildApart(build_ext):
    """Gives each extension a folder for its objects: all are made of the same sources, several at a time."""

    def finalize_options(self) -> None:
        """Editable installations leave out what ``setup()`` has for this command."""
        super().finalize_options()
        self.parallel = os.cpu_count()

    def build_extension(self, ext: Extension) -> None:
        """Build one of them."""
        own = copy.copy(self)
        own.build_temp = os.path.join(self.build_temp, ext.name)
        build_ext.build_extension(own, ext)


def extension(name: str, flags: list[str]) -> Extension:
    """The kernels for one instruction set."""
    return Extension(
        f"octavo.platforms._native_{name}",
        sources=sorted(map(str, Path("native").glob("*.cc"))),
        depends=["setup.py", *sorted(map(str, Path("native").glob("*.h")))],
        define_macros=[("OCTAVO_MODULE", f"_native_{name}")],
        extra_compile_args=FLAGS + flags,
        extra_link_args=["-pthread"],
        language="c++",
        optional=True,
        py_limited_api=True,
    )


builds = {name: TEST_BUILDS[name] for name in os.environ.get("OCTAVO_TEST_BUILDS", "").split()}
builds = builds or INSTRUCTION_SETS.get(platform.machine(), {})

setup(
    cmdclass={"build_ext": BuildApart},
    ext_modules=[extension(*item) for item in builds.items()],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
