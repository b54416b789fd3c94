"""Reasoning formats by name, plug-ins, and the meaning of ``auto``."""

import importlib.util
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Protocol, runtime_checkable

from octavo.errors import ConfigError
from octavo.outputs.parsers.base import PromptEnd, ReasoningParser
from octavo.outputs.parsers.harmony import HarmonyFormat
from octavo.outputs.parsers.reasoning.detect import detect_reasoning
from octavo.outputs.parsers.reasoning.formats import TAGGED_FORMATS
from octavo.outputs.parsers.reasoning.message_formats import MESSAGE_FORMATS
from octavo.outputs.parsers.tools.registry import detect_tools


@runtime_checkable
class ReasoningFormat(Protocol):
    """How a family of models marks its reasoning."""

    @property
    def name(self) -> str:
        """What settings call it."""

    @property
    def end_tags(self) -> tuple[str, ...]:
        """What ends reasoning, as text; a grammar for the answer begins after it."""

    def start(self, prompt_end: PromptEnd) -> ReasoningParser:
        """A parser for one answer after this prompt."""


_FORMATS: dict[str, ReasoningFormat] = {}
# Names of earlier versions and of other servers.
_ALIASES = {
    "deepseek-r1": "deepseek_r1",
    "deepseek_v31": "deepseek_v3",
    "deepseek_v32": "deepseek_v3",
    "deepseek-v3": "deepseek_v3",
    "glm4_moe": "glm45",
    "gpt-oss": "openai_gptoss",
    "gpt_oss": "openai_gptoss",
    "kimi": "kimi_k2",
    "kimi_k25": "kimi_k2",
    "minimax": "minimax_m2",
    "nano_v3": "nemotron_v3",
    "step3.5": "step3p5",
}


def register(format_: ReasoningFormat) -> None:
    """Add a format, or put it in the place of the one of its name.

    Raises:
        ConfigError: the format lacks a part.
    """
    if not isinstance(format_, ReasoningFormat) or not format_.name or not format_.end_tags:
        raise ConfigError("A reasoning format needs a name, end_tags (at least one) and a method start(prompt_end).")
    _FORMATS[format_.name] = format_


def reasoning_format(name: str) -> ReasoningFormat:
    """The format of this name.

    Raises:
        ConfigError: there is none.
    """
    found = _FORMATS.get(_ALIASES.get(name, name))
    if found is None:
        raise ConfigError(f"There is no reasoning parser {name!r}; there are {', '.join(reasoning_names())}.")
    return found


def reasoning_names() -> list[str]:
    """All names, sorted, aliases left out."""
    return sorted(_FORMATS)


def detect(
    chat_template: str | None, model_type: str | None, vocab_has: Callable[[str], bool]
) -> tuple[str | None, str | None]:
    """The names of the reasoning parser and of the tool parser that fit a model, None where none does.

    Args:
        model_type: as in the model's ``config.json``.
    """
    return detect_reasoning(chat_template, model_type, vocab_has), detect_tools(chat_template, model_type, vocab_has)


@cache
def run_plugin(path: str) -> None:
    """Run an operator's Python file, which registers parsers, once.

    Raises:
        ConfigError: there is no such file, or it fails.
    """
    file = Path(path)
    if not file.is_file():
        raise ConfigError(f"There is no file {path} to load parsers from.")
    spec = importlib.util.spec_from_file_location(f"octavo_parser_plugin_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"The plug-in {path} is no Python file; its name must end in .py.")
    try:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"The plug-in {path} failed: {type(error).__name__}: {error}") from error


_BUILT_IN: tuple[ReasoningFormat, ...] = (*TAGGED_FORMATS, *MESSAGE_FORMATS, HarmonyFormat())
for _format in _BUILT_IN:
    register(_format)
