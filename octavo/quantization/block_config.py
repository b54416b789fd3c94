"""Which layers have small numbers in groups: those of a GGUF file, or all (``--quantization int8|int4|mxfp4``)."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from octavo.hub.gguf_names import EACH
from octavo.kernels import FORMATS
from octavo.quantization.blocks import BlockScheme
from octavo.quantization.config import QuantizationConfig, SchemeOptions, Unquantized
from octavo.quantization.gguf_layout import GROUPED_TYPES, GGUFLayout
from octavo.quantization.grouped_weight import Layout
from octavo.quantization.rounded import RoundedScheme
from octavo.quantization.scheme import LinearScheme
from octavo.quantization.stored import PackedScheme, PackedTableScheme

_EXPERT = re.compile(r"\.experts\.\d+\.")


@dataclass(frozen=True, slots=True)
class GGUFConfig(QuantizationConfig):
    """Layers as they are in a file; others are dequantised as they are loaded.

    Attributes:
        types: the type of each layer's weight, by the layer's name; that of a layer of all experts has
            :data:`octavo.hub.gguf_names.EACH` in the place of their numbers.
    """

    types: Mapping[str, BlockScheme | PackedScheme]

    @property
    def description(self) -> str:
        names = [
            scheme.format if isinstance(scheme, BlockScheme) else scheme.layout.name for scheme in self.types.values()
        ]
        return " and ".join(sorted(set(names), key=lambda name: -names.count(name)))

    def scheme(self, name: str) -> LinearScheme:
        return self.types.get(_EXPERT.sub(f".experts.{EACH}.", name), self.plain)

    def layout(self, name: str) -> Layout | None:
        scheme = self.scheme(name)
        return scheme.layout if _EXPERT.search(name) and isinstance(scheme, PackedScheme) else None

    def head_scheme(self, name: str) -> LinearScheme:
        return self.scheme(name)

    def embedding_scheme(self, name: str) -> LinearScheme:
        scheme = self.scheme(name)
        if isinstance(scheme, PackedScheme):
            # Rows alone are read: a kernel for few rows would keep copies of its scales.
            return replace(scheme, plain=replace(scheme.plain, deterministic=True))
        return scheme


@dataclass(frozen=True, slots=True)
class RoundedConfig(QuantizationConfig):
    """All layers.

    Attributes:
        layers: the scheme of all but the head.
        head: that of the head, and of embeddings where rows can be read from it.
    """

    layers: BlockScheme | RoundedScheme
    head: LinearScheme

    @property
    def description(self) -> str:
        if isinstance(self.layers, RoundedScheme):
            return f"{self.layers.format}, a scale per output and {self.layers.group} inputs"
        return f"{self.layers.format}, activations in 8 bits"

    def scheme(self, name: str) -> LinearScheme:
        return self.layers

    def head_scheme(self, name: str) -> LinearScheme:
        return self.head

    def embedding_scheme(self, name: str) -> LinearScheme:
        return self.head


def parse_gguf(raw: Mapping[str, Any], options: SchemeOptions) -> QuantizationConfig:
    """How the layers of a GGUF file are stored; unquantised where the device has no kernels for them.

    Args:
        raw: ``types``: names of layers → GGUF's types.
    """
    types: dict[str, BlockScheme | PackedScheme] = {}
    if options.has_blocks:
        types = {name: BlockScheme(kind) for name, kind in raw["types"].items() if kind in FORMATS}
    elif options.packs_gguf:
        types = {
            name: (PackedScheme if _is_in_layer(name) else PackedTableScheme)(GGUFLayout(kind), options.plain)
            for name, kind in raw["types"].items()
            if kind in GROUPED_TYPES
        }
    return GGUFConfig(options.plain, types) if types else Unquantized(options.plain)


def _is_in_layer(name: str) -> bool:
    """Whether it is a linear layer inside one of the model's layers: no embedding or head."""
    return any(part.isdigit() for part in name.split("."))


def round_to_int8(options: SchemeOptions) -> RoundedConfig:
    """Round unquantised weights to eight bits as they are loaded."""
    return _round_to_integers("int8", options)


def round_to_int4(options: SchemeOptions) -> RoundedConfig:
    """Round unquantised weights to four bits as they are loaded, but for the head's, which have eight."""
    return _round_to_integers("int4", options)


def _round_to_integers(name: Literal["int8", "int4"], options: SchemeOptions) -> RoundedConfig:
    # Four bits are too few for an embedding, and the head's errors go straight into the logits.
    if options.has_blocks:
        return RoundedConfig(options.plain, BlockScheme(name), BlockScheme("int8"))
    layers = RoundedScheme(name, options.deterministic)
    return RoundedConfig(options.plain, layers, RoundedScheme("int8", options.deterministic))


def round_to_mxfp4(options: SchemeOptions) -> RoundedConfig:
    """Round unquantised weights as they are loaded, but for the head's."""
    layers = BlockScheme("mxfp4") if options.has_blocks else RoundedScheme("mxfp4", options.deterministic)
    return RoundedConfig(options.plain, layers, options.plain)
