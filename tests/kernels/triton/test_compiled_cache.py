"""Compiled kernels are kept below one folder of Octavo's own."""

import hashlib
import inspect
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
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
from octavo.kernels.triton import compile_workers, compiler_key  # noqa: E402
from octavo.kernels.triton.compile_workers import CompileWorkers  # noqa: E402
from octavo.platforms import CpuPlatform, CudaPlatform, ImaginedGpu, Platform  # noqa: E402

KEY = "A" * 52


@pytest.fixture(autouse=True)
def _restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "_bound_sets", dispatch._bound_sets.copy())
    monkeypatch.setitem(triton.knobs.cache.__dict__, "dir", "")
    monkeypatch.delitem(triton.knobs.cache.__dict__, "dir")
    monkeypatch.setattr(triton.knobs.cache, "manager_class", None)
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
def package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A compiler of two files, as an installer leaves it; without its list the key is "computed"."""
    package = tmp_path / "triton"
    (package / "_C").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "_C" / "library.so").write_text("first")
    record = tmp_path / "triton-3.6.0.dist-info" / "RECORD"
    record.parent.mkdir()
    record.write_text(
        "triton/__init__.py,sha256=A,0\ntriton/_C/library.so,sha256=B,5\ntriton/__pycache__/x.pyc,,\nother.py,sha256=C,7\n"
    )
    monkeypatch.setattr(triton, "__file__", str(package / "__init__.py"))
    monkeypatch.setattr(compiler_key, "_compute_key", lambda: "computed")
    return package


def key_of_a_new_process() -> str:
    compiler_key.compiler_key.cache_clear()
    return compiler_key.compiler_key()


def test_the_compilers_key_is_that_of_the_installers_list(package: Path) -> None:
    key = key_of_a_new_process()
    assert key != "computed"
    elsewhere = package.parent.rename(package.parent.with_name("elsewhere"))
    triton.__file__ = str(elsewhere / "triton" / "__init__.py")
    assert key_of_a_new_process() == key
    record = elsewhere / "triton-3.6.0.dist-info" / "RECORD"
    record.write_text(record.read_text().replace("sha256=B", "sha256=D"))
    assert key_of_a_new_process() not in (key, "computed")


@pytest.mark.parametrize("change", ["size", "file", "list"])
def test_the_compilers_key_is_computed_where_the_list_is_not_right(change: str, package: Path) -> None:
    library = package / "_C" / "library.so"
    match change:
        case "size":
            library.write_text("of another size")
        case "file":
            library.unlink()
        case _:
            (package.parent / "triton-3.6.0.dist-info").rename(package.parent / "torch-2.11.0.dist-info")
    assert key_of_a_new_process() == "computed"


def test_keys_of_kernels_in_octavos_folder_have_the_compilers_key(tmp_path: Path) -> None:
    bind_kernels(ImaginedGpu(1 << 30), str(tmp_path))
    assert triton_cache.triton_key is compiler_key.compiler_key


@pytest.mark.parametrize("description", [None, b"described"])
def test_a_kernel_that_is_compiled_ahead_is_found_by_later_launches(
    description: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With whatever functions this version of Triton hands over."""
    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_path))
    kernel, kept, described = SimpleNamespace(run="launcher"), list[Any](), list[bytes | None]()
    num_functions = len(inspect.signature(triton.AsyncCompileMode.submit).parameters) - 2
    functions = [lambda: kernel, kept.append, lambda future: None][:num_functions]

    def compile_kernel(description: bytes, here: Callable[[], Any], *, is_long: bool) -> Any:
        assert not is_long
        described.append(description)
        return here()

    workers: Any = SimpleNamespace(compile=compile_kernel)
    expected: list[dict[str, str]] = []
    launchers: Any = SimpleNamespace(
        expect=lambda signature, constants: expected.append(signature), lock=lambda signature: nullcontext()
    )
    with ThreadPoolExecutor(1) as pool, triton_compile._Ahead(pool, workers, launchers) as mode:
        mode.next = triton_compile._Submitted("kernel", description, {"x": "*fp32"}, {})
        future = mode.submit("key", *functions)
        assert kept == [future]
    assert future.result() is kernel
    assert described == ([] if description is None else [description])
    assert len(expected) == len(described), "its launcher is built while another process compiles it"


def test_a_kernel_is_kept_once_it_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_path))
    assert not triton_compile._is_kept("key", "kernel")
    cache = get_cache_manager(hashlib.sha256(b"key").hexdigest())
    cache.put_group("kernel.json", {"kernel.json": cache.put("{}", "kernel.json")})
    assert triton_compile._is_kept("key", "kernel")


def test_a_folder_of_kernels_may_be_moved(tmp_path: Path) -> None:
    bind_kernels(ImaginedGpu(1 << 30), str(tmp_path / "first"))
    cache = get_cache_manager(KEY)
    files = {name: cache.put("{}", name) for name in ("kernel.json", "kernel.cubin")}
    cache.put_group("kernel.json", files)
    assert get_cache_manager(KEY).get_group("kernel.json") == files
    (tmp_path / "first").rename(tmp_path / "second")
    bind_kernels(ImaginedGpu(1 << 30), str(tmp_path / "second"))
    moved = {name: path.replace("/first/", "/second/") for name, path in files.items()}
    assert get_cache_manager(KEY).get_group("kernel.json") == moved
    assert get_cache_manager(KEY).get_group("other.json") is None


@pytest.mark.parametrize("platform", [CpuPlatform, CudaPlatform])
@pytest.mark.parametrize("is_new", [True, False])
def test_processes_start_early_where_nothing_is_kept(
    is_new: bool, platform: type[Platform], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[CompileWorkers] = []
    monkeypatch.setattr(compile_workers, "_expected", [])
    monkeypatch.setattr(CompileWorkers, "start", lambda workers, num_here: started.append(workers))
    folder = tmp_path / "kernels"
    folder.mkdir()
    if not is_new:
        (folder / "kernel").write_text("")
    for _ in range(2):
        expect_to_compile(platform, str(tmp_path))
    assert [workers.folder for workers in started] == ([folder] if is_new and platform is CudaPlatform else [])
    engines_own = compile_workers.workers_for(folder)
    assert engines_own in started or not started
    assert compile_workers.workers_for(folder) not in started, "they are one engine's"
