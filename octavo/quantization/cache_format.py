"""Decides how keys and values are stored, from the setting ``kv_cache_dtype`` and from what a checkpoint says."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from octavo.config import EngineConfig
from octavo.errors import ConfigError
from octavo.hub.config_values import quote
from octavo.hub.model_config import ModelConfig
from octavo.quantization.quark_cache import declared_cache, has_static_scales

WINDOWS = "sliding_window"
"""What ``kv_cache_dtype_skip_layers`` calls all layers with a sliding window."""

_FLOAT8 = "float8_e4m3fn"
CACHE_TYPES = {
    "fp8": _FLOAT8,
    "fp8_e4m3": _FLOAT8,
    "fp8_per_token_head": _FLOAT8,
    "fp8_e5m2": "float8_e5m2",
    "int8_per_token_head": "int8",
}
"""Values of ``kv_cache_dtype`` → torch's names of types of 8 bits."""

_TAKE_GIVEN = ("auto", "fp8", "fp8_e4m3")
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class CacheFormat:
    """How attention layers keep keys and values.

    Attributes:
        dtype: type by torch's name; empty for the compute type.
        has_given_scales: whether checkpoints have a scale for each layer's keys and one for its values; otherwise each
            token has one per head, or per latent vector, which is found when the token is stored.
        has_head_scales: whether checkpoints have such scales for each key/value head.
        skipped: indices of layers that keep them in the compute type.
        skips_windows: whether layers with a sliding window do.
        reason: why they are kept so.
    """

    dtype: str = ""
    has_given_scales: bool = False
    has_head_scales: bool = False
    skipped: frozenset[int] = frozenset()
    skips_windows: bool = False
    reason: str = ""

    def of_layer(self, name: str, window: int | None = None) -> "CacheFormat":
        """The format of one layer, whose index is the first number in its name."""
        number = _NUMBER.search(name)
        is_skipped = number is not None and int(number[0]) in self.skipped
        return CacheFormat() if is_skipped or (self.skips_windows and window is not None) else self

    def of_latents(self) -> "CacheFormat":
        """The format of latent vectors, which have no heads that scales could be given for."""
        return replace(self, has_given_scales=False, has_head_scales=False) if self.has_head_scales else self

    @property
    def has_own_scales(self) -> bool:
        """Whether scales lie in the cache beside what they scale."""
        return bool(self.dtype) and not self.has_given_scales

    @property
    def description(self) -> str:
        """The type and where its scales come from."""
        scales = "a scale per token and head"
        if self.has_given_scales:
            scales = f"the checkpoint's scales{' per head' if self.has_head_scales else ''}"
        return f"{self.dtype}, {scales}"


def resolve_cache_format(
    settings: EngineConfig, config: ModelConfig, dtype: str, *, has_float8_cache: bool
) -> CacheFormat:
    """How a model's keys and values are stored.

    Args:
        dtype: compute type by torch's name.
        has_float8_cache: see :meth:`octavo.platforms.Platform.has_float8_cache`.

    Raises:
        ConfigError: the settings ask for what device or model do not have.
    """
    wanted = settings.cache.kv_cache_dtype
    skipped, skips_windows = _skipped(settings.cache.kv_cache_dtype_skip_layers or [], config.num_layers)
    declared = _declared(config.quantization)
    reason = "as set"
    if wanted == "auto":
        if declared is None:
            return _unquantized("", bool(skipped) or skips_windows)
        if not has_float8_cache or declared not in _SUPPORTED:
            missing = "this device has no float8" if declared in _SUPPORTED else f"{declared} is not supported"
            return _unquantized(f"the checkpoint asks for a quantised cache, but {missing}", False)
        reason = "as the checkpoint says"
    elif wanted in ("bfloat16", "float16"):
        if wanted != dtype:
            raise ConfigError(
                f"kv_cache_dtype is {wanted!r}, but the model computes in {dtype}, and only smaller types than that "
                f"are converted; leave it out, or set dtype to {wanted}."
            )
        return _unquantized(reason, bool(skipped) or skips_windows)
    stored = CACHE_TYPES.get(wanted, _FLOAT8)
    if stored.startswith("float8") and not has_float8_cache:
        raise ConfigError(
            f"kv_cache_dtype is {wanted!r}, but this device does not convert float8 values, which takes compute "
            "capability 8.9 or higher; int8_per_token_head takes as much memory."
        )
    is_given = declared in (_GIVEN, _GIVEN_BY_HEAD) and wanted in _TAKE_GIVEN
    return CacheFormat(stored, is_given, is_given and declared == _GIVEN_BY_HEAD, skipped, skips_windows, reason)


def _unquantized(reason: str, skips: bool) -> CacheFormat:
    if skips:
        raise ConfigError(
            "kv_cache_dtype_skip_layers is set, but keys and values are not quantised; set kv_cache_dtype, or leave it "
            "out."
        )
    return CacheFormat(reason=reason)


def _skipped(names: list[str], num_layers: int) -> tuple[frozenset[int], bool]:
    """Indices of layers to skip, and whether all with a sliding window are among them."""
    numbers = [name for name in names if name != WINDOWS]
    for number in numbers:
        if not number.isdecimal() or int(number) >= num_layers:
            raise ConfigError(
                f"kv_cache_dtype_skip_layers takes indices of layers, below {num_layers} for this model, and "
                f"{WINDOWS!r}, not {number!r}."
            )
    return frozenset(map(int, numbers)), WINDOWS in names


_GIVEN, _GIVEN_BY_HEAD, _FOUND = "given", "given by head", "found"
_SUPPORTED = (_GIVEN, _GIVEN_BY_HEAD, _FOUND)
_STRATEGIES = {"tensor": _GIVEN, "attn_head": _GIVEN_BY_HEAD}
_FLOAT8_SCHEME = {"num_bits": 8, "type": "float", "symmetric": True}


def _declared(raw: Mapping[str, Any]) -> str | None:
    """What a checkpoint says of the cache: scales are given or to be found, something else as text, or nothing.

    Args:
        raw: ``quantization_config``, whose settings may lie under ``quantization``.
    """
    if raw.get("quant_method") == "quark":
        outputs = declared_cache(raw)
        return None if outputs is None else _GIVEN if has_static_scales(outputs) else quote(outputs)
    own = raw.get("quantization", raw)
    own = own if isinstance(own, Mapping) else raw
    algorithm, scheme = own.get("kv_cache_quant_algo"), own.get("kv_cache_scheme")
    if algorithm:  # ModelOpt
        return _GIVEN if isinstance(algorithm, str) and algorithm.upper() == "FP8" else quote(algorithm)
    if not scheme:
        return None
    if scheme == "static":  # AutoFP8
        return _GIVEN
    if not isinstance(scheme, Mapping) or any(scheme.get(key, value) != value for key, value in _FLOAT8_SCHEME.items()):
        return quote(scheme)
    return _FOUND if scheme.get("dynamic") else _STRATEGIES.get(str(scheme.get("strategy", "tensor")), _FOUND)
