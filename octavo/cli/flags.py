"""Command-line flags derived from the settings: one flag a setting, never listed twice."""

import argparse
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec
import msgspec.inspect

from octavo.cli.config_file import read_config_file
from octavo.cli.parser import MergeObjects, Parser
from octavo.cli.values import parse_count, parse_float, parse_json_object
from octavo.cli.vllm_flags import SETTING_PREFIX, VllmFlag, vllm_flags
from octavo.config import EngineConfig, ServerSettings
from octavo.config.descriptions import field_descriptions
from octavo.config.engine_config import ENGINE_SECTIONS, convert_section
from octavo.config.environment import environment_warning, settings_from_environment
from octavo.config.values import explain_value
from octavo.config.vllm_arguments import translate
from octavo.errors import ConfigError

logger = logging.getLogger(__name__)

Kind = Literal["bool", "int", "float", "str", "choice", "list", "object"]
Sections = Mapping[str, type[msgspec.Struct]]

ALL_SECTIONS: dict[str, type[msgspec.Struct]] = {**ENGINE_SECTIONS, "server": ServerSettings}
TITLES = {
    "model": "Model",
    "load": "Loading",
    "cache": "Cache",
    "scheduler": "Scheduler",
    "device": "Device",
    "logging": "Logging",
    "server": "Server",
}
_OTHER_NAMES: dict[str, tuple[str, ...]] = {
    "tensor_parallel_size": ("-tp",),
    "speculative_config": ("-sc",),
    "quantization": ("-q",),
    "api_server_count": ("-asc",),
    "gpu_memory_utilization": ("--device-memory-utilization",),
}
_METAVARS: dict[str, str] = {"int": "N", "float": "X", "str": "TEXT", "list": "TEXT", "object": "JSON"}


@dataclass(frozen=True, slots=True)
class Flag:
    """A setting as the command line sees it.

    Attributes:
        name: of the setting, with underscores.
        is_optional: whether the setting may be left to be decided at start (None).
        default: as written in the settings; an empty list for settings whose default is one.
        description: the setting's documentation.
        choices: for the kind ``choice``.
    """

    name: str
    kind: Kind
    is_optional: bool
    default: Any
    description: str
    choices: tuple[str, ...] = ()

    @property
    def option(self) -> str:
        """The flag as written on the command line."""
        return "--" + self.name.replace("_", "-")

    def read(self, text: str) -> Any:
        """Parse ``text``."""
        if self.is_optional and self.kind != "str" and text.lower() in ("auto", "none"):
            return None
        if self.kind == "bool":
            return _parse_bool(text)
        if self.kind == "choice" and text not in self.choices:
            reason = explain_value(self.name, text)
            raise argparse.ArgumentTypeError(f"is one of {', '.join(self.choices)}, not {text!r}{reason}")
        return _READERS.get(self.kind, str)(text)


def flags_of(settings: type[msgspec.Struct]) -> Iterator[Flag]:
    """The flags of one section, in the order of its fields."""
    info = msgspec.inspect.type_info(settings)
    assert isinstance(info, msgspec.inspect.StructType)
    descriptions = field_descriptions(settings)
    for field in info.fields:
        kind, is_optional, choices = _kind(field.type)
        default = [] if field.default_factory is list else None if field.required else field.default
        yield Flag(field.name, kind, is_optional, default, descriptions[field.name], choices)


def add_setting_flags(parser: Parser, sections: Sections, *, has_server: bool | None = None) -> None:
    """Give a command the flags of settings and those of vLLM's, ``--config``, and the model as its first argument.

    Args:
        sections: names and classes of the sections to take.
        has_server: take vLLM's flags of its server as well; by default if the sections hold Octavo's.
    """
    has_server = "server" in sections if has_server is None else has_server
    parser.vllm_flags = [VllmFlag(each) for each in vllm_flags(has_server)]
    parser.add_argument("model_tag", nargs="?", metavar="MODEL", help="the same as --model")
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="settings from a YAML, TOML or JSON file; flags given here win"
    )
    for name, settings in sections.items():
        group = parser.add_argument_group(TITLES[name], settings.__doc__)
        for flag in flags_of(settings):
            add_flag(group, flag)


def given_settings(namespace: argparse.Namespace, sections: Sections) -> dict[str, Any]:
    """The settings that were given, on the command line or in the file that ``--config`` names."""
    values: dict[str, Any] = {}
    has_server = "server" in sections
    flags: dict[str, Flag | VllmFlag] = {each.name: VllmFlag(each) for each in vllm_flags(has_server)}
    flags |= {flag.name: flag for settings in sections.values() for flag in flags_of(settings)}
    if namespace.config is not None:
        values.update(read_config_file(namespace.config, flags))
    given = vars(namespace)
    values.update({name: given[SETTING_PREFIX + name] for name in flags if SETTING_PREFIX + name in given})
    translation = translate(values, has_server=has_server)
    values = translation.settings
    _warn(translation.warning(), values)
    if namespace.model_tag is not None:
        if given.get(SETTING_PREFIX + "model", namespace.model_tag) != namespace.model_tag:
            raise ConfigError(
                f"Two models were given: {namespace.model_tag!r} and {given[SETTING_PREFIX + 'model']!r}."
            )
        values["model"] = namespace.model_tag
    return values


def engine_config(values: Mapping[str, Any]) -> EngineConfig:
    """The engine's settings among ``values``; environment variables give some of those that are missing."""
    if not values.get("model"):
        raise ConfigError("Name a model: a Hugging Face id, a folder, a GGUF file or bundled:smollm2.")
    names = {name for settings in ENGINE_SECTIONS.values() for name in settings.__struct_fields__}
    _warn(environment_warning(is_error=bool(values.get("fail_on_environ_validation"))), values)
    given = {name: value for name, value in values.items() if name in names}
    return EngineConfig.from_settings({**given, **settings_from_environment(names, given)})


def server_settings(values: Mapping[str, Any]) -> ServerSettings:
    """The server's settings among ``values``; environment variables give some of those that are missing."""
    names = ServerSettings.__struct_fields__
    given = {name: value for name, value in values.items() if name in names}
    settings = convert_section(ServerSettings, {**given, **settings_from_environment(names, given)})
    assert isinstance(settings, ServerSettings)
    return settings


def _warn(sentence: str, values: Mapping[str, Any]) -> None:
    if sentence:
        # Not needed unless there is something to say, and it brings numpy along.
        from octavo.telemetry.logs import configure_logging

        configure_logging(
            values.get("log_level") or "info", values.get("log_format") or "text", values.get("log_config_file")
        )
        logger.warning("%s", sentence)


def add_flag(group: argparse._ArgumentGroup, flag: Flag) -> None:
    """Give a command one setting's flag."""
    # A command's own flags go first: -q is the quick question of octavo chat.
    others = (name for name in _OTHER_NAMES.get(flag.name, ()) if name not in group._option_string_actions)
    names = (flag.option, *others)
    add = partial(
        group.add_argument,
        *names,
        dest=SETTING_PREFIX + flag.name,
        default=argparse.SUPPRESS,
        help=describe(flag).replace("%", "%%"),
    )
    if flag.kind == "bool":
        add(action=argparse.BooleanOptionalAction)
    elif flag.kind == "list":
        add(action=_Extend, nargs="+", metavar=_METAVARS["list"])
    elif flag.kind == "object":
        add(type=flag.read, action=MergeObjects, metavar=_METAVARS["object"])
    else:
        add(type=flag.read, metavar=f"{{{','.join(flag.choices)}}}" if flag.choices else _METAVARS[flag.kind])


def describe(flag: Flag) -> str:
    """The flag's help: what it does and what holds without it."""
    if flag.default in (None, "", []) or flag.name == "model":
        return flag.description
    return f"{flag.description} Default: {format_default(flag)}."


def format_default(flag: Flag) -> str:
    """A default as one would type it; empty if it is decided at start."""
    if flag.default is None:
        return ""
    if flag.kind == "bool":
        return "on" if flag.default else "off"
    if flag.name.endswith("_bytes") and flag.default % (1 << 20) == 0:
        return f"{flag.default >> 20}MiB"
    return json.dumps(flag.default) if flag.kind in ("list", "object") else str(flag.default)


class _Extend(argparse.Action):
    """Collects repeated values, and values given as one JSON list."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        items = list(getattr(namespace, self.dest, []))
        for text in values:
            items += _parse_list(text, parser)
        setattr(namespace, self.dest, items)


def _parse_list(text: str, parser: argparse.ArgumentParser) -> list[str]:
    if not text.startswith("["):
        return [text]
    try:
        items = json.loads(text)
    except ValueError as error:
        parser.error(f"{text!r} looks like a JSON list, but is not one: {error}")
    return [str(item) for item in items]


def _parse_bool(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"is true or false, not {text!r}")
    return text.lower() == "true"


_READERS: dict[str, Callable[[str], Any]] = {"int": parse_count, "float": parse_float, "object": parse_json_object}


def _kind(kind: msgspec.inspect.Type) -> tuple[Kind, bool, tuple[str, ...]]:
    """How a field's value is read, whether it may be None, and its choices."""
    match kind:
        case msgspec.inspect.UnionType(types=types):
            inner_types = [inner for inner in types if not isinstance(inner, msgspec.inspect.NoneType)]
            assert len(inner_types) == 1, "a setting has one type besides None"
            name, _, choices = _kind(inner_types[0])
            return name, True, choices
        case msgspec.inspect.LiteralType(values=values):
            return "choice", False, tuple(str(value) for value in values)
        case msgspec.inspect.BoolType():
            return "bool", False, ()
        case msgspec.inspect.IntType():
            return "int", False, ()
        case msgspec.inspect.FloatType():
            return "float", False, ()
        case msgspec.inspect.StrType():
            return "str", False, ()
        case msgspec.inspect.ListType():
            return "list", False, ()
        case msgspec.inspect.DictType() | msgspec.inspect.StructType():
            return "object", False, ()
        case _:
            raise TypeError(f"There is no flag for a setting of type {kind}.")
