"""Links in the README and the pages lead to files and headings that exist."""

import re
from pathlib import Path
from urllib.parse import unquote

import pytest
from pages import PAGES, ROOT

LINK = re.compile(r"!?\[[^\]\n]*(?:\n[^\]\n]+)?\]\((?P<target>[^)\s]+)\)")
# Made when the site is built.
GENERATED = {"reference/command-line.md", "reference/http.md", "reference/metrics.md", "examples.md"}


def links(page: Path) -> list[str]:
    """Targets of a page's links that lead into this repository."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    return [match["target"] for match in LINK.finditer(text) if "://" not in match["target"]]


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub and MkDocs make them."""
    headings = re.findall(
        r"^#+ (.+)$", re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL), re.MULTILINE
    )
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in links(page):
        path, _, anchor = unquote(target).partition("#")
        file = page if not path else page.parent / path
        if path in GENERATED or path.removeprefix("../") in GENERATED:
            continue
        assert file.exists(), target
        if anchor and file.suffix == ".md":
            assert anchor in anchors(file), target


def test_the_readme_has_every_link_once() -> None:
    targets = links(ROOT / "README.md")
    assert sorted(targets) == sorted(set(targets))


def test_only_the_contributing_guide_links_the_log_of_developers() -> None:
    linking = {
        page.name.lower()
        for page in PAGES
        if any(target.partition("#")[0].endswith("status.md") for target in links(page))
    }
    assert linking == {"contributing.md"}
