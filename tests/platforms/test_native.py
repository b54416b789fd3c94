"""Which build of the compiled CPU kernels is chosen."""

import importlib
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from tiny_llama import SETTINGS, write_model

from octavo.config.settings import DeviceSettings
from octavo.errors import ConfigError
from octavo.platforms import CpuPlatform, cpu, native
from octavo.platforms.native import ENVIRONMENT_VARIABLE, instruction_sets, native_kernels

choose = native_kernels.__wrapped__
AVX512 = ["avx512_bf16", "avx512_vnni"]

GENERATE = """
import sys
from octavo import LLM, SamplingParams
from octavo.kernels import linear
from octavo.platforms.native import native_kernels

assert native_kernels() is None
settings = dict({settings!r}, model=sys.argv[1])
llm = LLM(**settings)
print(linear.bound["cpu"].__module__)
print(*llm.generate(["one two"], SamplingParams(max_tokens=6, temperature=0))[0].outputs[0].token_ids)
"""


@pytest.fixture(autouse=True)
def no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENVIRONMENT_VARIABLE, raising=False)


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """The builds that can be imported; a test adds some."""
    there: dict[str, ModuleType] = {}

    def load(name: str) -> ModuleType:
        try:
            return there[name.removeprefix("octavo.platforms._native_")]
        except KeyError:
            raise ModuleNotFoundError(name) from None

    monkeypatch.setattr(importlib, "import_module", load)
    monkeypatch.setattr(native, "instruction_sets", lambda: ["best", "good"])
    return there


def test_the_best_build_is_chosen(builds: dict[str, ModuleType]) -> None:
    assert choose() is None
    builds["good"] = ModuleType("good")
    assert choose() is builds["good"]
    builds["best"] = ModuleType("best")
    assert choose() is builds["best"]


def test_the_environment_chooses(builds: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch) -> None:
    builds.update(best=ModuleType("best"), good=ModuleType("good"))
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "good")
    assert choose() is builds["good"]
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "torch")
    assert choose() is None


def test_an_unknown_build_is_an_error(builds: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "better")
    with pytest.raises(
        ConfigError, match="OCTAVO_CPU_KERNELS is 'better', but this processor runs best, good; 'torch'"
    ):
        choose()
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "best")
    with pytest.raises(ConfigError, match="OCTAVO_CPU_KERNELS is 'best', but these kernels were not built"):
        choose()


def test_a_build_that_the_system_refuses_is_passed_over(
    builds: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    builds["good"] = ModuleType("good")

    def load(name: str) -> ModuleType:
        if name.endswith("best"):
            raise ImportError("the operating system does not let this process use AMX")
        return builds["good"]

    monkeypatch.setattr(importlib, "import_module", load)
    assert choose() is builds["good"]
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "best")
    with pytest.raises(ConfigError, match="but these kernels do not run here: the operating system does not let"):
        choose()


@pytest.mark.parametrize(
    ("machine", "features", "expected"),
    [
        ("x86_64", ("avx2", "avx512", "vnni", "avx512_bf16", "amx_tile"), ["amx", *AVX512, "avx2"]),
        ("x86_64", ("avx2", "avx512", "vnni", "avx512_bf16"), [*AVX512, "avx2"]),
        ("x86_64", ("avx2", "avx512", "vnni"), ["avx512_vnni", "avx2"]),
        ("AMD64", ("avx2", "avx512"), ["avx2"]),
        ("x86_64", (), []),
        ("aarch64", (), ["neon"]),
        ("riscv64", (), []),
    ],
)
def test_instruction_sets(
    machine: str, features: tuple[str, ...], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "machine", lambda: machine)
    for feature in ("avx2", "avx512", "vnni", "avx512_bf16", "amx_tile"):
        monkeypatch.setattr(torch.cpu, f"_is_{feature}_supported", lambda feature=feature: feature in features)
    assert instruction_sets() == expected


@pytest.fixture
def chosen(builds: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Choices are made anew, and later ones again."""
    for function in (native_kernels, cpu._warn_of_missing_kernels):
        function.cache_clear()
    yield
    for function in (native_kernels, cpu._warn_of_missing_kernels):
        function.cache_clear()


def test_the_start_log_says_which_kernels_run(
    chosen: None, builds: dict[str, ModuleType], caplog: pytest.LogCaptureFixture
) -> None:
    builds["good"] = ModuleType("octavo.platforms._native_good")
    sizes: list[int] = []
    vars(builds["good"]).update(set_num_threads=sizes.append, bind_threads=lambda *arguments: None)
    platform = CpuPlatform()
    assert platform.describe().endswith(" cores (compiled kernels for good)")
    with caplog.at_level(logging.WARNING):
        platform.prepare(DeviceSettings(num_threads=3))
    assert sizes == [3]
    assert not caplog.records


@pytest.mark.parametrize(
    ("variable", "names", "reason"),
    [
        ("torch", ["good"], "OCTAVO_CPU_KERNELS is 'torch'"),
        ("", [], "there are none for this processor, which lacks AVX2 and NEON"),
        ("", ["good"], "none were built; install Octavo again where there is a C++ compiler"),
    ],
)
def test_the_start_log_says_once_why_none_run(
    variable: str,
    names: list[str],
    reason: str,
    chosen: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, variable)
    monkeypatch.setattr(native, "instruction_sets", lambda: names)
    platform = CpuPlatform()
    assert " cores (PyTorch's kernels for " in platform.describe()
    with caplog.at_level(logging.WARNING):
        platform.prepare(DeviceSettings(num_threads=1))
        platform.prepare(DeviceSettings(num_threads=1))
    (record,) = caplog.records
    assert record.message == (
        f"No compiled CPU kernels run: {reason}. PyTorch computes instead, which can take two to three times as long."
    )


def test_without_compiled_kernels_pytorch_computes(tmp_path: Path) -> None:
    """In a process of its own, since kernels are registered once."""
    script = GENERATE.format(settings={**SETTINGS, "block_size": 16})
    ended = subprocess.run(
        [sys.executable, "-c", script, str(write_model(tmp_path))],
        env={**os.environ, ENVIRONMENT_VARIABLE: "torch"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    module, tokens = ended.stdout.splitlines()[-2:]
    assert module == "octavo.kernels.cpu.linear"
    assert len(tokens.split()) == 6
