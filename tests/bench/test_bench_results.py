import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from octavo.bench.picture import Bar, draw_bars
from octavo.bench.results import NOTHING_YET, fill_page, read_result, render
from octavo.bench.tables import Table, number, share
from octavo.errors import ConfigError

COMMON: dict[str, Any] = {
    "model": "some-model",
    "date": "2026-11-21T10:00:00+00:00",
    "commit": "abc1234",
    "command": "octavo bench engine",
    "versions": {"octavo": "0.1.0", "python": "3.11.7", "torch": "2.13.0"},
    "ceilings": {"device": "A device", "dtype": "bfloat16", "read_bandwidth": 4.4e12, "matmul_rate": 777e12},
}
ENGINE = {
    **COMMON,
    "kind": "engine",
    "figures": [
        {"name": "a_ms", "title": "a time (ms)", "is_time": True, "limit": 2.0},
        {"name": "a_tok_s", "title": "a rate (tok/s)", "is_time": False, "limit": None},
    ],
    "engines": [
        {"module": "octavo", "version": "1", "figures": {"a_ms": 4.0, "a_tok_s": 3000.0}, "phases": {"engine": 5.0}},
        {"module": "other", "version": "2", "figures": {"a_ms": 6.0, "a_tok_s": 1500.0}, "phases": {"engine": 50.0}},
    ],
}
PROFILE = {
    **COMMON,
    "kind": "profile",
    "case": "decode",
    "batch": 8,
    "num_steps": 2,
    "plain_seconds": 0.008,
    "wall_seconds": 0.01,
    "busy_seconds": 0.008,
    "groups": [{"name": "GEMM", "seconds": 0.006}, {"name": "attention", "seconds": 0.002}],
    "kernels": [
        {"name": "linear", "group": "GEMM", "count": 4, "total_seconds": 0.006, "own_seconds": 0.006},
        {"name": "attend", "group": "attention", "count": 2, "total_seconds": 0.003, "own_seconds": 0.002},
    ],
}
PAGE = Path(__file__).parents[2] / "docs" / "performance.md"


def test_numbers_keep_three_digits() -> None:
    assert [number(value) for value in (12345.6, 99.94, 3.14159, 0.5, None)] == ["12,346", "99.9", "3.14", "0.500", ""]
    assert (share(1, 4), share(1, None), share(1, 0)) == ("25%", "", "")


def test_tables_as_text_and_markdown() -> None:
    table = Table(["", "x"], [["long name", "1"], ["n", "22"]])
    assert table.text().splitlines() == ["            x", "long name   1", "n          22"]
    assert table.markdown().splitlines() == ["|  | x |", "| --- | ---: |", "| long name | 1 |", "| n | 22 |"]


def test_ratios_are_above_one_where_ours_is_better() -> None:
    lines = render(ENGINE, is_markdown=True).splitlines()
    assert "| a time (ms) | 4.00 | 6.00 | 1.50 | 2.00 | 50% |" in lines
    assert "| a rate (tok/s) | 3,000 | 1,500 | 2.00 |  |  |" in lines
    assert "A device (4.4 TB/s read, 777 TFLOP/s bfloat16)" in lines[0]
    assert "commit abc1234" in lines[0]


def test_a_profile_as_tables() -> None:
    text = render(PROFILE, is_markdown=False)
    rows = [line.split() for line in text.splitlines()]
    assert ["GEMM", "3,000", "60%"] in rows
    assert ["gaps", "1,000", "20%"] in rows
    assert ["attend", "1.00", "1,500", "1,500", "20%"] in rows


def test_pictures_are_sound_svg() -> None:
    svg = draw_bars([Bar("a < b", {"one": 3.0, "gaps": 1.0}), Bar("empty", {})])
    root = ElementTree.fromstring(svg)
    space = "{http://www.w3.org/2000/svg}"
    assert root.tag == f"{space}svg"
    texts = [element.text for element in root.iter(f"{space}text")]
    assert {"a < b", "empty", "75%", "one", "gaps"} <= set(texts)
    bars = [element for element in root.iter(f"{space}rect") if element.find(f"{space}title") is not None]
    assert [float(bar.attrib["width"]) for bar in bars] == [552.0, 184.0]


def test_pages_are_filled_again_and_again(tmp_path: Path) -> None:
    (tmp_path / "e.json").write_text(json.dumps(ENGINE))
    (tmp_path / "p.json").write_text(json.dumps(PROFILE))
    page = tmp_path / "page.md"
    places = ["results: e.json", "results: missing.json", "picture: pictures/x.svg of p.json missing.json"]
    page.write_text("".join(f"<!-- {place} -->\nold\n<!-- end of {place.split(':')[0]} -->\n\n" for place in places))
    filled = fill_page(page)
    assert "old" not in filled.text
    assert filled.text.count(NOTHING_YET) == 1
    assert "| a time (ms) |" in filled.text
    assert "](pictures/x.svg)" in filled.text
    assert list(filled.pictures) == [tmp_path / "pictures" / "x.svg"]
    page.write_text(filled.text)
    assert fill_page(page) == filled


@pytest.mark.parametrize("content", ["no json", "[]", '{"kind": "other"}'])
def test_other_files_are_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=r"x\.json"):
        read_result(path)
    with pytest.raises(ConfigError, match="Cannot read"):
        read_result(tmp_path / "missing.json")


def test_the_page_on_performance_is_current() -> None:
    filled = fill_page(PAGE)
    assert filled.text == PAGE.read_text(encoding="utf-8"), "Run: octavo bench results --page docs/performance.md"
    for path, picture in filled.pictures.items():
        assert path.read_text(encoding="utf-8") == picture, "Run: octavo bench results --page docs/performance.md"
