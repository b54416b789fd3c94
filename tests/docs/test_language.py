"""User documentation keeps to the terms of the field, and guides begin with a command or a program."""

import re
from pathlib import Path

import pytest
from pages import ROOT

DOCS = ROOT / "docs"
CONTRIBUTORS = {"adding-a-model.md", "architecture.md", "contributing.md", "design.md", "performance.md", "status.md"}
LISTS = {"configuration.md", "differences.md", "index.md"}
GUIDES = sorted(path for path in DOCS.glob("*.md") if path.name not in CONTRIBUTORS | LISTS)
PROSE = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
ODD = re.compile(
    r"\b(calls of tools|in words|(?:tokens|requests|bytes) a second|house|floors|cellar|faces|thoughts|refuse[sd]?"
    r"|products?)\b",
    re.IGNORECASE,
)


@pytest.mark.parametrize("page", PROSE, ids=lambda page: page.name)
def test_pages_use_the_terms_of_the_field(page: Path) -> None:
    prose = re.sub(r"```.*?```|`[^`]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert ODD.findall(prose) == []


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.name)
def test_guides_begin_with_something_that_works(page: Path) -> None:
    lines = page.read_text(encoding="utf-8").splitlines()
    fence = next(index for index, line in enumerate(lines) if line.startswith("```"))
    before = [line for line in lines[1:fence] if line]
    assert lines[fence] in {"```console", "```python", "```sh"}
    assert len(before) <= 6, "the first command comes too late"
