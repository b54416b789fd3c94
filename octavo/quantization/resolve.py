"""Decides how a model's weights are quantised, from its checkpoint and the setting ``quantization``.

To add a method, write its parser in a file beside this one and add it to :data:`METHODS`. Parsers are imported for the
models that need them.
"""

from collections.abc import Mapping
from pkgutil import resolve_name
from typing import Any

from octavo.config import EngineConfig
from octavo.config.values import MODELOPT_ALGORITHMS, QUANTIZATION_ALIASES, SHARED_KERNELS
from octavo.errors import ConfigError, UnsupportedModelError
from octavo.hub.config_values import quote
from octavo.hub.model_config import ModelConfig
from octavo.quantization.blocks import MADE_AT_LOAD
from octavo.quantization.config import QuantizationConfig, SchemeOptions, Unquantized
from octavo.quantization.found_layers import FoundLayers

ROUNDED: dict[str, str] = {
    "fp8": "octavo.quantization.float8_config:round_to_float8",
    "mxfp4": "octavo.quantization.block_config:round_to_mxfp4",
    "int8": "octavo.quantization.block_config:round_to_int8",
    "int4": "octavo.quantization.block_config:round_to_int4",
}
"""Values of the setting that round unquantised weights as they are loaded → how, as ``module:function``."""

METHODS: dict[str, str] = {
    "auto-round": "octavo.quantization.auto_round:parse_auto_round",
    "awq": "octavo.quantization.awq:parse_awq",
    "bitsandbytes": "octavo.quantization.bitsandbytes:parse_bitsandbytes",
    "compressed-tensors": "octavo.quantization.compressed_tensors:parse_compressed_tensors",
    "fbgemm_fp8": "octavo.quantization.float8_config:parse_float8",
    "fp8": "octavo.quantization.float8_config:parse_float8",
    "gguf": "octavo.quantization.block_config:parse_gguf",
    "gptq": "octavo.quantization.gptq:parse_gptq",
    "modelopt": "octavo.quantization.modelopt:parse_modelopt",
    "mxfp4": "octavo.quantization.mxfp4:parse_mxfp4",
    "quark": "octavo.quantization.quark:parse_quark",
    "torchao": "octavo.quantization.torchao:parse_torchao",
}
"""``quant_method`` of checkpoints → parser of their ``quantization_config``, as ``module:function``."""


_WITHOUT_NAMES = ("gguf", "mxfp4")
"""Methods whose configurations say of every layer how it is stored."""


def resolve_quantization(
    settings: EngineConfig,
    config: ModelConfig,
    *,
    has_float8: bool,
    has_blocks: bool = False,
    has_groups: bool = False,
) -> QuantizationConfig:
    """How the linear layers of a model are stored.

    Args:
        has_float8: whether the device multiplies float8; see :meth:`octavo.platforms.Platform.has_float8`.
        has_blocks: whether it multiplies blocks of integers; see :meth:`octavo.platforms.Platform.has_blocks`.
        has_groups: whether it unpacks integers in its GEMMs; see :meth:`octavo.platforms.Platform.has_groups`.

    Raises:
        ConfigError: the setting contradicts the checkpoint.
        UnsupportedModelError: the checkpoint is quantised in a way that is not supported.
    """
    named = settings.model.quantization
    wanted = None if named is None else QUANTIZATION_ALIASES.get(named, named)
    is_plain = not config.quantization or (config.quantization.get("quant_method") == "gguf" and wanted != "gguf")
    # Whoever asks for float32 asks for the exact values of the file, or of float8, which integers would not give.
    is_exact = wanted is None or (wanted == "fp8" and is_plain)
    expands = is_exact and settings.model.dtype == "float32"
    options = SchemeOptions(
        has_float8,
        settings.device.deterministic,
        has_blocks and not expands,
        expands,
        has_groups,
        packs_gguf=has_groups and wanted == "gguf",
    )
    if wanted is None or (wanted == "gguf" and not config.quantization):
        return stored_quantization(config, options)
    if wanted in MADE_AT_LOAD and not (has_blocks or has_groups):
        raise ConfigError(
            f"quantization is {wanted!r}, which needs a GPU or a CPU with compiled kernels (see docs/cpu.md); leave it "
            "out."
        )
    if is_plain:
        if wanted not in ROUNDED:
            raise ConfigError(
                f"quantization is {named!r}, but the checkpoint is not quantised; leave it out, or use one of "
                f"{', '.join(ROUNDED)}."
            )
        return rounded_quantization(wanted, options)
    stored, method = stored_quantization(config, options), config.quantization["quant_method"]
    method = QUANTIZATION_ALIASES.get(method, method)
    if method not in SHARED_KERNELS.get(wanted, (wanted,)):
        raise ConfigError(f"quantization is {named!r}, but the checkpoint is quantised by {method!r}; leave it out.")
    _check_algorithm(named, config.quantization)
    return stored


def _check_algorithm(named: str | None, raw: Mapping[str, Any]) -> None:
    """Reject one of vLLM's names for ModelOpt's algorithms that is not the checkpoint's."""
    meant = MODELOPT_ALGORITHMS.get(named or "")
    own = raw["quantization"] if isinstance(raw.get("quantization"), Mapping) else raw
    algorithm = str(own.get("quant_algo")).upper()
    if meant is not None and algorithm not in meant:
        raise ConfigError(
            f"quantization is {named!r}, but the checkpoint's weights have the quant_algo {algorithm}; leave it out."
        )


def stored_quantization(config: ModelConfig, options: SchemeOptions) -> QuantizationConfig:
    """How a checkpoint's linear layers are stored.

    Raises:
        UnsupportedModelError: in a way that is not supported.
    """
    if not config.quantization:
        return Unquantized(options.plain)
    named = config.quantization.get("quant_method")
    method = QUANTIZATION_ALIASES.get(named, named) if isinstance(named, str) else None
    if method not in METHODS:
        raise UnsupportedModelError(
            f"The checkpoint holds quantised weights ({quote(named)}), which are not supported; supported are "
            f"{', '.join(METHODS)}."
        )
    declared = parsed_quantization(method, config.quantization, options)
    return declared if method in _WITHOUT_NAMES else FoundLayers(options.plain, declared, config.stored)


def rounded_quantization(name: str, options: SchemeOptions) -> QuantizationConfig:
    """How layers are stored that one of :data:`ROUNDED` rounds."""
    quantization: QuantizationConfig = resolve_name(ROUNDED[name])(options)
    return quantization


def parsed_quantization(method: str, raw: Mapping[str, Any], options: SchemeOptions) -> QuantizationConfig:
    """How layers are stored that a ``quantization_config`` of one of :data:`METHODS` describes.

    Raises:
        UnsupportedModelError: in a way that is not supported.
    """
    quantization: QuantizationConfig = resolve_name(METHODS[method])(raw, options)
    return quantization
