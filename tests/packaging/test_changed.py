"""``.ci/changed.py`` picks the tests of changed files."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = sorted(path.name for path in (ROOT / "octavo").iterdir() if (ROOT / "tests" / path.name).is_dir())


@pytest.fixture(scope="module")
def changed() -> ModuleType:
    spec = importlib.util.spec_from_file_location("changed", ROOT / ".ci" / "changed.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("paths", "tests"),
    [
        (["octavo/cache/block_pool.py"], ["tests/cache"]),
        (["octavo/sampling/grammar/base.py"], ["tests/sampling/grammar"]),
        (["octavo/sampling/sampler.py", "octavo/sampling/grammar/base.py"], ["tests/sampling"]),
        (["octavo/models/llama.py"], ["tests/models"]),
        (["native/gemm.h"], ["tests/execution", "tests/kernels", "tests/platforms"]),
        (["octavo/llm.py"], ["tests/test_llm.py"]),
        (["tests/e2e/test_serving.py"], ["tests/e2e/test_serving.py"]),
        (["tests/e2e/server_process.py", "tests/e2e/test_serving.py"], ["tests/e2e"]),
        (["octavo/cache/block_pool.py", "octavo/llm.py"], ["tests/test_llm.py", "tests/cache"]),
        (["octavo/errors.py", "tests/conftest.py", "README.md", "octavo/gone/module.py"], []),
        (["tests/parity/test_tiny_models.py", "tests/cache/test_block_pool.py"], ["tests/cache/test_block_pool.py"]),
        ([f"octavo/{name}/module.py" for name in PACKAGES], []),
        ([f"octavo/{name}/module.py" for name in ("kernels", "layers", "models", "quantization")], []),
        ([f"tests/cache/test_{name}.py" for name in ("block_pool", "gone")] * 7, ["tests/cache/test_block_pool.py"]),
        ([], []),
    ],
)
def test_tests_of_changed_files(changed: ModuleType, paths: list[str], tests: list[str]) -> None:
    assert changed.select(paths) == tests


def test_an_unknown_base_selects_nothing(changed: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr("sys.argv", ["changed.py", "no-such-commit"])
    changed.main()
    assert capsys.readouterr().out == "\n"
