"""Checkpoints in the compressed-tensors format: groups of layers by name or class, each with a scheme of its own.

Source: https://github.com/vllm-project/compressed-tensors.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeGuard

from octavo.errors import UnsupportedModelError
from octavo.hub.config_values import shown
from octavo.quantization.config import QuantizationConfig, SchemeOptions
from octavo.quantization.scheme import LinearScheme

_CLASS = "Linear"
_REGEX = "re:"
_MAX_PATTERN = 1000
_FORMATS = ("float-quantized", "naive-quantized")
_FLOAT8 = {"num_bits": 8, "type": "float", "symmetric": True, "group_size": None, "block_structure": None}


@dataclass(frozen=True, slots=True)
class Targets:
    """Layers by full names, by patterns that match the beginning of one, and whether all are meant."""

    names: frozenset[str]
    patterns: tuple[re.Pattern[str], ...]
    has_all: bool

    def match(self, name: str) -> bool:
        """Whether a layer is one of them."""
        return self.has_all or name in self.names or any(pattern.match(name) for pattern in self.patterns)


@dataclass(frozen=True, slots=True)
class CompressedTensorsConfig(QuantizationConfig):
    """Schemes by groups of layers; other layers are plain.

    Attributes:
        groups: in the checkpoint's order; names go before patterns, patterns before groups of all layers.
        ignored: layers that are plain whatever groups they are in.
    """

    groups: tuple[tuple[Targets, LinearScheme], ...]
    ignored: Targets

    @property
    def has_float8(self) -> bool:
        return True

    @property
    def description(self) -> str:
        return "float8, activations by token, as compressed-tensors"

    def scheme(self, name: str) -> LinearScheme:
        if self.ignored.match(name):
            return self.plain
        ranked = sorted(self.groups, key=lambda group: (name not in group[0].names, group[0].has_all))
        return next((scheme for targets, scheme in ranked if targets.match(name)), self.plain)

    def head_scheme(self, name: str) -> LinearScheme:
        return self.scheme(name)


def parse_compressed_tensors(raw: Mapping[str, Any], options: SchemeOptions) -> CompressedTensorsConfig:
    """The layers of a checkpoint.

    Static scales of activations are not used: scales per token, found as the tokens come, are at least as exact. Scales
    of the cache are not, either, which keeps keys and values unquantised.

    Args:
        raw: ``quantization_config``.

    Raises:
        UnsupportedModelError: a group is quantised in a way that is not supported, or the configuration is broken.
    """
    if raw.get("transform_config"):
        raise UnsupportedModelError("The checkpoint's weights are transformed (transform_config); they cannot be.")
    sparsity = raw.get("sparsity_config")
    if isinstance(sparsity, Mapping) and sparsity.get("format", "dense") != "dense":
        raise UnsupportedModelError(
            f"The checkpoint's weights are sparse ({shown(sparsity['format'])}); they cannot be."
        )
    groups = raw.get("config_groups")
    if (
        not isinstance(groups, Mapping)
        or not groups
        or not all(isinstance(group, Mapping) for group in groups.values())
    ):
        raise UnsupportedModelError("The checkpoint's quantization_config has no config_groups.")
    default_format = raw.get("format")
    parsed = [
        (_targets(group.get("targets")), options.float8(_source(name, group, group.get("format") or default_format)))
        for name, group in groups.items()
    ]
    return CompressedTensorsConfig(options.plain, tuple(parsed), _targets(raw.get("ignore") or []))


def _source(name: str, group: Mapping[str, Any], stored: Any) -> Literal["channel", "tensor"]:
    weights, inputs = group.get("weights"), group.get("input_activations")
    strategy = weights.get("strategy") if isinstance(weights, Mapping) else None
    if (
        stored in _FORMATS
        and strategy in ("channel", "tensor")
        and _is_float8(weights)
        and not weights.get("dynamic")
        and _is_float8(inputs)
        and inputs.get("strategy") in ("token", "tensor")
        and group.get("output_activations") is None
    ):
        return "channel" if strategy == "channel" else "tensor"
    raise UnsupportedModelError(
        f"The checkpoint's {str(name)[:60]} is quantised in a way that is not supported (format {shown(stored)}, "
        f"weights {_shown(weights)}, activations {_shown(inputs)}); supported are float8 weights with a scale per "
        "tensor or channel, and float8 activations with a scale per token or tensor."
    )


def _is_float8(values: Any) -> TypeGuard[Mapping[str, Any]]:
    return isinstance(values, Mapping) and all(values.get(key, wanted) == wanted for key, wanted in _FLOAT8.items())


def _shown(values: Any) -> str:
    if not isinstance(values, Mapping):
        return "not quantised" if values is None else shown(values)
    return ", ".join(f"{key} {shown(values.get(key))}" for key in ("num_bits", "type", "strategy", "dynamic"))


def _targets(given: Any) -> Targets:
    if not isinstance(given, Sequence) or isinstance(given, str) or not all(isinstance(item, str) for item in given):
        raise UnsupportedModelError("The checkpoint's quantization_config has targets that are no list of names.")
    patterns = [item.removeprefix(_REGEX) for item in given if item.startswith(_REGEX)]
    names = frozenset(item for item in given if not item.startswith(_REGEX))
    try:
        compiled = tuple(re.compile(pattern[:_MAX_PATTERN]) for pattern in patterns)
    except (re.error, RecursionError, OverflowError):
        raise UnsupportedModelError(
            "The checkpoint's quantization_config has a target that is no regular expression."
        ) from None
    return Targets(names, compiled, _CLASS in names)
