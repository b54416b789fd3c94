"""Arguments of vLLM that are no settings of Octavo: which are accepted, what becomes of them, which are rejected.

Keyword arguments, flags and settings files all go through :func:`translate`; the rules are data, in
:mod:`octavo.config.vllm_table`.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from octavo.config.vllm_table import (
    CONVERTED,
    ONE_VALUE,
    RENAMED,
    SERVER_ONLY,
    SHORT_FLAGS,
    WITHOUT_EFFECT,
)
from octavo.errors import ConfigError

Kind = Literal["bool", "int", "float", "str", "list", "object"]


@dataclass(frozen=True, slots=True)
class VllmArgument:
    """One argument of vLLM.

    Attributes:
        name: with underscores.
        kind: how its value is read from text.
        reason: why it has no effect; empty if it may have one.
        accepted: values that ask for nothing special, beside None; None if every value is accepted.
        needs: what other values would need.
        instead: what to do instead, as the rest of a sentence; empty if there is nothing.
        setting: the setting of the same meaning under another name.
        becomes: what it is converted to, as text.
    """

    name: str
    kind: Kind
    reason: str = ""
    accepted: tuple[Any, ...] | None = None
    needs: str = ""
    instead: str = ""
    setting: str = ""
    becomes: str = ""

    @property
    def is_server_only(self) -> bool:
        """Whether only a server takes it."""
        return self.name in SERVER_ONLY

    @property
    def options(self) -> tuple[str, ...]:
        """Its spellings as a flag."""
        short = SHORT_FLAGS.get(self.name)
        return ("--" + self.name.replace("_", "-"), *([short] if short else []))

    def rejection(self, value: Any) -> str:
        """The sentence for a value that is not accepted."""
        instead = f" {self.instead[0].upper()}{self.instead[1:]} instead." if self.instead else ""
        return f"{self.name}={value!r} needs {self.needs}, which Octavo does not have (yet).{instead}"


@dataclass(frozen=True, slots=True)
class Translation:
    """What arguments become.

    Attributes:
        settings: Octavo's own, by name.
        without_effect: accepted arguments that change nothing, with their values.
    """

    settings: dict[str, Any]
    without_effect: dict[str, Any]

    def warning(self) -> str:
        """One sentence that names what has no effect; empty if there is nothing of the kind."""
        if not self.without_effect:
            return ""
        named = ", ".join(f"{name}={value!r}" for name, value in self.without_effect.items())
        return f"Accepted for vLLM's sake, without effect: {named}; docs/vllm-arguments.md says why."


@cache
def vllm_arguments() -> dict[str, VllmArgument]:
    """All arguments of the table, by name."""
    table: dict[str, VllmArgument] = {}

    def put(spec: str, **facts: Any) -> None:
        name, _, kind = spec.partition(":")
        assert name not in table, f"{name} is in the table twice"
        table[name] = VllmArgument(name, kind, **facts)  # type: ignore[arg-type]

    for reason, specs in WITHOUT_EFFECT.items():
        for spec in specs.split():
            put(spec, reason=reason)
    for spec, (accepted, needs) in ONE_VALUE.items():
        need, _, instead = needs.partition("; ")
        put(spec, accepted=accepted, needs=need, instead=instead)
    for spec, setting in RENAMED.items():
        put(spec, setting=setting)
    for spec, becomes in CONVERTED.items():
        put(spec, becomes=becomes)
    return table


def translate(values: Mapping[str, Any], *, has_server: bool) -> Translation:
    """Turn vLLM's arguments among ``values`` into settings, leave others as they are.

    Args:
        has_server: whether arguments that only a server takes are known.

    Raises:
        ConfigError: a value needs a feature that is missing or would change results.
    """
    table = vllm_arguments()
    found = {name: table[name] for name in values if name in table and (has_server or not table[name].is_server_only)}
    result = Translation({name: value for name, value in values.items() if name not in found}, {})
    for name, argument in found.items():
        value = values[name]
        if value is None:
            continue
        if argument.setting:
            result.settings.setdefault(argument.setting, value)
        elif argument.becomes:
            _CONVERTERS[name](value, result)
        elif argument.accepted is None or _is_among(value, argument.accepted):
            result.without_effect[name] = value
        else:
            raise ConfigError(argument.rejection(value))
    return result


def _is_among(value: Any, accepted: tuple[Any, ...]) -> bool:
    if isinstance(value, str):
        return value.lower() in accepted
    if isinstance(value, list | tuple | set | Mapping) and not value:
        return any(each in ([], {}) for each in accepted)
    return any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in accepted)


_TASKS: dict[Any, dict[str, str]] = {
    "auto": {},
    "generate": {"runner": "generate"},
    "embed": {"runner": "pooling", "convert": "embed"},
    "embedding": {"runner": "pooling", "convert": "embed"},
    "classify": {"runner": "pooling", "convert": "classify"},
    "score": {"runner": "pooling", "convert": "classify"},
}


def _convert_task(value: Any, result: Translation) -> None:
    if value not in _TASKS:
        raise ConfigError(f"task is one of {', '.join(_TASKS)}, not {value!r}.")
    for name, setting in _TASKS[value].items():
        result.settings.setdefault(name, setting)
    if not _TASKS[value]:
        result.without_effect["task"] = value


def _convert_optimization_level(value: Any, result: Translation) -> None:
    level = str(getattr(value, "value", value)).upper().removeprefix("O")
    if level not in ("0", "1", "2", "3"):
        raise ConfigError(f"optimization_level is 0, 1, 2 or 3, not {value!r}.")
    if level == "0":
        result.settings.setdefault("enforce_eager", True)
    else:
        result.without_effect["optimization_level"] = value


def _convert_compilation_config(value: Any, result: Translation) -> None:
    fields = {"mode": value} if isinstance(value, int | str) else _fields("compilation_config", value)
    mode = fields.get("cudagraph_mode")
    captures_nothing = mode is not None and getattr(mode, "name", str(mode)).upper() in ("NONE", "0")
    if captures_nothing or fields == {"mode": 0}:
        result.settings.setdefault("enforce_eager", True)
    else:
        result.without_effect["compilation_config"] = value


# Field → the setting that it becomes, or the values that are accepted without effect (None: all).
_STRUCTURED: dict[str, str | tuple[Any, ...] | None] = {
    "backend": "structured_outputs_backend",
    "reasoning_parser": "reasoning_parser",
    "reasoning_parser_plugin": "reasoning_parser_plugin",
    "disable_fallback": None,
    "disable_additional_properties": None,
    "disable_any_whitespace": "structured_outputs_disable_any_whitespace",
    "enable_in_reasoning": (False,),
}


def _convert_structured_outputs_config(value: Any, result: Translation) -> None:
    for field, content in _fields("structured_outputs_config", value).items():
        name = f"structured_outputs_config.{field}"
        if field not in _STRUCTURED:
            raise ConfigError(f"There is no {name}; there are {', '.join(_STRUCTURED)}.")
        rule = _STRUCTURED[field]
        if isinstance(rule, str):
            if content not in (None, ""):
                result.settings.setdefault(rule, content)
        elif rule is None or content in rule or content is None:
            result.without_effect[name] = content
        else:
            raise ConfigError(f"{name}={content!r} needs another kind of grammar, which Octavo does not have (yet).")


def _fields(name: str, value: Any) -> dict[str, Any]:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name} takes an object such as {{'key': 1}}, not {value!r}.")
    return {str(key): each for key, each in value.items()}


def _convert_max_num_active_seqs(value: Any, result: Translation) -> None:
    most = result.settings.get("max_num_seqs")
    if type(value) is int and type(most) is int and value > most:
        raise ConfigError(f"max_num_active_seqs ({value}) is above max_num_seqs ({most}).")
    result.settings["max_num_seqs"] = value


def _convert_tokens_only(value: Any, result: Translation) -> None:
    if value:
        result.settings["skip_tokenizer_init"] = True
    else:
        result.without_effect["tokens_only"] = value


def _convert_rope(name: str) -> Callable[[Any, Translation], None]:
    def convert(value: Any, result: Translation) -> None:
        overrides = result.settings.get("hf_overrides") or {}
        result.settings["hf_overrides"] = {name: value, **overrides}

    return convert


_CONVERTERS: dict[str, Callable[[Any, Translation], None]] = {
    "task": _convert_task,
    "max_num_active_seqs": _convert_max_num_active_seqs,
    "tokens_only": _convert_tokens_only,
    "optimization_level": _convert_optimization_level,
    "compilation_config": _convert_compilation_config,
    "structured_outputs_config": _convert_structured_outputs_config,
    "rope_scaling": _convert_rope("rope_scaling"),
    "rope_theta": _convert_rope("rope_theta"),
}
