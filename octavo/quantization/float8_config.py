"""Models quantised as a whole to float8: as they are loaded (``--quantization fp8``), or by ``quant_method: fp8``."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from octavo.errors import UnsupportedModelError
from octavo.hub.config_values import wrong
from octavo.quantization.config import QuantizationConfig, SchemeOptions
from octavo.quantization.scheme import LinearScheme

_IGNORED = ("ignored_layers", "modules_to_not_convert")


@dataclass(frozen=True, slots=True)
class Float8Config(QuantizationConfig):
    """All linear layers but the head and those that are named.

    Attributes:
        layers: the scheme of the others.
        ignored: names of layers, or of modules around them, in full or from any dot on.
    """

    layers: LinearScheme
    ignored: tuple[str, ...] = ()

    @property
    def has_float8(self) -> bool:
        return True

    @property
    def description(self) -> str:
        return "float8, activations by token"

    def scheme(self, name: str) -> LinearScheme:
        return self.plain if any(_is_within(name, module) for module in self.ignored) else self.layers


def round_to_float8(options: SchemeOptions) -> Float8Config:
    """Round unquantised weights as they are loaded."""
    return Float8Config(options.plain, options.float8("plain"))


def parse_float8(raw: Mapping[str, Any], options: SchemeOptions) -> Float8Config:
    """The layers of a checkpoint that was quantised with one scale per weight.

    Static scales of activations are not used: scales per token, found as the tokens come, are at least as exact.

    Args:
        raw: ``quantization_config``.

    Raises:
        UnsupportedModelError: it was quantised in another way.
    """
    if raw.get("weight_block_size") is not None:
        raise UnsupportedModelError("The checkpoint's float8 weights have scales per block, which is not supported.")
    ignored: list[str] = []
    for key in _IGNORED:
        names = raw.get(key) or []
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise wrong(key, names, "a list of names")
        ignored += names
    return Float8Config(options.plain, options.float8("tensor"), tuple(ignored))


def _is_within(name: str, module: str) -> bool:
    return f".{module}." in f".{name}."
