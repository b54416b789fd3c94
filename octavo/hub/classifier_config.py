"""The classifiers of pooling models: their layers, labels and activation functions."""

from dataclasses import dataclass
from typing import Any

from octavo.errors import UnsupportedModelError
from octavo.hub.config_values import positive_number, quote
from octavo.hub.encoder_config import EncoderFields
from octavo.hub.head_classifier import QWEN3_RERANKER_TEMPLATE, is_qwen3_reranker
from octavo.hub.model_config import ModelConfig
from octavo.hub.purpose import declared_architecture, default_pooling
from octavo.records import DenseSpec, PoolingSpec, PoolingTask
from octavo.records.pooling import Activation

MAX_LABELS = 1 << 20
_ACTIVATIONS: dict[str, Activation] = {
    "Identity": "identity",
    "Sigmoid": "sigmoid",
    "Softmax": "softmax",
    "Tanh": "tanh",
}


@dataclass(frozen=True, slots=True)
class _RewardModel:
    """What a reward model's architecture implies.

    Attributes:
        layers: names of the layers that make rewards; with biases and a ReLU between them if there are two.
        activation: what turns logits into scores.
        step_tag_id: see :class:`PoolingSpec`.
    """

    layers: tuple[str, ...]
    num_labels: int = 1
    activation: Activation = "identity"
    step_tag_id: int | None = None


_REWARD_MODELS = {
    "InternLM2ForRewardModel": _RewardModel(("v_head",)),
    "Qwen2ForRewardModel": _RewardModel(("score.0", "score.2")),
    "Qwen2ForProcessRewardModel": _RewardModel(("score.0", "score.2"), 2, "softmax", 151651),
}


def class_spec(config: ModelConfig, purpose: PoolingTask, from_head: DenseSpec | None) -> PoolingSpec:
    """The pooling of a classifier.

    Args:
        from_head: its layer, if it is made of the head of a generative model.
    """
    reward = _REWARD_MODELS.get(declared_architecture(config))
    if from_head is not None:
        names = labels({"num_labels": from_head.out_features})
    else:
        names = labels(config.raw if reward is None else {"num_labels": reward.num_labels})
    own = config.own
    return PoolingSpec(
        tasks=[purpose],
        pooling=own.class_pooling if isinstance(own, EncoderFields) else default_pooling(config),
        is_encoder=config.is_encoder,
        hidden_size=config.hidden_size,
        dense=_layers(config, purpose, len(names)) if from_head is None else [from_head],
        num_labels=len(names),
        labels=names,
        activation=_activation(config.raw, len(names)) if reward is None else reward.activation,
        step_tag_id=None if reward is None else reward.step_tag_id,
        logit_sigma=_temperature(config),
        pair_template=QWEN3_RERANKER_TEMPLATE if is_qwen3_reranker(config.raw) else "",
    )


def labels(raw: dict[str, Any]) -> list[str]:
    """Names of the classes; two by default, as in transformers."""
    names = raw.get("id2label")
    if isinstance(names, dict) and names:
        by_index = {int(key): str(name) for key, name in names.items() if str(key).isdecimal()}
        if sorted(by_index) != list(range(len(names))) or len(names) > MAX_LABELS:
            raise UnsupportedModelError(f"The model's configuration has id2label = {quote(names)}, which has gaps.")
        return [by_index[index] for index in range(len(names))]
    count = raw.get("num_labels", 2)
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_LABELS:
        raise UnsupportedModelError(f"The model's configuration has num_labels = {quote(count)}.")
    return [f"LABEL_{index}" for index in range(count)]


def _layers(config: ModelConfig, purpose: PoolingTask, num_labels: int) -> list[DenseSpec]:
    hidden, own = config.hidden_size, config.own
    if isinstance(own, EncoderFields):
        is_of_tokens = purpose == "token_classify"
        head, name = (own.token_head, own.token_classifier) if is_of_tokens else (own.head, own.classifier)
        return [*head, DenseSpec("", name, hidden, num_labels, True, "identity")]
    reward = _REWARD_MODELS.get(declared_architecture(config))
    if reward is not None:
        *first, last = reward.layers
        layers = [DenseSpec("", name, hidden, hidden, True, "relu") for name in first]
        return [*layers, DenseSpec("", last, hidden, num_labels, bool(first), "identity")]
    # transformers gives classifiers of tokens a bias, and classifiers of sequences none.
    return [DenseSpec("", "score", hidden, num_labels, purpose == "token_classify", "identity")]


def _activation(raw: dict[str, Any], num_labels: int) -> Activation:
    """The activation of the logits: the one that sentence-transformers' keys name, else by ``problem_type``."""
    modern = raw.get("sentence_transformers")
    named = modern.get("activation_fn") if isinstance(modern, dict) else raw.get("sbert_ce_default_activation_function")
    if named is not None:
        known = _ACTIVATIONS.get(str(named).rpartition(".")[2])
        if known is None:
            raise UnsupportedModelError(
                f"The model's configuration has the activation {quote(named)}; known are {', '.join(_ACTIVATIONS)}."
            )
        return known
    problem = raw.get("problem_type")
    if problem == "regression":
        return "identity"
    if problem == "multi_label_classification" or num_labels == 1:
        return "sigmoid"
    return "softmax"


def _temperature(config: ModelConfig) -> float:
    """The temperature by which NVIDIA's rerankers divide logits."""
    value = config.raw.get("temperature")
    is_nvidia = declared_architecture(config) == "LlamaBidirectionalForSequenceClassification"
    return positive_number("temperature", value) if is_nvidia and value is not None else 1.0
