"""sentence-transformers' module files: what follows a model's layers (modules.json and its folders)."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from octavo.errors import UnsupportedModelError
from octavo.hub.config_values import quote
from octavo.hub.json_file import read_json, read_json_list
from octavo.records import DenseSpec
from octavo.records.pooling import Activation, SequencePooling

_MODES: dict[str, SequencePooling] = {"cls": "CLS", "mean": "MEAN", "lasttoken": "LAST"}
_MODE_KEYS: dict[str, str] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}
_ACTIVATIONS: dict[str, Activation] = {"Tanh": "tanh", "Identity": "identity", "Sigmoid": "sigmoid"}
_SAFE_FOLDER = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_MAX_SIZE = 1 << 24
_LENGTH_FILES = ("sentence_bert_config.json", "sentence_roberta_config.json", "sentence_xlm-roberta_config.json")
MAX_MODULES = 16
MAX_PROMPTS = 64


@dataclass(frozen=True, slots=True)
class SentenceModules:
    """The contents of the module files.

    Attributes:
        pooling: how a sequence becomes one vector; None if every token keeps its own.
        dense: linear layers after pooling.
        normalize: whether vectors are L2-normalised at the end.
        max_length: longest text, in tokens.
        prompts: name → text to put before inputs of that kind.
    """

    pooling: SequencePooling | None
    dense: tuple[DenseSpec, ...]
    normalize: bool
    max_length: int | None
    prompts: dict[str, str] = field(default_factory=dict)


def read_modules(folder: Path) -> SentenceModules | None:
    """The modules of a model; None if it has no such files."""
    path = folder / "modules.json"
    if not path.is_file():
        return None
    pooling: SequencePooling | None = None
    dense: list[DenseSpec] = []
    normalize = False
    modules = read_json_list(path)
    if len(modules) > MAX_MODULES:
        raise UnsupportedModelError(f"{path} names {len(modules)} modules; at most {MAX_MODULES} are supported.")
    for module in modules:
        kind = str(module.get("type", "")).rpartition(".")[2]
        place = str(module.get("path", ""))
        if place and not _SAFE_FOLDER.fullmatch(place):
            raise UnsupportedModelError(f"{path} names the folder {quote(place)}, which is not one of the model's.")
        if kind == "Transformer":
            continue
        if kind == "Pooling":
            pooling = _pooling(read_json(folder / place / "config.json"))
        elif kind == "Dense":
            dense.append(_dense(place, read_json(folder / place / "config.json")))
        elif kind == "Normalize":
            normalize = True
        else:
            raise UnsupportedModelError(f"{path} names a module of the type {quote(kind)}, which is not supported.")
    return SentenceModules(pooling, tuple(dense), normalize, _max_length(folder), _prompts(folder))


def _pooling(config: dict[str, Any]) -> SequencePooling:
    modes = [mode for key, mode in _MODE_KEYS.items() if config.get(key) is True]
    named = config.get("pooling_mode")
    if not modes and named is not None:
        modes = [str(mode) for mode in (named if isinstance(named, list) else [named])]
    if len(modes) != 1 or modes[0] not in _MODES:
        raise UnsupportedModelError(
            f"The model pools by {' and '.join(modes) or 'nothing that is named'}; supported are cls, mean and "
            "lasttoken."
        )
    return _MODES[modes[0]]


def _dense(place: str, config: dict[str, Any]) -> DenseSpec:
    sizes = [config.get("in_features"), config.get("out_features")]
    if not all(type(size) is int and 0 < size <= _MAX_SIZE for size in sizes):
        raise UnsupportedModelError(f"The layer in {place} has the sizes {quote(sizes)}.")
    name = str(config.get("activation_function", "Identity")).rpartition(".")[2]
    if name not in _ACTIVATIONS:
        raise UnsupportedModelError(
            f"The layer in {place} has the activation {quote(name)}; known are {', '.join(_ACTIVATIONS)}."
        )
    if config.get("use_residual") is True:
        raise UnsupportedModelError(f"The layer in {place} adds a residual, which is not supported.")
    return DenseSpec(place, "linear", sizes[0], sizes[1], config.get("bias", True) is True, _ACTIVATIONS[name])  # type: ignore[arg-type]


def _max_length(folder: Path) -> int | None:
    for name in _LENGTH_FILES:
        if (folder / name).is_file():
            value = read_json(folder / name).get("max_seq_length")
            if type(value) is int and value > 0:
                return value
    return None


def _prompts(folder: Path) -> dict[str, str]:
    path = folder / "config_sentence_transformers.json"
    prompts = read_json(path).get("prompts") if path.is_file() else None
    if not isinstance(prompts, dict):
        return {}
    texts = {name: text for name, text in prompts.items() if isinstance(text, str)}
    return dict(list(texts.items())[:MAX_PROMPTS])
