"""vLLM's arguments as flags that ``--help`` does not show; :mod:`octavo.config.vllm_arguments` judges their values."""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from octavo.cli.parser import MergeObjects
from octavo.cli.values import parse_count, parse_float, parse_json
from octavo.config.vllm_arguments import VllmArgument, vllm_arguments

SETTING_PREFIX = "setting:"


@dataclass(frozen=True, slots=True)
class VllmFlag:
    """An argument of vLLM as the command line sees it."""

    argument: VllmArgument

    @property
    def name(self) -> str:
        """Its name, with underscores."""
        return self.argument.name

    def read(self, text: str) -> Any:
        """Parse ``text``."""
        if text.lower() in ("none", "null"):
            return None
        match self.argument.kind:
            case "int":
                return parse_count(text)
            case "float":
                return parse_float(text)
            case "object" | "list":
                try:
                    return parse_json(text)
                except ValueError:
                    return text
            case "bool" if text.lower() in ("true", "false"):
                return text.lower() == "true"
        return text

    def add_to(self, parser: argparse.ArgumentParser, taken: frozenset[str]) -> None:
        """Give a parser the flag, under those of its spellings that are not ``taken``."""
        options = [option for option in self.argument.options if option not in taken]
        if not options or options[0] not in self.argument.options[:1]:
            return
        common: dict[str, Any] = {
            "dest": SETTING_PREFIX + self.name,
            "default": argparse.SUPPRESS,
            "help": argparse.SUPPRESS,
        }
        if self.argument.kind == "bool":
            parser.add_argument(*options, action=argparse.BooleanOptionalAction, **common)
        elif self.argument.kind == "list":
            parser.add_argument(*options, type=self.read, nargs="+", action="extend", **common)
        elif self.argument.kind == "object":
            parser.add_argument(*options, type=self.read, action=MergeObjects, **common)
        else:
            parser.add_argument(*options, type=self.read, **common)


def vllm_flags(has_server: bool) -> Iterator[VllmArgument]:
    """The arguments that are flags.

    Args:
        has_server: those of a server, too.
    """
    return (each for each in vllm_arguments().values() if has_server or not each.is_server_only)
