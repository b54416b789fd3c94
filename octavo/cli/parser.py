"""argparse with errors as sentences, and with hints for flags that do not exist."""

import argparse
import difflib
import json
from collections.abc import Collection, Sequence
from typing import Any, NoReturn, Protocol

from octavo.cli.foreign_flags import VLLM_FLAGS
from octavo.cli.values import parse_json
from octavo.config import ServerSettings
from octavo.config.vllm_arguments import vllm_arguments
from octavo.errors import ConfigError


class HelpFormatter(argparse.HelpFormatter):
    """Leaves room for long flags."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=32)


class LateFlag(Protocol):
    """A flag that is overridden by the command's own flags of the same name."""

    def add_to(self, parser: argparse.ArgumentParser, taken: frozenset[str]) -> None:
        """Give a parser the flag, unless its name is among those ``taken``."""


class Parser(argparse.ArgumentParser):
    """A parser of one command's flags.

    Underscores in flags mean hyphens; abbreviations are not guessed. Fields of JSON objects may be flags of their
    own (``--flag.field``). What is wrong comes as :class:`ConfigError`.

    Attributes:
        vllm_flags: vLLM's flags that the command takes beside its own.
    """

    vllm_flags: Sequence[LateFlag] = ()

    def __init__(self, prog: str, description: str, arguments: str = "") -> None:
        super().__init__(
            prog=prog,
            usage=f"{prog} {arguments} [flags]".replace("  ", " "),
            description=description,
            formatter_class=HelpFormatter,
            allow_abbrev=False,
        )

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse a command's arguments."""
        taken = frozenset(self._option_string_actions)
        for flag in self.vllm_flags:
            flag.add_to(self, taken)
        spelled = [each for argument in arguments for each in _spelled_out(argument)]
        namespace, extras = self.parse_known_args(join_fields(spelled, self._object_flags()))
        for extra in extras:
            if extra.startswith("-"):
                raise ConfigError(self.explain_unknown(extra.partition("=")[0]))
        if extras:
            raise ConfigError(f"Unexpected argument {extras[0]!r}; see {self.prog} --help.")
        return namespace

    def explain_unknown(self, flag: str) -> str:
        """A sentence on a flag that this command does not have."""
        known = [
            option
            for option, action in self._option_string_actions.items()
            if option.startswith("--") and action.help is not argparse.SUPPRESS
        ]
        near = difflib.get_close_matches(flag, known, 1, cutoff=0.75)
        hint = f" Did you mean {near[0]}?" if near else f" See {self.prog} --help."
        name = flag.partition(".")[0].replace("--no-", "--", 1)
        setting = name.removeprefix("--").replace("-", "_")
        if setting in ServerSettings.__struct_fields__:
            return f"{flag} is a flag of octavo serve that {self.prog} does not have.{hint if near else ''}"
        if name in VLLM_FLAGS or setting in vllm_arguments():
            return f"{flag} is a flag of vLLM that {self.prog} does not have (yet).{hint if near else ''}"
        return f"There is no flag {flag}.{hint}"

    def _object_flags(self) -> frozenset[str]:
        actions = self._option_string_actions.items()
        return frozenset(option for option, action in actions if isinstance(action, MergeObjects))

    def error(self, message: str) -> NoReturn:
        """Raise argparse's complaint as a sentence."""
        message = message.removeprefix("argument ")
        raise ConfigError(f"{message[0].upper()}{message[1:].rstrip('.')}.")


def _spelled_out(argument: str) -> list[str]:
    """``--max_num_seqs=4`` as ``--max-num-seqs=4``, ``-O3`` as ``-O 3``; values and names of fields are left alone."""
    if argument.startswith("-O") and argument[2:].lstrip("=").isdigit():
        return ["-O", argument[2:].lstrip("=")]
    if not argument.startswith("--"):
        return [argument]
    name, separator, value = argument.partition("=")
    flag, dot, path = name.partition(".")
    return [flag.replace("_", "-") + dot + path + separator + value]


def join_fields(arguments: Sequence[str], objects: Collection[str]) -> list[str]:
    """The arguments, with every field of an object as the object that holds it: ``--flag {"key": value}``.

    A field's name that ends with ``+`` appends to a list. Values are JSON if they can be, and text otherwise.

    Args:
        objects: flags that take an object, with their dashes.
    """
    joined: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        name, separator, text = argument.partition("=")
        flag, dot, path = name.partition(".")
        if not dot or flag not in objects:
            joined.append(argument)
            continue
        if not separator:
            text = next(rest, "")
            if not text:
                raise ConfigError(f"{name} takes a value.")
        is_list = path.endswith("+")
        keys = path.removesuffix("+").split(".")
        if not all(keys):
            raise ConfigError(f"{name} names no field: write {flag}.FIELD VALUE.")
        value: Any = [_read(item) for item in text.split(",")] if is_list else _read(text)
        for key in reversed(keys):
            value = {key: value}
        joined += [flag, json.dumps(value)]
    return joined


def _read(text: str) -> Any:
    try:
        return parse_json(text)
    except ValueError:
        return text


class MergeObjects(argparse.Action):
    """Joins the objects that a flag is given: fields of later ones win, lists grow."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        setattr(namespace, self.dest, _merged(getattr(namespace, self.dest, None), values))


def _merged(old: Any, new: Any) -> Any:
    if isinstance(old, dict) and isinstance(new, dict):
        return old | {key: _merged(old[key], value) if key in old else value for key, value in new.items()}
    if isinstance(old, list) and isinstance(new, list):
        return old + new
    return new
