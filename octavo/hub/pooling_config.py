"""Determines a pooling model's task from its architecture's suffix, its module files and the settings."""

import dataclasses
from typing import Any, Literal

import msgspec

from octavo.config.settings import ModelSettings
from octavo.errors import ConfigError, UnsupportedModelError
from octavo.hub.config_values import shown
from octavo.hub.families.bert import BertFields
from octavo.hub.families.registry import FAMILIES
from octavo.hub.model_config import ModelConfig
from octavo.hub.modules import SentenceModules, read_modules
from octavo.hub.source import ModelSource
from octavo.records import DenseSpec, PoolingSpec, PoolingTask
from octavo.records.pooling import TASKS, Activation, SequencePooling

Purpose = Literal["generate", "embed", "classify", "token_classify", "token_embed"]

_CAUSAL = "ForCausalLM"
_OWN_NAME = "own_architecture"
"""Key under which a configuration keeps the architecture that its file names."""
# Suffix of an architecture → what it is for; longer ones first.
_SUFFIXES: tuple[tuple[str, Purpose], ...] = (
    ("ForSequenceClassification", "classify"),
    ("ForTokenClassification", "token_classify"),
    ("ForMaskedLM", "embed"),
    (_CAUSAL, "generate"),
    ("_ColBERT", "token_embed"),
    ("Model", "embed"),
)
_POOLER_KEYS = ("task", "pooling_type", "seq_pooling_type", "tok_pooling_type", "use_activation", "dimensions")
_ACTIVATIONS: dict[str, Activation] = {
    "Identity": "identity",
    "Sigmoid": "sigmoid",
    "Softmax": "softmax",
    "Tanh": "tanh",
}
MAX_LABELS = 1 << 20
_COLBERT_DIM = 128


def generating_form(raw: dict[str, Any]) -> dict[str, Any]:
    """A configuration as that of the decoder which writes text, where a decoder's other forms are built on one."""
    names = raw.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        return raw
    for suffix, _ in _SUFFIXES:
        base = names[0].removesuffix(suffix)
        if base != names[0] and base + _CAUSAL in FAMILIES:
            return {**raw, "architectures": [base + _CAUSAL], _OWN_NAME: names[0]}
    return raw


def with_pooling(config: ModelConfig, source: ModelSource, settings: ModelSettings) -> ModelConfig:
    """The configuration with what the model answers with vectors, if that is its purpose.

    Raises:
        ConfigError: the settings ask for what the model cannot do.
        UnsupportedModelError: its files say what is not supported.
    """
    modules = read_modules(source.path) if source.kind == "folder" else None
    purpose = _purpose(config, modules, settings)
    if purpose == "generate":
        if settings.pooler_config:
            raise ConfigError("pooler_config is for models that answer with vectors; add runner=pooling.")
        return config
    spec = _spec(config, source, modules if purpose in ("embed", "token_embed") else None, purpose)
    return dataclasses.replace(config, pooling=_overridden(spec, settings.pooler_config or {}))


def _purpose(config: ModelConfig, modules: SentenceModules | None, settings: ModelSettings) -> Purpose:
    own = _own_purpose(config)
    is_pooling = own != "generate" or modules is not None
    if settings.runner == "generate":
        if own != "generate":
            raise ConfigError(
                f"The model's architecture {_name(config)!r} does not write text; leave runner=generate out."
            )
        return "generate"
    if settings.convert == "none":
        if settings.runner == "pooling" and own == "generate":
            raise ConfigError("runner=pooling needs convert=embed or convert=classify for a model that writes text.")
        return own
    if settings.convert != "auto":
        if own not in ("generate", settings.convert) and not (own == "token_embed" and settings.convert == "embed"):
            raise ConfigError(f"The model's architecture {_name(config)!r} cannot be used with {settings.convert!r}.")
        return settings.convert if own == "generate" else own
    if own != "generate":
        return "token_embed" if modules is not None and modules.pooling is None and modules.dense else own
    if not is_pooling and settings.runner != "pooling":
        return "generate"
    return "token_embed" if modules is not None and modules.pooling is None else "embed"


def _name(config: ModelConfig) -> str:
    return str(config.raw.get(_OWN_NAME) or config.raw["architectures"][0])


def _own_purpose(config: ModelConfig) -> Purpose:
    for suffix, purpose in _SUFFIXES:
        if _name(config).endswith(suffix):
            return purpose
    return "generate"


def _spec(config: ModelConfig, source: ModelSource, modules: SentenceModules | None, purpose: Purpose) -> PoolingSpec:
    pooling: SequencePooling = "CLS" if config.is_encoder else "LAST"
    if purpose in ("classify", "token_classify"):
        labels = _labels(config.raw)
        return PoolingSpec(
            tasks=[purpose],
            pooling=pooling,
            is_encoder=config.is_encoder,
            hidden_size=config.hidden_size,
            dense=_classifier(config, purpose, len(labels)),
            num_labels=len(labels),
            labels=labels,
            activation=_class_activation(config.raw, len(labels)),
        )
    dense = list(modules.dense) if modules is not None else []
    if _name(config).endswith("_ColBERT"):
        dense = [DenseSpec("", "linear", config.hidden_size, _colbert_dim(config.raw), False, "identity")]
    _check_sizes(dense, config.hidden_size)
    tasks: list[PoolingTask] = ["token_embed"] if purpose == "token_embed" else ["embed", "token_embed"]
    return PoolingSpec(
        tasks=tasks,
        pooling=pooling if modules is None or modules.pooling is None else modules.pooling,
        is_encoder=config.is_encoder,
        hidden_size=config.hidden_size,
        dense=dense,
        # A late-interaction model's token vectors are compared by their angle, whatever its files say.
        normalize=modules is None or modules.normalize or purpose == "token_embed",
        dimensions=_matryoshka(config.raw),
        max_length=None if modules is None else modules.max_length,
        prompts={} if modules is None else modules.prompts,
    )


