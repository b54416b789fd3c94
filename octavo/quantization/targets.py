"""Configurations that say how layers are stored by groups of them: by name, by pattern, or all."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from octavo.quantization.config import SOURCES, QuantizationConfig, SchemeOptions
from octavo.quantization.float8 import Float8Scheme
from octavo.quantization.float8_layout import Float8Layout
from octavo.quantization.grouped_weight import Layout
from octavo.quantization.patterns import Matcher
from octavo.quantization.scheme import LinearScheme
from octavo.quantization.stored import ExpandedScheme, StoredScheme


@dataclass(frozen=True, slots=True)
class Targets:
    """Some of a model's layers.

    Attributes:
        names: full names of layers.
        patterns: what matches the beginning of a name.
        has_all: whether all linear layers are meant.
        has_embeddings: whether all embeddings are meant.
        modules: full names of layers, or of modules around them.
    """

    names: frozenset[str] = frozenset()
    patterns: tuple[Matcher, ...] = ()
    has_all: bool = False
    has_embeddings: bool = False
    modules: frozenset[str] = frozenset()

    def match(self, name: str) -> bool:
        """Whether a layer is one of them."""
        return self.has_all or self._is_named(name)

    def match_embedding(self, name: str) -> bool:
        """Whether an embedding is one of them."""
        return self.has_embeddings or self._is_named(name)

    def _is_named(self, name: str) -> bool:
        if name in self.names or any(pattern.match(name) for pattern in self.patterns):
            return True
        return bool(self.modules) and any(module in self.modules for module in _modules_of(name))


class TargetGroup(NamedTuple):
    """Layers that are quantised alike.

    Attributes:
        targets: which they are.
        scheme: how they are stored on the device.
        layout: how they are stored in the checkpoint; None for one tensor of values.
    """

    targets: Targets
    scheme: LinearScheme
    layout: Layout | None


@dataclass(frozen=True, slots=True)
class TargetedConfig(QuantizationConfig):
    """Schemes by groups of layers; other layers are plain.

    Attributes:
        method: the format's name, for the plan.
        groups: in the checkpoint's order; names go before patterns, patterns before groups of all layers.
        ignored: layers that are plain whatever groups they are in.
    """

    method: str
    groups: tuple[TargetGroup, ...]
    ignored: Targets

    @property
    def has_float8(self) -> bool:
        return any(isinstance(group.scheme, Float8Scheme) for group in self.groups)

    @property
    def description(self) -> str:
        kinds = dict.fromkeys(
            f"{group.layout.form or group.layout.name}; {group.scheme.kept_as}"
            if isinstance(group.scheme, StoredScheme)
            else "float8, activations by token"
            for group in self.groups
            if group.layout is not None
        )
        return f"{self.method}: {', and '.join(kinds)}"

    def layout(self, name: str) -> Layout | None:
        group = self._group(name)
        return None if group is None else group.layout

    def scheme(self, name: str) -> LinearScheme:
        group = self._group(name)
        return self.plain if group is None else group.scheme

    def head_scheme(self, name: str) -> LinearScheme:
        return self.scheme(name)

    def embedding_scheme(self, name: str) -> LinearScheme:
        if self.ignored.match_embedding(name):
            return self.plain
        meant = [group for group in self.groups if group.targets.match_embedding(name)]
        # Few configurations say whether a format is the embedding's, too; the checkpoint does.
        usual = [group for group in self.groups if group.targets.has_all]
        layout = next((group.layout for group in (*meant, *usual)), None)
        return self.plain if layout is None else ExpandedScheme(layout, self.plain)

    def _group(self, name: str) -> TargetGroup | None:
        if self.ignored.match(name):
            return None
        ranked = sorted(self.groups, key=lambda group: (name not in group.targets.names, group.targets.has_all))
        return next((group for group in ranked if group.targets.match(name)), None)


def target_group(targets: Targets, layout: Layout, options: SchemeOptions) -> TargetGroup:
    """Layers in a layout, with the scheme that suits the device; see :class:`Float8Scheme` for scales of float8."""
    if isinstance(layout, Float8Layout) and layout.rounds_inputs and layout.block in SOURCES:
        return TargetGroup(targets, options.float8(layout), layout)
    return TargetGroup(targets, options.stored(layout), layout)


def _modules_of(name: str) -> Iterator[str]:
    """A layer's name, and those of the modules around it."""
    while name:
        yield name
        name = name.rpartition(".")[0]
