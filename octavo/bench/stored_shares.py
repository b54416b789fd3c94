"""How a model's weights and its cache are stored, as :mod:`octavo.bench.limits` takes it."""

from collections.abc import Mapping

import torch

from octavo.bench.limits import StoredShares
from octavo.config import EngineConfig
from octavo.hub.model_config import ModelConfig
from octavo.planning.memory import ModelSize, model_size
from octavo.quantization.cache_format import resolve_cache_format
from octavo.quantization.resolve import resolve_quantization
from octavo.records import WeightGroup


def find_shares(
    settings: EngineConfig, config: ModelConfig, dtype: str, formats: Mapping[str, bool], *, has_float8_cache: bool
) -> StoredShares:
    """What the settings make of a model on a device.

    Args:
        dtype: compute type by torch's name.
        formats: what the device multiplies, the arguments of :func:`octavo.quantization.resolve.resolve_quantization`.
        has_float8_cache: see :meth:`octavo.platforms.Platform.has_float8_cache`.

    Raises:
        ConfigError: a setting is wrong.
        UnsupportedModelError: the checkpoint is quantised in a way that is not supported.
    """
    quantization = resolve_quantization(settings, config, **formats)
    cache = resolve_cache_format(settings, config, dtype, has_float8_cache=has_float8_cache)
    compute_type: torch.dtype = getattr(torch, dtype)
    plain, stored = model_size(config, compute_type), model_size(config, compute_type, quantization, cache=cache)
    shares = {
        part: _share(_part_bytes(stored, part), _part_bytes(plain, part)) for part in ("layers", "experts", "head")
    }
    is_native = formats["has_float8"] and not settings.device.deterministic
    return StoredShares(
        **shares,
        keys=_share(_cache_bytes(stored), _cache_bytes(plain)),
        is_float8=quantization.has_float8 and is_native,
    )


def _share(stored: float, plain: float) -> float:
    return stored / plain if plain else 1.0


def _part_bytes(size: ModelSize, part: str) -> int:
    return sum(_part_size(group) for group in size.weights if _part_of(group) == part)


def _part_of(group: WeightGroup) -> str:
    if group.purpose in ("head", "embeddings"):
        return "head"
    return "experts" if group.purpose == "experts" else "layers"


def _part_size(group: WeightGroup) -> int:
    """An embedding that is not the head's weight is not read."""
    return group.num_bytes if group.purpose == "experts" else group.num_read


def _cache_bytes(size: ModelSize) -> int:
    return sum(spec.block_bytes(1, 1) for spec in size.cache_specs.values())