def _check_sizes(dense: list[DenseSpec], hidden_size: int) -> None:
    size = hidden_size
    for layer in dense:
        if layer.in_features != size:
            raise UnsupportedModelError(
                f"The layer in {layer.folder or layer.name} takes {layer.in_features} numbers, but {size} come to it."
            )
        size = layer.out_features


def _classifier(config: ModelConfig, purpose: Purpose, num_labels: int) -> list[DenseSpec]:
    hidden = config.hidden_size
    if not config.is_encoder:
        return [DenseSpec("", "score", hidden, num_labels, False, "identity")]
    if purpose == "token_classify":
        return [DenseSpec("", "classifier", hidden, num_labels, True, "identity")]
    first, second = config.own_as(BertFields).classifier
    return [
        DenseSpec("", first, hidden, hidden, True, "tanh"),
        DenseSpec("", second, hidden, num_labels, True, "identity"),
    ]


def _labels(raw: dict[str, Any]) -> list[str]:
    """Names of the classes; two of them, as transformers has it, where the configuration is silent."""
    names = raw.get("id2label")
    if isinstance(names, dict) and names:
        by_index = {int(key): str(name) for key, name in names.items() if str(key).isdecimal()}
        if sorted(by_index) != list(range(len(names))) or len(names) > MAX_LABELS:
            raise UnsupportedModelError(f"The model's configuration has id2label = {shown(names)}, which has gaps.")
        return [by_index[index] for index in range(len(names))]
    count = raw.get("num_labels", 2)
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_LABELS:
        raise UnsupportedModelError(f"The model's configuration has num_labels = {shown(count)}.")
    return [f"LABEL_{index}" for index in range(count)]


def _class_activation(raw: dict[str, Any], num_labels: int) -> Activation:
    """What makes probabilities of logits: as sentence-transformers' files say, else by the kind of problem."""
    modern = raw.get("sentence_transformers")
    named = modern.get("activation_fn") if isinstance(modern, dict) else raw.get("sbert_ce_default_activation_function")
    if named is not None:
        known = _ACTIVATIONS.get(str(named).rpartition(".")[2])
        if known is None:
            raise UnsupportedModelError(
                f"The model's configuration has the activation {shown(named)}; known are {', '.join(_ACTIVATIONS)}."
            )
        return known
    problem = raw.get("problem_type")
    if problem == "regression":
        return "identity"
    if problem == "multi_label_classification" or num_labels == 1:
        return "sigmoid"
    return "softmax"


def _colbert_dim(raw: dict[str, Any]) -> int:
    for key in ("colbert_dim", "dim", "projection_dim"):
        value = raw.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 1 << 16:
            return value
    return _COLBERT_DIM


def _matryoshka(raw: dict[str, Any]) -> list[int] | None:
    dimensions = raw.get("matryoshka_dimensions")
    if isinstance(dimensions, list) and all(type(size) is int and size > 0 for size in dimensions):
        return sorted(dimensions)
    return None if raw.get("is_matryoshka") is True else []


def _overridden(spec: PoolingSpec, wanted: dict[str, Any]) -> PoolingSpec:
    """The spec with what ``pooler_config`` says."""
    unknown = [key for key in wanted if key not in _POOLER_KEYS]
    if unknown:
        raise ConfigError(f"pooler_config knows {', '.join(_POOLER_KEYS)}, not {unknown[0]!r}.")
    changes: dict[str, Any] = {}
    task = wanted.get("task")
    if task is not None:
        if task not in TASKS or task not in spec.tasks:
            raise ConfigError(f"pooler_config: this model's task is one of {', '.join(spec.tasks)}, not {task!r}.")
        changes["tasks"] = [task, *(other for other in spec.tasks if other != task)]
    pooling = wanted.get("seq_pooling_type") or wanted.get("pooling_type")
    if pooling is not None and pooling != "ALL":
        if pooling not in ("CLS", "LAST", "MEAN"):
            raise ConfigError(f"pooler_config: seq_pooling_type is one of CLS, LAST and MEAN, not {pooling!r}.")
        changes["pooling"] = pooling
    if wanted.get("tok_pooling_type") not in (None, "ALL"):
        raise ConfigError(f"pooler_config: tok_pooling_type is ALL, not {wanted['tok_pooling_type']!r}.")
    if wanted.get("use_activation") is not None:
        is_used = wanted["use_activation"] is True
        changes["normalize"] = is_used and spec.num_labels == 0
        if not is_used:
            changes["activation"] = "identity"
    return msgspec.structs.replace(spec, **changes)
