import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from octavo.bench import profile_summary
from octavo.bench.profile_summary import group_of, read_trace, short_name, summarise_trace

WINDOW = "steps"


def event(name: str, start: float, duration: float, category: str = "kernel", **more: Any) -> dict[str, Any]:
    return {"ph": "X", "name": name, "cat": category, "ts": start, "dur": duration, **more}


def test_overlapping_kernels_are_counted_once() -> None:
    events = [
        event(WINDOW, 100, 50, "user_annotation"),
        event("before", 90, 5),
        event("a_norm", 100, 10),
        event("linear", 105, 15, args={"grid": [4, 2, 1]}),  # Starts while the norm runs.
        event("linear", 130, 10, args={"grid": [4, 2, 1]}),
        event("inside_another", 131, 2),
        event("after", 151, 10),
        {"ph": "M", "name": "metadata"},
    ]
    summary = summarise_trace(events, WINDOW)
    assert summary.wall == pytest.approx(50e-6)
    assert summary.busy == pytest.approx(30e-6)
    by_name = {kernel.name: kernel for kernel in summary.kernels}
    assert set(by_name) == {"a_norm", "linear 4×2×1", "inside_another"}
    product = by_name["linear 4×2×1"]
    assert (product.count, product.group) == (2, "GEMM")
    assert product.total == pytest.approx(25e-6)
    assert product.own == pytest.approx(20e-6)
    assert summary.groups() == pytest.approx({"GEMM": 20e-6, "norms": 10e-6, "other": 0.0})


def test_operators_are_counted_without_what_they_call() -> None:
    events = [
        event(WINDOW, 0, 100, "user_annotation"),
        event("aten::linear", 10, 50, "cpu_op", tid=1),
        event("aten::mm", 20, 30, "cpu_op", tid=1),
        event("aten::empty", 25, 5, "cpu_op", tid=1),
        event("aten::add", 60, 10, "cpu_op", tid=1),
        event("aten::add", 0, 40, "cpu_op", tid=2),
    ]
    summary = summarise_trace(events, WINDOW)
    own = {kernel.name: kernel.own for kernel in summary.kernels}
    assert own == pytest.approx({"aten::linear": 20e-6, "aten::mm": 25e-6, "aten::empty": 5e-6, "aten::add": 50e-6})


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("_decode_kernel", "attention"),
        ("nvjet_tst_128x64_64x6_2x1_v_bz_TNN", "GEMM"),
        ("_add_rms_norm_kernel", "norms"),
        ("_qk_rope_store_kernel", "rotation"),
        ("_prepare_inputs_kernel", "inputs"),
        ("Memcpy HtoD (Pageable -> Device)", "inputs"),
        ("_survey_kernel", "sampling"),
        ("something_else", "other"),
    ],
)
def test_groups(name: str, group: str) -> None:
    assert group_of(name) == group


def test_names_without_decoration() -> None:
    name = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<int>, std::array<char*, 1> >(int)"
    assert short_name(name) == "vectorized_elementwise_kernel FillFunctor"
    assert short_name("_decode_kernel") == "_decode_kernel"
    assert len(short_name("x" * 200)) == 60


def test_traces_may_be_packed(tmp_path: Path) -> None:
    text = json.dumps({"traceEvents": [{"name": "x"}]})
    (tmp_path / "a.json").write_text(text)
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(text.encode()))
    assert read_trace(tmp_path / "a.json") == read_trace(tmp_path / "a.json.gz") == [{"name": "x"}]


def test_every_group_is_named() -> None:
    assert {*profile_summary._GROUPS, "other"} == set(profile_summary.GROUP_NAMES)
