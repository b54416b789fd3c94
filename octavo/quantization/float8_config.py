"""Models quantised as a whole to float8: as they are loaded (``--quantization fp8``), or by ``quant_method: fp8``."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from octavo.hub.config_values import invalid
from octavo.quantization.blocks import BlockScheme
from octavo.quantization.config import QuantizationConfig, SchemeOptions
from octavo.quantization.float8 import Float8Scheme
from octavo.quantization.float8_layout import ALL, Float8Layout, is_block
from octavo.quantization.grouped_weight import Layout
from octavo.quantization.patterns import ModuleNames, module_names, names_in
from octavo.quantization.scheme import LinearScheme
from octavo.quantization.stored import StoredScheme

_IGNORED = ("ignored_layers", "modules_to_not_convert")
_BY_OUTPUT = "fbgemm_fp8"


@dataclass(frozen=True, slots=True)
class Float8Config(QuantizationConfig):
    """All linear layers but the head and those that are named.

    Attributes:
        layers: the scheme of the others.
        ignored: names of layers, or of modules around them; see :class:`ModuleNames`.
        stored: how checkpoints store the others; None if they are rounded as they are loaded.
    """

    layers: LinearScheme
    ignored: ModuleNames = field(default_factory=ModuleNames)
    stored: Float8Layout | None = None

    @property
    def has_float8(self) -> bool:
        return isinstance(self.layers, Float8Scheme)

    @property
    def description(self) -> str:
        if isinstance(self.layers, BlockScheme):
            return f"{self.layers.format} in place of float8, activations in 8 bits"
        if self.stored is None or not isinstance(self.layers, StoredScheme):
            return "float8, activations by token"
        rows, columns = self.stored.block
        shared = f"block of {rows} × {columns}" if self.stored.has_blocks else "tensor" if rows == ALL else "output"
        return f"float8, a scale per {shared}; {self.layers.kept_as}"

    def layout(self, name: str) -> Layout | None:
        return None if self._is_ignored(name) else self.stored

    def scheme(self, name: str) -> LinearScheme:
        return self.plain if self._is_ignored(name) else self.layers

    def _is_ignored(self, name: str) -> bool:
        return self.ignored.match(name)


def round_to_float8(options: SchemeOptions) -> Float8Config:
    """Round unquantised weights as they are loaded.

    A device that multiplies integers keeps these instead: they take as many bytes and are closer to the weights.
    """
    return Float8Config(options.plain, BlockScheme("int8") if options.has_blocks else options.float8())


def parse_float8(raw: Mapping[str, Any], options: SchemeOptions) -> Float8Config:
    """The layers of a checkpoint that was quantised with one scale per weight, per block of it, or per output (FBGEMM).

    Static scales of activations are not used: scales per token, found as the tokens come, are at least as exact. Beside
    weights with scales per block, activations are rounded by groups of inputs, or not at all.

    Args:
        raw: ``quantization_config``.

    Raises:
        UnsupportedModelError: it was quantised in another way.
    """
    ignored = module_names(names_in(raw, _IGNORED))
    is_by_output = raw.get("quant_method") == _BY_OUTPUT
    block = None if is_by_output else raw.get("weight_block_size")
    if block is None:
        layout = Float8Layout((1 if is_by_output else ALL, ALL))
        return Float8Config(options.plain, options.float8(layout), ignored, layout)
    if not is_block(block):
        raise invalid("weight_block_size", block, "two whole numbers above 0")
    layout = Float8Layout((block[0], block[1]), "weight_scale_inv")
    return Float8Config(options.plain, options.stored(layout), ignored, layout)
