"""Configurations of checkpoints whose layers have tensors of their own; a format says which layout a layer has."""

import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from octavo.hub.config_values import ConfigValues, invalid
from octavo.quantization.config import QuantizationConfig, SchemeOptions
from octavo.quantization.grouped_weight import Layout
from octavo.quantization.patterns import compile_pattern
from octavo.quantization.scheme import LinearScheme

_MAX_GROUP = 1 << 16
_EXCLUDE, _INCLUDE = "-:", "+:"
_OVERRIDES = ("bits", "group_size", "sym", "desc_act")


@dataclass(frozen=True, slots=True)
class StoredConfig(QuantizationConfig):
    """Layers by their layout.

    Attributes:
        options: what their schemes need to know of the device.
    """

    options: SchemeOptions

    @property
    @abstractmethod
    def usual(self) -> Layout:
        """The layout of most layers."""

    @property
    def description(self) -> str:
        values = f": {self.usual.form}" if self.usual.form else ""
        return f"{self.usual.name}{values}; {self.options.stored(self.usual).kept_as}"

    @abstractmethod
    def layout(self, name: str) -> Layout | None:
        """See :meth:`QuantizationConfig.layout`."""

    def scheme(self, name: str) -> LinearScheme:
        layout = self.layout(name)
        return self.plain if layout is None else self.options.stored(layout)


LayoutRule = tuple[re.Pattern[str], Layout | None]
"""A pattern that matches the beginning of names, and the layout of such layers; None if they are not quantised."""


def dynamic_rules(values: ConfigValues, changed: Callable[[Mapping[str, Any]], Layout]) -> tuple[LayoutRule, ...]:
    """GPTQModel's ``dynamic``: patterns whose layers are excluded (``-:``) or have settings of their own (``+:``).

    Args:
        changed: the layout of layers with some settings.

    Raises:
        UnsupportedModelError: a rule is broken, or asks for what is not supported.
    """
    return tuple(_rule(pattern, changes, values, changed) for pattern, changes in values.mapping("dynamic").items())


def _rule(
    pattern: str, changes: Any, values: ConfigValues, changed: Callable[[Mapping[str, Any]], Layout]
) -> LayoutRule:
    if pattern.startswith(_EXCLUDE):
        return compile_pattern(pattern.removeprefix(_EXCLUDE)), None
    if not isinstance(changes, Mapping):
        raise invalid("dynamic", changes, "an object of settings by pattern")
    own = {key: changes.get(key, values.get(key)) for key in _OVERRIDES}
    layout = changed({key: value for key, value in own.items() if value is not None})
    return compile_pattern(pattern.removeprefix(_INCLUDE)), layout


def layout_by_rules(rules: Iterable[LayoutRule], name: str, default: Layout | None) -> Layout | None:
    """The layout of the first rule that a layer's name matches."""
    return next((layout for pattern, layout in rules if pattern.match(name)), default)


def stored_format(raw: Mapping[str, Any], keys: Sequence[str], default: str) -> Any:
    """How integers are packed, under the first of several keys that there is; writers differ in the key."""
    return next((raw[key] for key in keys if raw.get(key)), default)


def group_size(values: ConfigValues) -> int:
    """The number of inputs that share a scale; -1 for all.

    Raises:
        UnsupportedModelError: it is no such number.
    """
    return -1 if values.get("group_size") == -1 else values.count("group_size", _MAX_GROUP)
