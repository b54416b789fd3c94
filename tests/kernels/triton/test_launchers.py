"""Launchers are built while their kernels compile."""

import threading
from contextlib import closing
from typing import Any

import pytest

pytest.importorskip("triton")

from octavo.kernels.triton import launchers
from octavo.kernels.triton.launchers import Launchers

SIGNATURE = {"x": "*fp32", "rows": "tensordesc<bf16[64, 128]>", "n": "i32"}


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is built, in place of C: signatures and descriptors."""
    sources: list[Any] = []
    monkeypatch.setattr(launchers, "_make_launcher", lambda constants, signature, meta: (signature, len(meta)))
    monkeypatch.setattr(
        launchers.driver, "compile_module_from_src", lambda src, **_: sources.append(src), raising=False
    )
    monkeypatch.setattr(launchers.driver, "library_dirs", list, raising=False)
    for name in ("include_dirs", "libraries"):
        monkeypatch.setattr(launchers.driver, name, [], raising=False)
    return sources


def test_a_launcher_is_built_once_for_each_signature(built: list[Any]) -> None:
    with closing(Launchers()) as made:
        for signature in (SIGNATURE, dict(SIGNATURE), {"n": "i64"}):
            made.expect(signature, {})
        made._pool.shutdown()
    assert sorted(built, key=str) == [({"n": "i64"}, 0), (SIGNATURE, 1)]


def test_whoever_needs_a_launcher_waits_while_it_is_built(built: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def build(src: Any, **_: Any) -> None:
        begun.set()
        may_end.wait(10)

    monkeypatch.setattr(launchers.driver, "compile_module_from_src", build, raising=False)
    with closing(Launchers()) as made:
        made.expect(SIGNATURE, {})
        assert begun.wait(10)
        assert made.lock(SIGNATURE).locked()
        may_end.set()
        with made.lock(SIGNATURE):
            pass


def test_a_launcher_that_cannot_be_built_is_left_to_its_kernel(
    built: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(src: Any, **_: Any) -> None:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(launchers.driver, "compile_module_from_src", fail, raising=False)
    with closing(Launchers()) as made:
        made.expect(SIGNATURE, {})
        made._pool.shutdown()
        assert not made.lock(SIGNATURE).locked()


def test_nothing_is_built_where_triton_has_one_launcher_for_all_kernels(
    built: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launchers, "_make_launcher", None)
    with closing(Launchers()) as made:
        made.expect(SIGNATURE, {})
        made._pool.shutdown()
    assert not built
