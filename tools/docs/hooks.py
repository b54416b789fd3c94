"""Hooks of the documentation build: reference pages come from the code, links out of docs/ lead to the source."""

import re
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from reference import PAGES  # noqa: E402

# A role of Sphinx in a docstring, such as :class:, which Markdown does not know.
_ROLE = re.compile(r":(?:attr|class|exc|func|meth|mod):(?=<code>)")
# A link from a page to a file of the repository, such as ../examples/README.md.
_OUTSIDE = re.compile(r"\]\(\.\./(?P<path>[\w./-]+)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    for path, make_page in PAGES.items():
        files.append(File.generated(config, path, content=make_page()))
    return files


def on_page_markdown(markdown: str, config: MkDocsConfig, **_: object) -> str:
    """Point links that leave docs/ at the repository."""
    return _OUTSIDE.sub(lambda link: f"]({config.extra['repository']}/blob/main/{link['path']})", markdown)


def on_page_content(html: str, **_: object) -> str:
    """Show names in docstrings without the roles that Sphinx would read."""
    return _ROLE.sub("", html)
