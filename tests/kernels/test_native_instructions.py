"""Each build of the compiled kernels has only instructions of its set: all are made of the same sources."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

FOREIGN = {
    "avx2": re.compile(r"^(?:(?:26|2e|36|3e|64|65|67) )*62 "),  # the first byte of all instructions of AVX-512
    "avx512_vnni": re.compile(r"\tv(?:dpbf16|cvtne)"),
    "avx512_bf16": re.compile(r"\t(?:tile|ldtile|sttile|tdp)"),
}
"""For a build, what the bytes and the text of an instruction match that only later processors have."""


def instructions(path: str) -> Iterator[str]:
    """Bytes and text of each."""
    command = ["objdump", "--disassemble", "--insn-width=16", path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            _, tab, instruction = line.partition(":\t")
            if tab:
                yield instruction
    assert process.returncode == 0


@pytest.mark.parametrize("name", FOREIGN)
def test_builds_have_no_instructions_of_others(name: str) -> None:
    if shutil.which("objdump") is None:
        pytest.skip("there is no objdump; run on an AMD EPYC with binutils")
    spec = find_spec(f"octavo.platforms._native_{name}")
    if spec is None or spec.origin is None:
        pytest.skip(f"{name} was not built; all builds for x86-64 are on an AMD EPYC")
    count, found = 0, []
    for instruction in instructions(spec.origin):
        count += 1
        if FOREIGN[name].search(instruction):
            found.append(instruction)
    assert count > 10_000
    assert found == []


def test_the_patterns_find_what_they_are_for() -> None:
    assert FOREIGN["avx2"].search("62 f1 7c 48 10 07       \tvmovups (%rdi),%zmm0")
    assert not FOREIGN["avx2"].search("c5 fc 10 07             \tvmovups (%rdi),%ymm0")
    assert FOREIGN["avx512_vnni"].search("62 f2 4e 48 52 c1       \tvdpbf16ps %zmm1,%zmm6,%zmm0")
    assert FOREIGN["avx512_bf16"].search("c4 e2 4a 5c c4          \ttdpbf16ps %tmm6,%tmm4,%tmm0")
