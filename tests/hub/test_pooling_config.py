"""What a model is for, read off its files and the settings; broken files are refused in words."""

import json
from pathlib import Path
from typing import Any

import pytest

from octavo.config import EngineConfig
from octavo.errors import ConfigError, UnsupportedModelError
from octavo.hub import ModelConfig, find_model

BERT: dict[str, Any] = {
    "architectures": ["BertModel"],
    "vocab_size": 20,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 8,
    "max_position_embeddings": 32,
}
QWEN = BERT | {"architectures": ["Qwen3ForCausalLM"], "num_key_value_heads": 1, "head_dim": 4}
POOLING = {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}
NORMALIZE = {"type": "sentence_transformers.models.Normalize", "path": "2_Normalize"}


def write(folder: Path, config: dict[str, Any], files: dict[str, Any] | None = None) -> Path:
    """A model's folder without weights."""
    for name, content in {"config.json": config, **(files or {})}.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content))
    return folder


def read(folder: Path, **settings: Any) -> ModelConfig:
    return find_model(EngineConfig.from_kwargs(model=str(folder), **settings))[1]


@pytest.mark.parametrize(
    ("changes", "settings", "expected"),
    [
        ({}, {}, None),
        ({}, {"runner": "pooling"}, ["embed", "token_embed"]),
        ({}, {"convert": "embed"}, ["embed", "token_embed"]),
        ({}, {"convert": "classify"}, ["classify"]),
        ({}, {"runner": "generate"}, None),
        ({}, {"convert": "none"}, None),
        ({"architectures": ["Qwen3Model"]}, {}, ["embed", "token_embed"]),
        ({"architectures": ["Qwen3ForSequenceClassification"]}, {}, ["classify"]),
        ({"architectures": ["Qwen3ForTokenClassification"]}, {}, ["token_classify"]),
        (BERT, {}, ["embed", "token_embed"]),
        (BERT | {"architectures": ["HF_ColBERT"]}, {}, ["token_embed"]),
        (BERT, {"pooler_config": {"task": "token_embed"}}, ["token_embed", "embed"]),
    ],
)
def test_the_purpose(changes: dict[str, Any], settings: dict[str, Any], expected: Any, tmp_path: Path) -> None:
    pooling = read(write(tmp_path, QWEN | changes), **settings).pooling
    assert (None if pooling is None else pooling.tasks) == expected


@pytest.mark.parametrize(
    ("changes", "settings", "sentence"),
    [
        (BERT, {"runner": "generate"}, "'BertModel' does not generate text"),
        (BERT, {"convert": "classify"}, "'BertModel' cannot be used with 'classify'"),
        ({}, {"runner": "pooling", "convert": "none"}, "needs convert=embed or convert=classify"),
        ({}, {"pooler_config": {"task": "embed"}}, "add runner=pooling"),
        ({}, {"runner": "pooling", "pooler_config": {"tok_pooling_type": "STEP"}}, "STEP needs step_tag_id"),
    ],
)
def test_settings_that_contradict(
    changes: dict[str, Any], settings: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        read(write(tmp_path, QWEN | changes), **settings)


def test_modules_say_how_to_pool_and_how_long_a_text_may_be(tmp_path: Path) -> None:
    files = {
        "modules.json": [{"type": "sentence_transformers.models.Transformer", "path": ""}, POOLING],
        "1_Pooling/config.json": {"pooling_mode_lasttoken": True},
        "sentence_bert_config.json": {"max_seq_length": 17},
        "config_sentence_transformers.json": {"prompts": {"query": "Find: ", "bad": 3}},
    }
    pooling = read(write(tmp_path, QWEN, files)).pooling
    assert pooling is not None
    assert (pooling.pooling, pooling.normalize, pooling.max_length) == ("LAST", False, 17)
    assert pooling.prompts == {"query": "Find: "}
    assert read(tmp_path, runner="generate").pooling is None


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ({"modules.json": {}}, "does not hold a JSON list"),
        ({"modules.json": [POOLING]}, "1_Pooling/config.json is missing"),
        ({"modules.json": [POOLING | {"path": "../x"}]}, "which is not one of the model's"),
        ({"modules.json": [POOLING | {"path": "/etc"}]}, "which is not one of the model's"),
        ({"modules.json": [{"type": "x.WordWeights"}]}, "a module of the type 'WordWeights'"),
        ({"modules.json": [NORMALIZE] * 17}, "names 17 modules"),
        (
            {"modules.json": [POOLING], "1_Pooling/config.json": {"pooling_mode_max_tokens": True}},
            "The model pools by max;",
        ),
        (
            {
                "modules.json": [POOLING],
                "1_Pooling/config.json": {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True},
            },
            "The model pools by cls and mean;",
        ),
        (
            {
                "modules.json": [{"type": "x.Dense", "path": "2_Dense"}],
                "2_Dense/config.json": {"in_features": 9, "out_features": 4},
            },
            "takes 9 features, but its input has 8",
        ),
        (
            {"modules.json": [{"type": "x.Dense", "path": "2_Dense"}], "2_Dense/config.json": {"in_features": True}},
            "has the sizes",
        ),
    ],
)
def test_broken_modules_are_refused(files: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=sentence):
        read(write(tmp_path, BERT, files))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"position_embedding_type": "relative_key"}, "must be 'absolute'"),
        ({"is_decoder": True}, "only encoders"),
        ({"hidden_size": 9}, "a multiple of num_attention_heads"),
        ({"architectures": ["RobertaModel"], "pad_token_id": 40}, "more than 41"),
    ],
)
def test_broken_encoders_are_refused(changes: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=sentence):
        read(write(tmp_path, BERT | changes))


