"""Resolves ``speculative_config``."""

from collections.abc import Iterable, Mapping
from typing import Any

from octavo.config import EngineConfig
from octavo.errors import ConfigError
from octavo.hub.model_config import ModelConfig
from octavo.kernels.attention import MAX_DECODE_QUERIES
from octavo.records import CacheSpec, Latent, NgramDrafts

_MAX_DRAFTS = 32
_MAX_LOOKUP = 32
_USUAL_LOOKUP = 5
_FIELDS = ("method", "num_speculative_tokens", "prompt_lookup_min", "prompt_lookup_max")


def resolve_drafts(settings: EngineConfig, *, is_pooling: bool) -> NgramDrafts | None:
    """The drafter that the settings ask for; None without one.

    Raises:
        ConfigError: they ask for something that is not supported or contradicts itself.
    """
    given = settings.scheduler.speculative_config
    if not given:
        return None
    unknown = [name for name in given if name not in _FIELDS]
    if unknown:
        raise ConfigError(f"speculative_config has no field {unknown[0]!r} here; it has {', '.join(_FIELDS)}.")
    method = given.get("method")
    if method != "ngram":
        raise ConfigError(f"speculative_config: the method is {method!r}; 'ngram' is the only one so far.")
    if is_pooling:
        raise ConfigError("speculative_config is for generative models; this one is a pooling model.")
    if settings.model.logits_processors:
        raise ConfigError("speculative_config does not go with custom logits processors: they see one token at a time.")
    num_drafts = _number(given, "num_speculative_tokens", _MAX_DRAFTS)
    longest = given.get("prompt_lookup_max", given.get("prompt_lookup_min", _USUAL_LOOKUP))
    shortest = given.get("prompt_lookup_min", given.get("prompt_lookup_max", _USUAL_LOOKUP))
    lookup = {"prompt_lookup_max": longest, "prompt_lookup_min": shortest}
    max_length, min_length = (_number(lookup, name, _MAX_LOOKUP) for name in lookup)
    if min_length > max_length:
        raise ConfigError(
            f"speculative_config: prompt_lookup_min ({min_length}) is above prompt_lookup_max ({max_length})."
        )
    return NgramDrafts(num_drafts, min_length, max_length)


def decode_length(config: ModelConfig, specs: Iterable[CacheSpec], num_drafts: int) -> int:
    """Number of tokens up to which a row counts as decoding: the last token and its drafts, unless these are too many
    for a tile of decode attention, or attention is latent. Longer rows are computed as chunks of a prompt are."""
    length = 1 + num_drafts
    if any(isinstance(spec, Latent) for spec in specs):
        return 1
    return length if length * config.num_heads <= MAX_DECODE_QUERIES * config.num_kv_heads else 1


def _number(given: Mapping[str, Any], name: str, most: int) -> int:
    value = given.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise ConfigError(f"speculative_config: {name} is a whole number from 1 to {most}, not {value!r}.")
    return value
