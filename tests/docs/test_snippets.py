"""Command lines of the documentation are understood by the parsers, and its Python compiles."""

import ast
import importlib
import re
import shlex
from collections.abc import Iterator

import pytest
from pages import Block, blocks

from octavo.cli.main import main
from octavo.cli.parser import Parser
from octavo.errors import OctavoError

PLACEHOLDERS = {"$KEY": "secret", '"$KEY"': "secret"}
SHELL = ("console", "bash", "sh")


def commands(block: Block) -> Iterator[list[str]]:
    """Arguments of each ``octavo`` command of a block."""
    text = block.text.replace("\\\n", " ")
    for line in text.splitlines():
        is_prompt = line.startswith("$ ")
        if not line.removeprefix("$ ").startswith("octavo ") or (block.language == "console" and not is_prompt):
            continue
        for shown, value in PLACEHOLDERS.items():
            line = line.replace(shown, value)  # noqa: PLW2901
        words = shlex.split(line.removeprefix("$ "), comments=True)
        yield words[1 : words.index("|") if "|" in words else None]


COMMANDS = [(block.name, words) for block in blocks(*SHELL) for words in commands(block)]
SNIPPETS = list(blocks("python"))


class Parsed(Exception):  # noqa: N818
    """Raised in place of running the command."""


@pytest.mark.parametrize("words", [words for _, words in COMMANDS], ids=[f"{n}-{' '.join(w[:2])}" for n, w in COMMANDS])
def test_commands_parse(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    parse = Parser.parse

    def parse_only(self: Parser, arguments: list[str]) -> None:
        parse(self, arguments)
        raise Parsed

    monkeypatch.setattr(Parser, "parse", parse_only)
    if "COMMAND" in words:
        return
    with pytest.raises(Parsed):
        main(words)


def test_there_are_commands_and_snippets() -> None:
    assert len(COMMANDS) > 30
    assert len(SNIPPETS) > 20


def test_a_flag_that_does_not_exist_fails() -> None:
    with pytest.raises(OctavoError, match="no flag"):
        Parser("octavo x", "x").parse(["--no-such-flag"])


@pytest.mark.parametrize("block", SNIPPETS, ids=lambda block: block.name)
def test_python_compiles_and_imports_what_exists(block: Block) -> None:
    tree = ast.parse(re.sub(r"^>>> ", "", block.text, flags=re.MULTILINE))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "octavo":
            module = importlib.import_module(node.module)
            assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []
