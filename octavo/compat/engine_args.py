"""vLLM's ``EngineArgs``: an engine's settings before there is an engine."""

import argparse
from collections.abc import Iterable
from dataclasses import field, make_dataclass
from typing import Any, Self

import msgspec

from octavo.cli.flags import flags_of
from octavo.config import EngineConfig
from octavo.config.engine_config import ENGINE_SECTIONS

_DEFAULT_MODEL = "bundled:smollm2"


def add_plain_flags(group: argparse._ActionsContainer, sections: Iterable[type[msgspec.Struct]]) -> None:
    """Give a parser of argparse's a flag for every setting, each with its default."""
    for section in sections:
        defaults = defaults_of(section)
        for flag in flags_of(section):
            options: dict[str, Any] = {
                "dest": flag.name,
                "default": defaults[flag.name],
                "help": flag.description.replace("%", "%%"),
            }
            if flag.kind == "bool":
                group.add_argument(flag.option, action=argparse.BooleanOptionalAction, **options)
            elif flag.kind == "list":
                group.add_argument(flag.option, nargs="+", **options)
            else:
                group.add_argument(flag.option, type=flag.read, **options)


def defaults_of(section: type[msgspec.Struct]) -> dict[str, Any]:
    """Setting → default; the model's is the bundled one."""
    values: dict[str, Any] = {}
    for entry in msgspec.structs.fields(section):
        if entry.required:
            values[entry.name] = _DEFAULT_MODEL
        elif entry.default is not msgspec.NODEFAULT:
            values[entry.name] = entry.default
        else:
            values[entry.name] = entry.default_factory()
    return values


class _EngineArgs:
    """The behaviour; the fields are made from the settings below.

    Args:
        settings: any setting by name; ``model`` may come first without it.

    Raises:
        ConfigError: a setting is unknown or wrong.
    """

    def __init__(self, model: str = _DEFAULT_MODEL, **settings: Any) -> None:
        # An argument of vLLM's may have become a setting of another name, and one that changes nothing has no field.
        config = EngineConfig.from_kwargs(model=model, **settings)
        for section in ENGINE_SECTIONS:
            vars(self).update(msgspec.structs.asdict(getattr(config, section)))

    @staticmethod
    def add_cli_args(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
        """Give a parser a flag for every setting; each is in the namespace, whether it was given or not."""
        add_plain_flags(parser.add_argument_group("Engine"), ENGINE_SECTIONS.values())
        return parser

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> Self:
        """From what a parser with these flags found; other attributes of the namespace are left alone."""
        return cls(**{name: value for name, value in vars(args).items() if name in _DEFAULTS})

    def create_engine_config(self, usage_context: object = None, **options: object) -> EngineConfig:
        """The settings of an engine.

        Args:
            usage_context, options: taken for compatibility.
        """
        values = {name: getattr(self, name) for name in _DEFAULTS}
        changed = {name: value for name, value in values.items() if value != _DEFAULTS[name]}
        return EngineConfig.from_kwargs(**{"model": _DEFAULT_MODEL} | changed)


_DEFAULTS = {name: value for section in ENGINE_SECTIONS.values() for name, value in defaults_of(section).items()}
_NAMESPACE = {"__module__": __name__}
_FIELDS = [(name, Any, field(default=None)) for name in _DEFAULTS]

EngineArgs = make_dataclass("EngineArgs", _FIELDS, bases=(_EngineArgs,), init=False, namespace=_NAMESPACE)
AsyncEngineArgs = make_dataclass("AsyncEngineArgs", [], bases=(EngineArgs,), init=False, namespace=_NAMESPACE)
