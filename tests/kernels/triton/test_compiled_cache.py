"""Compiled kernels are kept below one folder of Octavo's own."""

import shutil
from pathlib import Path

import pytest

triton = pytest.importorskip("triton")

from triton.runtime.cache import get_cache_manager  # noqa: E402

from octavo.kernels import dispatch  # noqa: E402
from octavo.kernels.select import bind_kernels  # noqa: E402
from octavo.platforms import ImaginedGpu  # noqa: E402

KEY = "A" * 52


@pytest.fixture(autouse=True)
def _restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "_bound_sets", dispatch._bound_sets.copy())
    monkeypatch.setitem(triton.knobs.cache.__dict__, "dir", "")
    monkeypatch.delitem(triton.knobs.cache.__dict__, "dir")
    monkeypatch.setenv("TRITON_CACHE_DIR", "")


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
