"""The CPU kernels built for ARM, by a cross compiler and in an emulator, against scalar arithmetic in double precision.

apt-get install g++-aarch64-linux-gnu qemu-user
"""

import runpy
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import setuptools

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
LIBRARIES = "/usr/aarch64-linux-gnu"


def setup_script(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What ``setup.py`` defines."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(setuptools, "setup", lambda **_: None)
    return runpy.run_path("setup.py")


def test_kernels_for_arm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GEMMs of all formats and types of inputs, norms, gates, attention; a row has the same bits alone."""
    for needed in (COMPILER, EMULATOR):
        if shutil.which(needed) is None:
            pytest.skip(f"there is no {needed}; run on an AMD EPYC with a cross compiler and QEMU")
    script = setup_script(monkeypatch)
    flags = [*script["FLAGS"], *script["INSTRUCTION_SETS"]["aarch64"]["neon"], "-I", "native"]
    sources = [path for path in Path("native").glob("*.cc") if path.name != "module.cc"]
    program = tmp_path / "check"
    subprocess.run([COMPILER, *flags, *sources, "tests/kernels/native_check.cc", "-o", program], check=True)
    ended = subprocess.run(
        [EMULATOR, "-L", LIBRARIES, program], stdout=subprocess.PIPE, text=True, check=False, timeout=300
    )
    lines = ended.stdout.splitlines()
    assert ended.returncode == 0, [line for line in lines if not line.startswith("ok ")] or ended.returncode
    for channels in ("channelwise", "groupwise"):
        for dtype in ("float32", "bfloat16", "float16"):
            assert any(line.startswith(f"ok W4A8 {channels}, inputs {dtype}:") for line in lines)
