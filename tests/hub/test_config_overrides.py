"""Values that a user puts in place of the file's, and rotary parameters wherever they stand."""

import json
from pathlib import Path
from typing import Any

import pytest

from octavo.errors import UnsupportedModelError
from octavo.hub import ModelConfig, RopeConfig, load_model_config, resolve
from octavo.hub.families.gemma import GemmaFields

LLAMA: dict[str, Any] = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
GEMMA: dict[str, Any] = {"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text"}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
NESTED = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5e5},
    "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
}


def _load(folder: Path, raw: dict[str, Any], overrides: dict[str, Any] | None = None) -> ModelConfig:
    (folder / "config.json").write_text(json.dumps(raw))
    return load_model_config(resolve(str(folder)), overrides)


def test_overrides_replace_and_are_checked_like_the_file(tmp_path: Path) -> None:
    config = _load(tmp_path, LLAMA, {"num_hidden_layers": 3, "max_position_embeddings": 512})
    assert (config.num_layers, config.max_position_embeddings) == (3, 512)
    assert config.raw["num_hidden_layers"] == 3
    with pytest.raises(UnsupportedModelError, match="num_hidden_layers = -3"):
        _load(tmp_path, LLAMA, {"num_hidden_layers": -3})


def test_an_override_can_name_the_architecture(tmp_path: Path) -> None:
    config = _load(tmp_path, {"model_type": "qwen2"}, {"architectures": ["Qwen2ForCausalLM"]})
    assert config.architecture == "Qwen2ForCausalLM"
    assert config.vocab_size == 151936, "as Qwen2 has it"


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
def test_the_type_may_be_overridden_by_either_name(key: str, tmp_path: Path) -> None:
    assert _load(tmp_path, {**LLAMA, "dtype": "bfloat16"}, {key: "float16"}).dtype == "float16"
    assert _load(tmp_path, {**LLAMA, "torch_dtype": "bfloat16"}, {key: "torch.float16"}).dtype == "float16"


@pytest.mark.parametrize(
    "raw",
    [
        {**LLAMA, "rope_theta": 1e5},
        {**LLAMA, "rope_parameters": {"rope_type": "default", "rope_theta": 1e5}},
        {**LLAMA, "rope_theta": 1e5, "rope_parameters": {"rope_type": "default", "rope_theta": 1e5}},
    ],
    ids=["old", "new", "both"],
)
def test_the_rotary_base_and_scaling_may_be_overridden_by_their_old_names(raw: dict[str, Any], tmp_path: Path) -> None:
    assert _load(tmp_path, raw, {"rope_theta": 7e5}).rope == RopeConfig(7e5)
    scaled = _load(tmp_path, raw, {"rope_scaling": YARN}).rope
    assert (scaled.theta, scaled.kind) == (1e5, "yarn")
    assert scaled.params == {"factor": 4.0, "original_max_position_embeddings": 1024}
    assert _load(tmp_path, raw, {"rope_parameters": {**YARN, "rope_theta": 3e5}}).rope.theta == 3e5


def test_overrides_reach_parameters_by_layer_type(tmp_path: Path) -> None:
    raw = {**GEMMA, "rope_parameters": NESTED}
    config = _load(tmp_path, raw, {"rope_theta": 7e5})
    assert config.rope == RopeConfig(7e5, "linear", {"factor": 8.0})
    assert config.own_as(GemmaFields).local_rope == RopeConfig(2e4)
    config = _load(tmp_path, raw, {"rope_scaling": {"rope_type": "linear", "factor": 2.0}})
    assert config.rope == RopeConfig(5e5, "linear", {"factor": 2.0})
    assert config.own_as(GemmaFields).local_rope == RopeConfig(2e4)


@pytest.mark.parametrize("missing", ["full_attention", "sliding_attention"])
@pytest.mark.parametrize("is_null", [False, True])
def test_a_layer_type_without_parameters_has_the_familys(missing: str, is_null: bool, tmp_path: Path) -> None:
    parameters = {kind: value for kind, value in NESTED.items() if kind != missing} | (
        {missing: None} if is_null else {}
    )
    config = _load(tmp_path, {**GEMMA, "rope_parameters": parameters})
    if missing == "full_attention":
        assert (config.rope, config.own_as(GemmaFields).local_rope) == (RopeConfig(1e6), RopeConfig(2e4))
    else:
        assert (config.rope.theta, config.own_as(GemmaFields).local_rope) == (5e5, RopeConfig(1e4))


@pytest.mark.parametrize(
    ("parameters", "named"),
    [
        ({"full_attention": 5}, "full_attention"),
        ({"full_attention": {}, "sliding_attention": [1]}, "sliding_attention"),
        ({"rope_type": "yarn", "factor": "four"}, "factor"),
        ({"rope_type": "yarn", "factor": 4.0, "beta_fast": {}}, "beta_fast"),
        ({"rope_type": "llama3", "factor": float("nan")}, "factor"),
        ({"rope_type": "longrope", "short_factor": [1.0, "x"]}, "short_factor"),
        ({"rope_type": "linear", "factor": 10**40}, "factor"),
        ({"rope_theta": [1]}, "rope_theta"),
        ([1, 2], "rope_parameters"),
    ],
)
def test_rotary_parameters_that_cannot_be(parameters: Any, named: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=named):
        _load(tmp_path, {**LLAMA, "rope_parameters": parameters})


def test_an_unknown_family_with_keys_of_its_own_is_refused_by_name(tmp_path: Path) -> None:
    raw = {"architectures": ["NewLMHeadModel"], "model_type": "new", "n_embd": 768, "n_layer": 12}
    with pytest.raises(UnsupportedModelError, match=r"'NewLMHeadModel' is not supported.*GPT2LMHeadModel"):
        _load(tmp_path, raw)
    with pytest.raises(UnsupportedModelError, match="Near it are: Gemma"):
        _load(tmp_path, {**raw, "architectures": ["Gemma9ForCausalLM"]})