CLASSIFIER = BERT | {"architectures": ["BertForSequenceClassification"]}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "softmax"),
        ({"num_labels": 1}, "sigmoid"),
        ({"problem_type": "multi_label_classification"}, "sigmoid"),
        ({"problem_type": "regression", "num_labels": 1}, "identity"),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, "identity"),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}}, "sigmoid"),
    ],
)
def test_what_makes_probabilities(changes: dict[str, Any], expected: str, tmp_path: Path) -> None:
    pooling = read(write(tmp_path, CLASSIFIER | changes)).pooling
    assert pooling is not None
    assert pooling.activation == expected


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"id2label": {"0": "a", "2": "b"}}, "which has gaps"),
        ({"num_labels": 0}, "num_labels = 0"),
        ({"sentence_transformers": {"activation_fn": "os.system"}}, "has the activation 'os.system'"),
    ],
)
def test_broken_classes_are_refused(changes: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=sentence):
        read(write(tmp_path, CLASSIFIER | changes))


@pytest.mark.parametrize("switch", [{"use_bidirectional_attention": True}, {"is_causal": False}])
def test_a_model_that_attends_in_both_directions_writes_no_text(switch: dict[str, Any], tmp_path: Path) -> None:
    folder = write(tmp_path, QWEN | switch)
    with pytest.raises(ConfigError, match="bidirectional attention"):
        read(folder)
    assert read(folder, runner="pooling").is_encoder


@pytest.mark.parametrize(
    ("pooler_config", "named"),
    [
        ({"step_tag_id": "a"}, "step_tag_id"),
        ({"returned_token_ids": [2]}, "a list of classes below 2"),
        ({"logit_sigma": 0}, "a number above 0"),
        ({"tok_pooling_type": "MEAN"}, "tok_pooling_type is one of ALL, STEP"),
    ],
)
def test_what_pooler_config_cannot_say_of_classes(pooler_config: dict[str, Any], named: str, tmp_path: Path) -> None:
    folder = write(tmp_path, QWEN | {"architectures": ["Qwen3ForSequenceClassification"]})
    with pytest.raises(ConfigError, match=named):
        read(folder, pooler_config=pooler_config)


def test_settings_of_classes_are_for_classifiers(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not"):
        read(write(tmp_path, BERT), pooler_config={"step_tag_id": 3})


def test_a_splade_model_pools_in_one_way(tmp_path: Path) -> None:
    folder = write(tmp_path, BERT | {"architectures": ["BertSpladeSparseEmbeddingModel"]})
    with pytest.raises(ConfigError, match="SPLADE"):
        read(folder, pooler_config={"seq_pooling_type": "MEAN"})


def test_a_splade_head_of_another_kind(tmp_path: Path) -> None:
    folder = write(tmp_path, BERT | {"architectures": ["BertSpladeSparseEmbeddingModel"], "hidden_act": "relu"})
    with pytest.raises(UnsupportedModelError, match="hidden_act = 'relu'"):
        read(folder)
