"""Checkpoints of NVIDIA's Model Optimizer: one algorithm for all layers, or one for each.

Source: https://github.com/NVIDIA/Model-Optimizer.
"""

from collections.abc import Mapping
from typing import Any

from octavo.errors import UnsupportedModelError
from octavo.hub.config_values import invalid, quote
from octavo.quantization.config import QuantizationConfig, SchemeOptions, Unquantized
from octavo.quantization.float4_layout import NVFP4_GROUP, Float4Layout
from octavo.quantization.float8_layout import ALL, MXFP8, Float8Layout
from octavo.quantization.grouped_weight import Layout
from octavo.quantization.patterns import module_names, names_in
from octavo.quantization.targets import TargetedConfig, Targets, target_group

_LAYOUTS: dict[str, Layout] = {
    "FP8": Float8Layout((ALL, ALL)),
    "FP8_PER_CHANNEL_PER_TOKEN": Float8Layout((1, ALL)),
    "FP8_PB_WO": Float8Layout((128, 128), rounds_inputs=False),
    "MXFP8": MXFP8,
    "NVFP4": Float4Layout("nvfp4"),
    "W4A16_NVFP4": Float4Layout("nvfp4"),
}
_MIXED = "MIXED_PRECISION"
_EXCLUDED = ("exclude_modules", "ignore")
_CACHES = ("kv_cache_quant_algo", "kv_cache_scheme")


def parse_modelopt(raw: Mapping[str, Any], options: SchemeOptions) -> QuantizationConfig:
    """The layers of a checkpoint.

    Static scales of activations are not used: scales per token, found as the tokens come, are at least as exact, and
    beside 4-bit floats activations are not rounded. :mod:`octavo.quantization.cache_format` reads what is said of
    keys and values.

    Args:
        raw: ``quantization_config``, or ``hf_quant_config.json``, which has the settings under ``quantization``.

    Raises:
        UnsupportedModelError: it was quantised in a way that is not supported, or the configuration is broken.
    """
    own = raw.get("quantization", raw)
    if not isinstance(own, Mapping):
        raise invalid("quantization", own, "an object")
    ignored = Targets(patterns=(module_names(names_in(own, _EXCLUDED)),))
    algorithm = own.get("quant_algo")
    if algorithm is None and any(own.get(key) for key in _CACHES):
        return Unquantized(options.plain)  # the cache alone is quantised
    if _is_mixed(algorithm):
        targets = _mixed(own.get("quantized_layers"))
    else:
        targets = {_layout(algorithm, own): Targets(has_all=True)}
    groups = tuple(target_group(own_targets, layout, options) for layout, own_targets in targets.items())
    return TargetedConfig(options.plain, "modelopt", groups, ignored)


def _is_mixed(algorithm: Any) -> bool:
    return isinstance(algorithm, str) and algorithm.upper() == _MIXED


def _mixed(layers: Any) -> dict[Layout, Targets]:
    """The layers of each layout, by the settings of layers, or of modules around them."""
    if not isinstance(layers, Mapping) or not layers or not all(isinstance(own, Mapping) for own in layers.values()):
        raise invalid("quantized_layers", layers, "an object of settings by layer")
    names: dict[Layout, list[str]] = {}
    for name, own in layers.items():
        names.setdefault(_layout(own.get("quant_algo"), own, f"quantized_layers[{quote(name)}]: "), []).append(name)
    return {layout: Targets(modules=frozenset(own_names)) for layout, own_names in names.items()}


def _layout(algorithm: Any, own: Mapping[str, Any], place: str = "") -> Layout:
    """The layout of an algorithm; ``place`` is where the configuration has it, for errors."""
    layout = _LAYOUTS.get(algorithm.upper()) if isinstance(algorithm, str) else None
    if layout is None:
        raise UnsupportedModelError(
            f"The checkpoint's ModelOpt weights have the {place}quant_algo {quote(algorithm)}; supported are "
            f"{', '.join(_LAYOUTS)}, and {_MIXED} of these."
        )
    if isinstance(layout, Float4Layout) and own.get("group_size") not in (None, NVFP4_GROUP):
        raise invalid(f"{place}group_size", own["group_size"], f"{NVFP4_GROUP} for {algorithm}")
    return layout
