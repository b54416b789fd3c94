"""Compiled kernels are kept below one folder of Octavo's own."""

import hashlib
import inspect
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

triton = pytest.importorskip("triton")

from triton.runtime import cache as triton_cache  # noqa: E402
from triton.runtime.cache import get_cache_manager  # noqa: E402

from octavo.kernels import dispatch, expect_to_compile  # noqa: E402
from octavo.kernels.select import bind_kernels  # noqa: E402
from octavo.kernels.triton import compile as triton_compile  # noqa: E402
from octavo.kernels.triton import compiler_key  # noqa: E402
from octavo.platforms import ImaginedGpu  # noqa: E402

KEY = "A" * 52


@pytest.fixture(autouse=True)
def _restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "_bound_sets", dispatch._bound_sets.copy())
    monkeypatch.setitem(triton.knobs.cache.__dict__, "dir", "")
    monkeypatch.delitem(triton.knobs.cache.__dict__, "dir")
    monkeypatch.setenv("TRITON_CACHE_DIR", "")
    monkeypatch.setattr(triton_cache, "triton_key", triton_cache.triton_key)


def test_a_folder_that_is_deleted_is_forgotten(tmp_path: Path) -> None:
    bind_kernels(ImaginedGpu(1 << 30), str(tmp_path / "root"))
    kept = Path(get_cache_manager(KEY).put(b"code", "kernel.cubin"))
    assert (tmp_path / "root" / "kernels") in kept.parents
    assert get_cache_manager(KEY).get_file("kernel.cubin") == str(kept)
    shutil.rmtree(tmp_path / "root")
    assert get_cache_manager(KEY).get_file("kernel.cubin") is None


def test_the_folder_that_nobody_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    bind_kernels(ImaginedGpu(1 << 30))
    assert triton.knobs.cache.dir == str(tmp_path / "octavo" / "kernels")


def test_tritons_own_variable_holds_unless_a_folder_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "own"))
    bind_kernels(ImaginedGpu(1 << 30))
    assert triton.knobs.cache.dir == str(tmp_path / "own")
    bind_kernels(ImaginedGpu(1 << 30), str(tmp_path))
    assert triton.knobs.cache.dir == str(tmp_path / "kernels")


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """A compiler of two files, and every key that is computed of it."""
    package = tmp_path / "triton"
    (package / "_C").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "_C" / "library.so").write_text("first")
    computed: list[str] = []

    def compute() -> str:
        computed.append(f"key {len(computed)}\nof two lines")
        return computed[-1]

    monkeypatch.setattr(triton, "__file__", str(package / "__init__.py"))
    monkeypatch.setattr(compiler_key, "_compute_key", compute)
    return computed


def key_of_a_new_process(folder: Path) -> str:
    compiler_key.keep_compiler_key(folder)
    return triton_cache.triton_key()


def test_the_compilers_key_is_computed_when_its_files_change(tmp_path: Path, keys: list[str]) -> None:
    folder = tmp_path / "kernels"
    assert [key_of_a_new_process(folder) for _ in range(3)] == [keys[0]] * 3
    assert len(keys) == 1
    (tmp_path / "triton" / "_C" / "library.so").write_text("second")
    assert key_of_a_new_process(folder) == keys[1] != keys[0]
    (folder / "compiler-key").write_text("cut off")
    assert key_of_a_new_process(folder) == keys[2]
    assert [file.name for file in folder.iterdir()] == ["compiler-key"]


def test_a_folder_that_cannot_be_written_keeps_no_key(tmp_path: Path, keys: list[str]) -> None:
    (tmp_path / "file").write_text("")
    assert key_of_a_new_process(tmp_path / "file" / "kernels") == keys[0]
    assert key_of_a_new_process(tmp_path / "file" / "kernels") == keys[1]


def test_a_kept_key_is_tritons_own(tmp_path: Path) -> None:
    assert key_of_a_new_process(tmp_path) == key_of_a_new_process(tmp_path) == compiler_key._compute_key()


@pytest.mark.parametrize("description", [None, b"described"])
def test_a_kernel_that_is_compiled_ahead_is_found_by_later_launches(
    description: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With whatever functions this version of Triton hands over."""
    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_path))
    kernel, kept, described = (
        SimpleNamespace(run="launcher", src=SimpleNamespace(signature={})),
        list[Any](),
        list[bytes | None](),
    )
    num_functions = len(inspect.signature(triton.AsyncCompileMode.submit).parameters) - 2
    functions = [lambda: kernel, kept.append, lambda future: None][:num_functions]

    def compile_kernel(description: bytes, here: Callable[[], Any]) -> Any:
        described.append(description)
        return here()

    workers: Any = SimpleNamespace(compile=compile_kernel)
    with ThreadPoolExecutor(1) as pool, triton_compile._Ahead(pool, workers) as mode:
        mode.name, mode.description = "kernel", description
        future = mode.submit("key", *functions)
        assert kept == [future]
    assert future.result() is kernel
    assert described == ([] if description is None else [description])


def test_a_kernel_is_kept_once_it_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_path))
    assert not triton_compile._is_kept("key", "kernel")
    cache = get_cache_manager(hashlib.sha256(b"key").hexdigest())
    cache.put_group("kernel.json", {"kernel.json": cache.put("{}", "kernel.json")})
    assert triton_compile._is_kept("key", "kernel")


@pytest.mark.parametrize("is_new", [True, False])
def test_processes_start_early_where_nothing_is_kept(
    is_new: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Path] = []
    workers = SimpleNamespace(start=lambda: started.append(tmp_path / "kernels"))
    monkeypatch.setattr(triton_compile, "_compiling", triton_compile._Compiling())
    monkeypatch.setattr(triton_compile, "CompileWorkers", lambda folder, num_devices: workers)
    monkeypatch.setattr(triton_compile, "IS_INTERPRETED", False)
    platform = ImaginedGpu(1 << 30)
    bind_kernels(platform, str(tmp_path))
    if not is_new:
        (tmp_path / "kernels").mkdir()
        (tmp_path / "kernels" / "compiler-key").write_text("")
    for _ in range(2):
        expect_to_compile(platform.device)
    assert started == ([tmp_path / "kernels"] if is_new else [])
