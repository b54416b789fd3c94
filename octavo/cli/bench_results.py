"""``octavo bench results``: files of figures as tables."""

from collections.abc import Sequence
from pathlib import Path

from octavo.bench.results import fill_page, read_result, render
from octavo.cli.bench_report import write_text
from octavo.cli.parser import Parser
from octavo.errors import ConfigError


def run(arguments: Sequence[str]) -> int:
    """Print or fill; returns the exit status."""
    parser = Parser(
        "octavo bench results",
        "Show what octavo bench engine, octavo bench kernels and octavo profile wrote; or fill a page with it.",
        "[FILE ...]",
    )
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="results, as JSON")
    parser.add_argument("--markdown", action="store_true", help="tables in Markdown")
    parser.add_argument(
        "--page", type=Path, metavar="FILE", help="fill this page's places for results and write it back"
    )
    given = parser.parse(arguments)
    if not given.files and given.page is None:
        raise ConfigError("Name files of results, or a page with --page.")
    for path in given.files:
        print(render(read_result(path), is_markdown=given.markdown), end="\n\n")
    if given.page is not None:
        filled = fill_page(given.page)
        for path, text in {given.page: filled.text, **filled.pictures}.items():
            write_text(path, text)
    return 0
