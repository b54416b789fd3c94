"""The setting ``pooler_config``, with vLLM's keys: overrides of a model's pooling."""

from typing import Any

import msgspec

from octavo.errors import ConfigError
from octavo.hub.config_values import quote
from octavo.records import PoolingSpec
from octavo.records.pooling import TASKS

_KEYS = (
    "task",
    "pooling_type",
    "seq_pooling_type",
    "tok_pooling_type",
    "use_activation",
    "dimensions",
    "step_tag_id",
    "returned_token_ids",
    "logit_mean",
    "logit_sigma",
)
_OF_TOKENS = ("ALL", "STEP")
_OF_SEQUENCES = ("CLS", "LAST", "MEAN")


def apply_pooler_config(spec: PoolingSpec, wanted: dict[str, Any]) -> PoolingSpec:
    """The spec with the setting's overrides.

    Raises:
        ConfigError: naming the key that is unknown or does not apply to the model.
    """
    unknown = [key for key in wanted if key not in _KEYS]
    if unknown:
        raise ConfigError(f"pooler_config accepts {', '.join(_KEYS)}, not {unknown[0]!r}.")
    changes = _pooling(spec, wanted) | _classes(spec, wanted)
    task = wanted.get("task")
    if task is not None:
        if task not in TASKS or task not in spec.tasks:
            raise ConfigError(f"pooler_config: this model's task is one of {', '.join(spec.tasks)}, not {task!r}.")
        changes["tasks"] = [task, *(other for other in spec.tasks if other != task)]
    if wanted.get("use_activation") is not None:
        is_used = wanted["use_activation"] is True
        changes["normalize"] = is_used and spec.num_labels == 0
        if not is_used:
            changes["activation"] = "identity"
    return msgspec.structs.replace(spec, **changes)


def _pooling(spec: PoolingSpec, wanted: dict[str, Any]) -> dict[str, Any]:
    of_tokens = wanted.get("tok_pooling_type")
    if of_tokens not in (None, *_OF_TOKENS):
        raise ConfigError(f"pooler_config: tok_pooling_type is one of {', '.join(_OF_TOKENS)}, not {of_tokens!r}.")
    pooling = wanted.get("seq_pooling_type") or wanted.get("pooling_type")
    if "STEP" in (of_tokens, pooling) and wanted.get("step_tag_id", spec.step_tag_id) is None:
        raise ConfigError("pooler_config: STEP needs step_tag_id, the token that ends a step.")
    if pooling is None or pooling in _OF_TOKENS:
        return {}
    if pooling not in _OF_SEQUENCES or spec.pooling == "SPLADE":
        known = "SPLADE for this model" if spec.pooling == "SPLADE" else "one of " + ", ".join(_OF_SEQUENCES)
        raise ConfigError(f"pooler_config: seq_pooling_type is {known}, not {pooling!r}.")
    return {"pooling": pooling}


def _classes(spec: PoolingSpec, wanted: dict[str, Any]) -> dict[str, Any]:
    """The overrides for classifiers, checked."""
    given = {
        key: wanted[key]
        for key in ("step_tag_id", "returned_token_ids", "logit_mean", "logit_sigma")
        if wanted.get(key) is not None
    }
    if given and not spec.num_labels:
        raise ConfigError(f"pooler_config: {next(iter(given))} is for models that classify; this one does not.")
    checks = {
        "step_tag_id": (_is_index, "a token id"),
        "returned_token_ids": (
            lambda ids: isinstance(ids, list) and all(_is_index(index) and index < spec.num_labels for index in ids),
            f"a list of classes below {spec.num_labels}",
        ),
        "logit_mean": (_is_number, "a number"),
        "logit_sigma": (lambda value: _is_number(value) and value > 0, "a number above 0"),
    }
    for key, value in given.items():
        is_fine, kind = checks[key]
        if not is_fine(value):
            raise ConfigError(f"pooler_config: {key} is {kind}, not {quote(value)}.")
    return given


def _is_index(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e30
